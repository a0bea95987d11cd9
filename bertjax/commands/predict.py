"""run=predict: predict with a fine-tuned model, for a split, a file or standard input."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TextIO

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.data.features import describe_unknown_pieces
from bertjax.errors import UserError
from bertjax.finetune.ensemble import EnsembleRequest, load_models, member_folders
from bertjax.finetune.restore import evaluation_settings
from bertjax.finetune.results import (
    OTHER_DATA,
    RESULTS,
    describe_other_data,
    json_lines,
    prediction_rows,
    write_predictions,
)
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.inference.input import InputSource
from bertjax.inference.overwrite_guard import ResultFiles
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.records import is_binary, read_records
from bertjax.tasks.reading.stream import open_standard_input, stream_batches
from bertjax.tasks.reading.texts import Blank, number_lines, read_text, stream_lines
from bertjax.tasks.task import Task
from bertjax.terminal import data_output, has_reader
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import lock_workdir

VERB = Verb(needs='task')


def run(config: ConfigDict, workdir: str, command_line_keys: Collection[str] = ()) -> None:
    """Writes the predictions for a file, for standard input, or for splits of the task.

    If config.input is a file, WORKDIR/predictions/input/NAME.jsonl gets one JSON object per record or blank line.
    NAME is the file's name without suffixes. NAME.json records the file's path, so that the predictions for one file do
    not replace those for another file of the same name.

    If config.input is '-', the predictions for standard input go to standard output as the input arrives. A batch is
    predicted at config.eval_batch_size records or blank lines, or when no more input is waiting.

    Without config.input, WORKDIR/predictions/SPLIT.jsonl gets the predictions for all records of each split in
    config.split. For data other than the run's, or with other options of the task, the folder is
    predictions/other_data. The model is chosen as in run=evaluate.

    Raises:
      UserError: The model, the file or a split does not exist, a record is malformed, or the predictions for another
        file would be replaced.
    """
    folder = pathlib.Path(workdir)
    folders = member_folders(config.ensemble, folder) if config.ensemble else [folder]
    with data_output() if config.input == '-' else contextlib.nullcontext():  # standard output has only predictions
        request = [(evaluation_settings(config, one, command_line_keys), one) for one in folders]
    with lock_workdir(folder, *folders, results_only=True):
        if config.input == '-':
            with data_output() as out:
                _predict_stream(request, folder, out)
        elif config.input:
            _predict_file(request, folder)
        else:
            _predict_splits(request, folder)


def _predict_splits(request: EnsembleRequest, folder: pathlib.Path) -> None:
    names = request[0][0].split.split(',')
    tuned = load_models(request, lambda data: {name: data.split(name, all_records=True) for name in names}, folder)
    path, target = folder / RESULTS, folder / 'predictions'
    if describe_other_data(request[0][0], folder, read_recorded_results(path) if path.exists() else {}):
        target /= OTHER_DATA
    for name, split in tuned.splits.items():
        predictions = tuned.predictions(split)
        for path in write_predictions(target, tuned.data.task, name, split, predictions):
            print(path)


def _predict_file(request: EnsembleRequest, folder: pathlib.Path) -> None:
    settings = request[0][0]
    source, target = InputSource(settings.input, ()), folder / 'predictions' / 'input'
    results = ResultFiles(target, source.name, source.origin)
    items: list[Any] = []

    def read(data: TaskData) -> dict[str, TaskSplit]:
        items.extend(_read_file(data.task, settings.input))
        return {'': _split(data, items)}

    tuned = load_models(request, read, folder)
    predictions = tuned.predictions(tuned.splits[''])
    blank = sum(isinstance(item, Blank) for item in items)
    if blank:
        print(f'{settings.input}: {blank:,} lines or records are blank; the predictions mark them as skipped')
    task, split = tuned.data.task, tuned.splits['']
    # The folder `input` prevents a conflict if the file has the name of a split, such as dev.
    written = write_predictions(target, task, source.name, split, predictions, items)
    results.write_facts()
    for path in written:
        print(path)


def _read_file(task: Task, path: str) -> Iterator[Any]:
    if is_binary(user_path(path, 'config.input')):
        return task.from_rows(read_records([user_path(path, 'config.input')]))
    return task.parse(list(number_lines(read_text(path))), path)


def _split(data: TaskData, items: Sequence[Any], *, is_stream: bool = False) -> TaskSplit:
    records = [item for item in items if not isinstance(item, Blank)]
    if not records:
        raise UserError('config.input', 'no record', 'at least one record', 'give some input')
    split = data.tokenize(records, cache=False)  # a user's texts are not cached on disk
    notes = split.features.notes
    if not is_stream:
        notes += tuple(describe_unknown_pieces(split.features.unknown_counts(data.tokenizer), data.tokenizer))
    for note in notes:
        print(note)
    return dataclasses.replace(split, is_stream=is_stream)


def _predict_stream(request: EnsembleRequest, folder: pathlib.Path, out: TextIO) -> None:
    settings, where = request[0][0], 'standard input'
    first: list[Any] = []
    batches: Iterator[list[Any]] = iter(())

    def read(data: TaskData) -> dict[str, TaskSplit]:
        nonlocal first, batches
        if data.task.needs_neighbors:
            found, fix = "'-' with config.task.context", 'give a file, so that all neighbors of a sentence are known'
            raise UserError('config.input', found, 'a file', fix)
        lines = stream_lines(open_standard_input(), where)
        batches = stream_batches(data.task.parse(lines, where), settings.eval_batch_size)
        first = next(batches, [])
        return {'': _split(data, first, is_stream=True)}

    tuned = load_models(request, read, folder)
    data = tuned.data

    def write(items: Sequence[Any], predictions: Sequence[Any]) -> None:
        out.write(json_lines(prediction_rows(data.task, items, predictions)))
        out.flush()

    write(first, tuned.predictions(tuned.splits['']))
    for items in batches:
        all_blank = all(isinstance(item, Blank) for item in items)
        write(items, [] if all_blank else tuned.predictions(_split(data, items)))
        if not has_reader(out):
            return
