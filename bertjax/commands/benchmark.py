"""run=benchmark: fine-tune on each task of GLUE; write their table, the average and the file to submit."""

import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.commands import finetune, predict
from bertjax.config.plain import from_plain, plain
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.paths import user_name
from bertjax.finetune.benchmark import available, ordered, parse_tasks, record_request, record_result, task_overrides
from bertjax.finetune.benchmark_table import SUBMISSION, benchmark_table, write_submission, write_summary
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import trials_of
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.terminal import Console
from bertjax.workdir.lock import lock_workdir
from bertjax.writers.console import Command, print_next_commands, print_output_files

VERB = Verb(needs='task')


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE') -> None:
    """Runs the tasks of config.task.task, each in WORKDIR/TASK; a finished one is not run again.

    Args:
      config: of all; what a task has of its own stands in config.benchmark.
      workdir: of all.
      recipe: that the config is of, as the command line names it.

    Raises:
      UserError: another kind of task, no data, and what `finetune` raises: before the first task is trained.
      PreemptedError, NonFiniteError: see `finetune`.
    """
    if config.task.kind != 'glue':
        expected = "'glue', the one kind that has a benchmark of several tasks"
        raise UserError('config.task.kind', repr(config.task.kind), expected, 'give --config=glue:all')
    if config.push_to:
        fix = 'leave it out, and push with --config.run=export what you choose'
        raise UserError('config.push_to', repr(config.push_to), 'nothing: each task has a model', fix)
    folder, console = pathlib.Path(workdir), Console(highlight=False, soft_wrap=True)
    tasks = parse_tasks(config.task.task)
    own = task_overrides(config.benchmark, tasks)
    configs = {task: _config_of(config, task, own.get(task, {}), folder) for task in tasks}
    settings = {task: finetuning_settings(configs[task]) for task in tasks}
    for one in settings.values():
        one.check()
        if not one.export and (trials_of(one) or any(values.get('init') in TASKS for values in own.values())):
            found, fix = (
                'False with a sweep, or a task whose init is another',
                'leave it True: their models are needed',
            )
            raise UserError('config.export', found, 'True', fix)
    there = available(tasks, {task: one.build_task() for task, one in settings.items()}, config.data)
    if there.lacking:
        named = ', '.join(f'{TASKS[task].title} ({what})' for task, what in there.lacking.items())
        console.print(f'no data for {len(there.lacking)} of {len(tasks)} tasks: {named}', markup=False)
        console.print('  the average will be over fewer tasks than GLUE has')
    order = ordered(own, there.tasks)
    with lock_workdir(folder):
        finished = record_request(folder, {task: plain(configs[task]) for task in order})
        for number, task in enumerate(order, 1):
            of = f'{TASKS[task].title}, {number} of {len(order)}'
            console.print(f'\n{of}' + (': finished already' if task in finished else ''), style='bold')
            alone = f'{recipe.partition(":")[0]}:{task}'
            if task not in finished:
                _forget(folder / task)
                finetune.run(configs[task], str(folder / task), alone)
            _predict(configs[task], folder / task, there.judged[task], again=task not in finished)
            record_result(folder, task, plain(configs[task]))
        _finish(folder, there.lacking, there.judged, console)
    again = f'--config={shlex.quote(recipe)} --workdir={shlex.quote(user_name(folder))}'
    print_next_commands(
        console, [Command('a page of all tasks, and one of each', f'{again} --config.run=report', 'report')]
    )


def _config_of(config: ConfigDict, task: str, own: Mapping[str, Any], folder: pathlib.Path) -> ConfigDict:
    """The config of the fine-tuning of one task."""
    values = plain(config)
    own = dict(own)
    seeds = own.pop('seeds', None)
    if seeds is not None:
        values['sweep'] = {**values['sweep'], 'seeds': list(range(seeds))}
    if own.get('init') in TASKS:
        own['init'] = str(folder / own['init'])
    return from_plain({**values, **own, 'task': {**values['task'], 'task': task}, 'run': 'finetune', 'benchmark': ''})


def _forget(folder: pathlib.Path) -> None:
    """Removes the server's files of a task that is run again: no zip shall have those of an earlier model."""
    for row in TASKS.values():
        for name, place in row.splits.items():
            if place.server:
                (folder / 'predictions' / name / place.server).unlink(missing_ok=True)


def _predict(config: ConfigDict, folder: pathlib.Path, splits: list[str], *, again: bool) -> None:
    """The server's files of a task; those that are there are not made again where the model is the same."""
    row = {**TASKS['ax'].splits, **TASKS[config.task.task].splits}
    waiting = [name for name in splits if again or not (folder / 'predictions' / name / row[name].server).exists()]
    if waiting:
        asked = from_plain({**plain(config), 'run': 'predict', 'split': ','.join(waiting)})
        predict.run(asked, str(folder), ('split',))


def _finish(
    folder: pathlib.Path, lacking: Mapping[str, str], judged: Mapping[str, list[str]], console: Console
) -> None:
    summary, rows = write_summary(folder, lacking)
    absent = write_submission(folder, judged)
    console.print()
    console.print(benchmark_table(rows, summary))
    places = {
        'table.md': 'the table above',
        'results.json': 'all figures of all tasks',
        SUBMISSION: 'for gluebenchmark.com',
    }
    print_output_files(console, folder, places, exported=True)
    if absent:
        console.print(f'{SUBMISSION} lacks {", ".join(absent)}: the server takes all 11 files', markup=False)
