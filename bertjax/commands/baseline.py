"""run=baseline: score simple methods, such as the most frequent answer or a linear model on TF-IDF, on a task."""

import itertools
import json
import pathlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict
from rich.table import Table

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.finetune.restore import merge_run_config
from bertjax.finetune.results import OTHER_DATA, RESULTS, describe_other_data
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.task_data import sample_records
from bertjax.terminal import Console, make_table
from bertjax.workdir.files import read_recorded_results
from bertjax.workdir.lock import lock_workdir
from bertjax.writers.console import format_value

VERB = Verb(needs='task')

BASELINES = 'baseline.json'


def run(config: ConfigDict, workdir: str, command_line_keys: Collection[str] = ()) -> None:
    """Trains simple methods on the training records, and scores them on every other labeled split.

    The metrics are written to WORKDIR/baseline.json, and printed beside the metrics of the workdir's model on these
    data, if results.json has such metrics. The workdir may also be new.

    Raises:
      UserError: Records are malformed, only the training split has labels, the kind of task has no baselines, or
        scikit-learn is missing.
    """
    folder = pathlib.Path(workdir)
    settings = finetuning_settings(merge_run_config(config, folder, command_line_keys))
    task = settings.build_task()
    if not task.has_baselines:
        fix = 'choose a task of classification, tagging or multiple choice'
        raise UserError('config.run', 'baseline', f'a task that has simple methods, unlike {task.name}', fix)
    train = task.records('train')
    task.learn(train)
    names = [name for name in task.splits() if name != 'train']
    if not names:
        raise UserError('config.data', 'no labeled split except train', 'a split to score on', 'add a dev file')
    train = sample_records(train, settings.max_train_records)
    splits = {name: sample_records(task.records(name), settings.max_eval_records) for name in names}
    print(f'training simple methods on {len(train):,} records; with many records, TF-IDF takes minutes …', flush=True)
    begin = time.perf_counter()
    answers = task.baselines(train, [record for records in splits.values() for record in records])
    seconds = time.perf_counter() - begin
    measured: dict[str, dict[str, Any]] = {name: {} for name in splits}
    for baseline, predictions in answers.items():
        rest = iter(predictions)
        for name, records in splits.items():
            measured[name][baseline] = task.metrics(records, list(itertools.islice(rest, len(records))))
    results = {'task': task.name, 'score': task.score, 'train_records': len(train), 'splits': measured}
    with lock_workdir(folder):
        write_atomic(folder / BASELINES, json.dumps(results, indent=2) + '\n')
        model_results = read_recorded_results(folder / RESULTS) if (folder / RESULTS).exists() else {}
        if other := describe_other_data(settings, folder, model_results):
            model_results = model_results.get(OTHER_DATA, {}).get(other, {})
    console = Console(highlight=False, soft_wrap=True)
    for name, records in splits.items():
        title = f'{task.name}, {name}, {len(records):,} records'
        console.print(_table(title, task.score, {**measured[name], **_model_figures(model_results, name)}))
    console.print(f'learned from {len(train):,} records in {seconds:.1f} s: see {folder / BASELINES}', markup=False)


def _model_figures(results: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """Returns {title: metrics} of the workdir's model on the split `name`; {} if no metrics are recorded."""
    part = results.get('parts', {}).get(name)
    figures = results.get('splits', {}).get(name)
    return {'this model' + (f' ({part})' if part else ''): figures} if figures else {}


def _table(title: str, score: str, rows: Mapping[str, Mapping[str, float | None]]) -> Table:
    names = list(next(iter(rows.values())))
    table = make_table(title, '', *(f'{name} *' if name == score else name for name in names))
    for row, figures in rows.items():
        table.add_row(row, *(format_value(figures.get(name)) for name in names))
    return table
