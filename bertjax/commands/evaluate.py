"""run=evaluate: compute all metrics of a fine-tuned model on a labeled split."""

import json
import pathlib
from collections.abc import Collection
from typing import Any

from ml_collections import ConfigDict
from rich.markup import escape

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.disk import check_writable
from bertjax.finetune.ensemble import Ensemble, load_models, member_folders
from bertjax.finetune.restore import evaluation_settings
from bertjax.finetune.results import (
    OTHER_DATA,
    RESULTS,
    STEP,
    STOPPED,
    describe_other_data,
    is_about,
    results_table,
    write_predictions,
)
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.parallel.distributed import is_primary, primary_first
from bertjax.terminal import WIDE, Console, make_table
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import lock_workdir
from bertjax.writers.console import format_value

VERB = Verb(needs='task', processes=True)


def run(config: ConfigDict, workdir: str, command_line_keys: Collection[str] = ()) -> None:
    """Evaluates the workdir's model on config.split, such as 'dev' or 'dev,test'.

    In a new workdir, the verb evaluates the model of config.init. With config.ensemble it evaluates the models of
    several workdirs, together and individually. The metrics are added to WORKDIR/results.json; if this file is about
    another model, its content is replaced, except for the length of the run. The predictions are written to
    WORKDIR/predictions. Results on data other than the run's, or with other options of the task, go to the key
    `other_data` of the file and to predictions/other_data.

    The final model of a finished run with dev keeps its thresholds, such as the null threshold of SQuAD 2.0. For any
    other model, the thresholds are tuned on dev if config.split has dev. Later commands use them, first those for the
    run's own data. An existing export keeps its thresholds until run=export.

    Raises:
      UserError: There is no model, or a split does not exist or has no labels.
    """
    folder = pathlib.Path(workdir)
    folders = member_folders(config.ensemble, folder) if config.ensemble else [folder]
    request = [(evaluation_settings(config, one, command_line_keys), one) for one in folders]
    with lock_workdir(folder, *folders, results_only=True):
        with primary_first(sync_workdirs=False):
            if is_primary():
                check_writable(folder)  # before the evaluation, because the results go there
        names = request[0][0].split.split(',')
        tuned = load_models(request, lambda data: {name: _labeled(data, name) for name in names}, folder)
        data, task, path = tuned.data, tuned.data.task, folder / RESULTS
        facts = tuned.facts(folder)
        earlier = read_recorded_results(path) if path.exists() else {}
        results = {'task': task.name, 'score': task.score, **_merge_facts(earlier, facts, request[0][0].steps)}
        section, predictions_folder = results, folder / 'predictions'
        if other := describe_other_data(request[0][0], folder, results):
            others = results.setdefault(OTHER_DATA, {})
            section = others[other] = others.pop(other, {})  # the newest is last
            predictions_folder /= OTHER_DATA
        measured, member_scores = {}, {}
        console = Console(highlight=False, soft_wrap=True)
        # Dev comes first, because the other splits use the thresholds that are tuned on dev.
        for name, split in sorted(tuned.splits.items(), key=lambda item: item[0] != 'dev'):
            predictions = tuned.predictions(split)
            if name == 'dev' and not tuned.thresholds_tuned:
                task.tune(split.records, predictions)
            measured[name] = task.metrics(split.records, predictions)
            if isinstance(tuned, Ensemble):
                member_scores[name] = tuned.member_scores(split)
            write_predictions(predictions_folder, task, name, split, predictions)
            if report := task.report(split.records, predictions):
                if len(tuned.splits) > 1:
                    console.print(name, style='bold', markup=False)
                console.print(report, markup=False)
        section['splits'] = {**section.get('splits', {}), **measured}
        old_parts = {name: part for name, part in section.pop('parts', {}).items() if name not in measured}
        parts = old_parts | data.parts(measured)
        section |= {'parts': parts} if parts else {}
        if member_scores:
            section['alone'] = {**section.get('alone', {}), **member_scores}
            table = make_table(task.score, '', *measured)
            for member in next(iter(member_scores.values())):
                table.add_row(escape(member), *(format_value(scores[member]) for scores in member_scores.values()))
            together = (format_value(figures.get(task.score)) for figures in measured.values())
            table.add_row('together', *together, style='bold')
            # The table is as wide as its paths need, because a wrapped path cannot be copied.
            Console(width=WIDE).print(table)
        write_atomic(path, json.dumps(results, indent=2) + '\n')
        console.print(results_table({**results, 'task': task.name, 'parts': parts, 'splits': measured}))
        console.print(f'{path}, {predictions_folder}', markup=False)
        has_replaced_final = data.finished and STEP in results and not earlier.keys() & {STEP, 'ensemble'}
        if has_replaced_final and earlier.get('splits'):
            restored = f'--config.run=evaluate --config.split={",".join(earlier["splits"])}'
            note = f'no longer has the results of the final model, but those of step {results[STEP]}'
            console.print(f'{path} {note}; {restored} computes the metrics of the final model again', markup=False)


def _merge_facts(results: dict[str, Any], model: dict[str, Any], steps: int | str) -> dict[str, Any]:
    """Returns the content of results.json with the facts `model`.

    If the content is for another model, only the facts about the length of the run are kept. If it is from before the
    run was extended to `steps`, nothing is kept.
    """
    if results.get('steps', steps) != steps:
        return model
    length = {key: results[key] for key in ('steps', STOPPED) if key in results}
    return {**(results if is_about(results, model) else length), **model}


def _labeled(data: TaskData, name: str) -> TaskSplit:
    if name not in data.task.splits():
        data.task.records(name)  # raises if there is no such split
        expected = ', '.join(data.task.splits()) or 'a split with labels'
        found, fix = f'{name!r}, which has no labels', 'use --config.run=predict, or give labels'
        if name == 'train':  # it has labels, but tasks such as embed do not evaluate it
            found, fix = "'train', which is used only for training", 'choose another split'
        raise UserError('config.split', found, expected, fix)
    return data.split(name)
