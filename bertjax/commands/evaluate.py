"""run=evaluate: compute all metrics of a fine-tuned model on a labelled split."""

import json
import pathlib
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.finetune.ensemble import Ensemble, ensemble_table, load_models, member_folders
from bertjax.finetune.restore import EvaluatedTask, config_of_run
from bertjax.finetune.results import RESULTS, STEP, results_table, write_predictions
from bertjax.finetune.settings import FinetuningSettings, finetuning_settings
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.terminal import Console
from bertjax.workdir.files import recorded_results
from bertjax.workdir.lock import exported_trial, lock_workdir

VERB = Verb(needs='task', processes=True)

_WIDEST = 4096  # columns of a table; the longest path has no more


def run(config: ConfigDict, workdir: str, given: Collection[str] = ()) -> None:
    """Evaluates the workdir's model, or that of config.init, on config.split ('dev', or several: 'dev,test'); with
    config.ensemble those of several workdirs, together and alone.

    The model is the checkpoint that config.step and config.use_checkpoint choose, whether its run is finished or not.
    The figures join those in WORKDIR/results.json; predictions/ has a line a record and the benchmark's files. What was
    tuned on dev (the null threshold of SQuAD 2.0) by a finished run stays; for any other model it is tuned here, if dev
    is in config.split.

    Args:
      config: the recipe's.
      workdir: of a fine-tuning, or a new one.
      given: keys that the command line sets, see `config_of_run`.

    Raises:
      UserError: no model, no such split, or one without labels.
    """
    folder = pathlib.Path(workdir)
    folders = member_folders(config.ensemble, folder) if config.ensemble else [folder]
    asked = [(finetuning_settings(config_of_run(config, one, given)), one) for one in folders]
    with lock_workdir(folder, *folders):
        names = asked[0][0].split.split(',')
        tuned = load_models(asked, lambda data: {name: _labelled(data, name) for name in names})
        data, task, path = tuned.data, tuned.data.task, folder / RESULTS
        facts = _which_model(asked[0][0], folder, tuned)
        results = {'task': task.name, 'score': task.score, **_earlier(path, facts)}
        measured, alone = {}, {}
        console = Console(highlight=False, soft_wrap=True)
        # What is tuned on dev goes for all.
        for name, split in sorted(tuned.splits.items(), key=lambda item: item[0] != 'dev'):
            predictions = tuned.predictions(split)
            if name == 'dev' and not tuned.finished:
                task.tune(split.records, predictions)
            measured[name] = task.metrics(split.records, predictions)
            if isinstance(tuned, Ensemble):
                alone[name] = tuned.scores_of_members(split)
            write_predictions(folder / 'predictions', task, name, split, predictions)
            console.print(task.report(split.records, predictions), markup=False)
        results['splits'] = {**results.get('splits', {}), **measured}
        kept = {name: part for name, part in results.pop('parts', {}).items() if name not in measured}
        parts = kept | data.parts(measured)
        results |= {'parts': parts} if parts else {}
        if alone:
            results['alone'] = {**results.get('alone', {}), **alone}
            table = ensemble_table(task.score, alone, measured)
            # As wide as its folders are: one that is folded cannot be copied.
            whole = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
            Console(width=max(whole, console.width)).print(table)
        write_atomic(path, json.dumps(results, indent=2) + '\n')
        console.print(results_table({**results, 'splits': measured}))
        console.print(f'{path}, {folder / "predictions"}', markup=False)


def _which_model(settings: FinetuningSettings, folder: pathlib.Path, tuned: EvaluatedTask | Ensemble) -> dict[str, Any]:
    """What tells the models that one workdir can be asked for: of config.init, of a step, of a trial of a sweep; or of
    several workdirs.

    The step is left out of a finished run's own model.
    """
    if isinstance(tuned, Ensemble):
        return {'ensemble': [str(member) for member in tuned.members]}
    facts: dict[str, Any] = {'init': settings.init, 'use_checkpoint': settings.use_checkpoint}
    if tuned.step is not None and not tuned.finished:
        facts[STEP] = tuned.step
    trial = exported_trial(folder)
    return {**facts, 'cell': trial} if trial else facts


def _earlier(path: pathlib.Path, model: dict[str, Any]) -> dict[str, Any]:
    """What results.json says of the same model, else nothing but `model`."""
    found = recorded_results(path) if path.exists() else {}
    same = all(found.get(key, value) == value for key, value in model.items())
    same &= all(found.get(key) == model.get(key) for key in (STEP, 'ensemble'))
    return {**found, **model} if same else model


def _labelled(data: TaskData, name: str) -> TaskSplit:
    if name not in data.task.splits():
        data.task.records(name)  # raises where there is no such split
        fix = 'use --config.run=predict, or give labels'
        raise UserError('config.split', f'{name!r}, which has no labels', ', '.join(data.task.splits()), fix)
    return data.split(name)
