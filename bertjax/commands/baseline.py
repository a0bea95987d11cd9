"""run=baseline: score simple methods on a task: the most frequent answer, and TF-IDF with a linear model."""

import itertools
import json
import pathlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.finetune.restore import config_of_run
from bertjax.finetune.results import RESULTS
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.task_data import sample
from bertjax.terminal import Console
from bertjax.workdir.files import recorded_results
from bertjax.workdir.lock import lock_workdir
from bertjax.writers.console import format_value

VERB = Verb(needs='task')

BASELINES = 'baseline.json'


def run(config: ConfigDict, workdir: str, given: Collection[str] = ()) -> None:
    """Learns from the training records, answers every labelled split; writes WORKDIR/baseline.json, and prints the
    figures beside those of the workdir's model, where it has any. No model and no config.init are needed.

    Args:
      config: the recipe's.
      workdir: of a fine-tuning, or a new one.
      given: keys that the command line sets, see `config_of_run`.

    Raises:
      UserError: malformed records, a kind of task without simple answers, no scikit-learn.
    """
    folder = pathlib.Path(workdir)
    settings = finetuning_settings(config_of_run(config, folder, given))
    task = settings.build_task()
    if not task.has_baselines:
        fix = 'leave it out: papers compare spans with nothing as simple'
        raise UserError('config.run', 'baseline', f'a task with simple answers, which {task.name} has not', fix)
    train = task.records('train')
    task.learn(train)
    names = [name for name in task.splits() if name != 'train']
    if not names:
        raise UserError('config.data', 'no labelled split but train', 'one to be judged by', 'add a dev file')
    train = _part(train, settings.max_train_records)
    splits = {name: _part(task.records(name), settings.max_eval_records) for name in names}
    print(f'simple answers of {len(train):,} records; TF-IDF of many takes minutes …', flush=True)
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
        found = recorded_results(folder / RESULTS) if (folder / RESULTS).exists() else {}
    console = Console(highlight=False, soft_wrap=True)
    for name, records in splits.items():
        title = f'{task.name}, {name}, {len(records):,} records'
        console.print(_table(title, task.score, {**measured[name], **_of_model(found, name)}))
    console.print(f'learned from {len(train):,} records in {seconds:.1f} s; {folder / BASELINES}', markup=False)


def _part(records: Sequence[Any], most: int) -> Sequence[Any]:
    """At most `most` records, those of a fine-tuning with the same limit; all with 0."""
    return records if not 0 < most < len(records) else [records[i] for i in sample(len(records), most)]


def _of_model(results: Mapping[str, Any], name: str) -> dict[str, Mapping[str, Any]]:
    """The figures of the workdir's model for a split, and of how many records they are where not of all."""
    part = results.get('parts', {}).get(name)
    figures = results.get('splits', {}).get(name)
    return {'this model' + (f' ({part})' if part else ''): figures} if figures else {}


def _table(title: str, score: str, rows: Mapping[str, Mapping[str, float | None]]) -> Table:
    """A row an answer, a column a figure."""
    table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column('')
    names = list(next(iter(rows.values())))
    for name in names:
        table.add_column(f'{name} *' if name == score else name, justify='right')
    for row, figures in rows.items():
        table.add_row(row, *(format_value(figures.get(name)) for name in names))
    return table
