"""run=predict: what a tuned model says of a split, of a file, or of standard input."""

import contextlib
import pathlib
import sys
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.experiment.finetuning_settings import FinetuningSettings, finetuning_settings
from bertjax.experiment.results import json_lines, write_predictions
from bertjax.experiment.saved import config_of_run, load_task
from bertjax.experiment.task_data import Split, TaskData
from bertjax.files.atomic import exclusive
from bertjax.files.streams import named_compressed
from bertjax.tasks.reading.texts import decoded, read_text


def run(config: ConfigDict, workdir: str, given: Collection[str] = ()) -> None:
    """Predicts.

    With config.input a file, a JSON object a record goes to WORKDIR/predictions/input/NAME.jsonl; with '-' from
    standard input to standard output. Without it, config.split ('test', or several: 'test,test_mismatched') is
    predicted. Files of a benchmark's or of the input's own form are written beside, zipped too. The model is the one
    that run=evaluate takes.

    Args:
      config: the recipe's.
      workdir: of a fine-tuning, or a new one.
      given: keys that the command line sets, see `config_of_run`.

    Raises:
      UserError: no model, no such file or split, or a malformed record.
    """
    folder = pathlib.Path(workdir)
    settings = finetuning_settings(config_of_run(config, folder, given))
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, 'trains in this workdir'):
        if settings.input:
            _predict_input(settings, folder)
        else:
            _predict_splits(settings, folder)


def _predict_splits(settings: FinetuningSettings, folder: pathlib.Path) -> None:
    names = settings.split.split(',')
    tuned = load_task(settings, folder, lambda data: {name: data.split(name) for name in names})
    for name, split in tuned.splits.items():
        predictions = tuned.model.predictions(tuned.params, split)
        for path in write_predictions(folder / 'predictions', tuned.model.data.task, name, split, predictions):
            print(path)


def _predict_input(settings: FinetuningSettings, folder: pathlib.Path) -> None:
    piped = settings.input == '-'
    with contextlib.redirect_stdout(sys.stderr) if piped else contextlib.nullcontext():
        tuned = load_task(settings, folder, lambda data: {'': _input(data, settings.input)})
        split, task = tuned.splits[''], tuned.model.data.task
        predictions = tuned.model.predictions(tuned.params, split)
    if piped:
        sys.stdout.write(json_lines(task.rows(split.records, predictions)))
        return
    path = pathlib.Path(settings.input)
    name = pathlib.Path(path.stem).stem if named_compressed(path.name) else path.stem
    # In a folder of its own: a file may be called dev, too.
    for path in write_predictions(folder / 'predictions' / 'input', task, name, split, predictions):
        print(path)


def _input(data: TaskData, path: str) -> Split:
    where = 'standard input' if path == '-' else path
    text = decoded(sys.stdin.buffer, where) if path == '-' else read_text(path)
    records = data.task.parse(text, where)
    if not records:
        raise UserError(where, 'no record', 'at least one', 'give some input')
    split = data.tokenised(records, keep=False)  # a user's own texts are left on no disk
    for note in split.features.notes:
        print(note)
    return split
