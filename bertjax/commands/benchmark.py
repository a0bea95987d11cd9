"""run=benchmark: fine-tune on each task of GLUE; write the table of scores, the average and the file to submit."""

import pathlib
import shlex
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.commands import finetune, predict
from bertjax.config.plain import from_plain, to_plain
from bertjax.config.verb import Verb
from bertjax.errors import PreemptedError, UserError
from bertjax.files.paths import display_path
from bertjax.finetune import benchmark
from bertjax.finetune.benchmark import SUBMISSION, benchmark_table, is_finished, write_submission, write_summary
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.terminal import Console
from bertjax.training.caller import CALLER
from bertjax.training.health.gradient_check import training_devices
from bertjax.training.health.interrupt import Interrupt
from bertjax.training.settings import check_row_count
from bertjax.workdir.exports import LOADABLE
from bertjax.workdir.lock import check_workdir_kind, exported_trial, lock_workdir
from bertjax.workdir.resolve_path import huggingface_directory
from bertjax.writers.console import print_next_commands, print_output_files

VERB = Verb(needs='task', teacher=False, trains=True)


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE') -> None:
    """Fine-tunes on each task of config.task.task, in the folder WORKDIR/TASK. Finished tasks are not trained again.

    config.benchmark overrides keys for single tasks. The settings and records of all tasks are checked before any
    training.

    Raises:
      UserError: The kind of task is not GLUE, no task has data, a record is malformed, or a setting is wrong.
      PreemptedError, NonFiniteError: See `program.train`.
    """
    if config.task.kind != 'glue':
        expected = "'glue', the only kind that has a benchmark of several tasks"
        raise UserError('config.task.kind', repr(config.task.kind), expected, 'give --config=glue:all')
    if config.push_to:
        fix = 'leave it out, and push a model of your choice with --config.run=export'
        raise UserError('config.push_to', repr(config.push_to), 'nothing, because each task has its own model', fix)
    folder, console = pathlib.Path(workdir), Console(highlight=False, soft_wrap=True)
    check_workdir_kind(folder, 'a benchmark')
    tasks = benchmark.parse_tasks(config.task.task)
    if config.profile and len(tasks) > 1:
        expected = "'', because the tasks have different numbers of steps"
        raise UserError('config.profile', repr(config.profile), expected, 'give it with a recipe of a single task')
    overrides = benchmark.parse_task_overrides(config.benchmark, tasks)
    configs = {task: _task_config(config, task, overrides.get(task, {}), folder) for task in tasks}
    settings = {task: finetuning_settings(configs[task]) for task in tasks}
    for one in settings.values():
        one.check()
        if make_trials(one) or any(values.get('init') in TASKS for values in overrides.values()):
            reason = 'with a sweep, or with a task that starts from the model of another task'
            if not one.export:
                expected = 'True, because these runs need the exported models'
                raise UserError('config.export', f'False {reason}', expected, 'leave it True')
            if not {*LOADABLE} & {*one.formats}:
                found, expected = f'{",".join(one.formats)} {reason}', f'one of {", ".join(LOADABLE)} among them'
                raise UserError('config.export_formats', found, expected, 'add hf')
    server_splits, missing_data = benchmark.read_benchmark_data(
        {task: one.build_task() for task, one in settings.items()}, config.data
    )
    if missing_data:
        titles = ', '.join(f'{TASKS[task].title} ({reason})' for task, reason in missing_data.items())
        console.print(f'no data for {len(missing_data)} of {len(tasks)} tasks: {titles}', markup=False)
        console.print('  the average will be over fewer tasks than GLUE has')
    order = benchmark.order_tasks(overrides, list(server_splits))
    if pending := [settings[task] for task in order if not is_finished(folder / task)]:
        mesh = make_mesh(pending[0].mesh_axes, training_devices())
        for one in pending:
            for each in [trial.settings(one) for trial in make_trials(one)] or [one]:
                check_row_count(each.batch_size, each.grad_accum_steps, row_shards(mesh))
    for task in order:
        check_workdir_kind(folder / task, 'a sweep' if make_trials(settings[task]) else 'a fine-tuning')
        if overrides.get(task, {}).get('init') not in TASKS and not is_finished(folder / task):
            huggingface_directory(configs[task].init)  # raises before any task trains
    with lock_workdir(folder):
        requests = {task: to_plain(configs[task]) for task in order}
        for task in order:
            if (init := overrides.get(task, {}).get('init')) in TASKS:
                requests[task]['init'] = init  # the name of the other task, because its folder may be moved
        finished, changed_models = benchmark.record_request(folder, requests), set[str]()
        for number, task in enumerate(order, 1):
            title = f'{TASKS[task].title}, {number} of {len(order)}'
            console.print(f'\n{title}' + (': finished already' if task in finished else ''), style='bold')
            task_recipe = benchmark.recipe_of_task(recipe, task)
            if task not in finished:
                _remove_server_files(folder / task)
                earlier, was_finished = exported_trial(folder / task), is_finished(folder / task)
                with Interrupt() as interrupt:
                    finetune.run(configs[task], str(folder / task), task_recipe)
                if exported_trial(folder / task) != earlier or not (earlier or was_finished):
                    changed_models.add(task)
                if interrupt.requested():  # after the last step of the task
                    word = CALLER.get().word
                    raise PreemptedError(f'stopped as asked after {title}; the same {word} continues there')
            elif (init := requests[task]['init']) in changed_models:
                fix = f'move {folder / task} away to train it again'
                console.print(f'{task} was trained from an earlier model of {init}; {fix}', markup=False)
            _predict(configs[task], folder / task, server_splits[task])
            benchmark.record_result(folder, task, requests[task])
        _finish(folder, missing_data, server_splits, console)
    same_run = f'--config={shlex.quote(recipe)} --workdir={shlex.quote(display_path(folder))}'
    commands = [('a page about all tasks, and a page per task', f'{same_run} --config.run=report', 'report')]
    print_next_commands(console, commands)


def _task_config(config: ConfigDict, task: str, overrides: Mapping[str, Any], folder: pathlib.Path) -> ConfigDict:
    values, overrides = to_plain(config), dict(overrides)
    seeds = overrides.pop('seeds', None)
    # A value for this task replaces the values of a sweep over all tasks.
    replaced = {'seeds' if key == 'seed' else key for key in overrides} & values['sweep'].keys()
    values['sweep'] = {**values['sweep'], **{key: [] for key in replaced}}
    if seeds is not None:
        values['sweep'] = {**values['sweep'], 'seeds': list(range(seeds))}
    if 'epochs' in overrides:
        values['steps'] = 0
    if config.tracker:
        values['tracker_run'] = f'{config.tracker_run or folder.resolve().name}/{task}'
    if overrides.get('init') in TASKS:
        overrides['init'] = str(folder / overrides['init'])
    return from_plain(
        {**values, **overrides, 'task': {**values['task'], 'task': task}, 'run': 'finetune', 'benchmark': ''}
    )


def _remove_server_files(folder: pathlib.Path) -> None:
    """Removes a task's files for the GLUE server, so that the zip cannot contain predictions of an earlier model."""
    for row in TASKS.values():
        for name, file in row.splits.items():
            if file.server:
                (folder / 'predictions' / name / file.server).unlink(missing_ok=True)


def _predict(config: ConfigDict, folder: pathlib.Path, splits: list[str]) -> None:
    """Writes the missing files of a task for the GLUE server."""
    paths = {name: folder / 'predictions' / name / TASKS[config.task.task].splits[name].server for name in splits}
    missing = [name for name, path in paths.items() if not path.exists()]
    if missing:
        predict_config = from_plain({**to_plain(config), 'run': 'predict', 'split': ','.join(missing)})
        predict.run(predict_config, str(folder), ('split',))


def _finish(
    folder: pathlib.Path, missing_data: Mapping[str, str], server_splits: Mapping[str, list[str]], console: Console
) -> None:
    summary, rows = write_summary(folder, missing_data)
    missing = write_submission(folder, server_splits)
    console.print()
    console.print(benchmark_table(rows, summary))
    files = {'table.md': 'the table above', 'results.json': 'all metrics of all tasks'}
    print_output_files(console, folder, files | {SUBMISSION: 'for gluebenchmark.com'}, exported=True)
    if missing:
        console.print(f'{SUBMISSION} lacks {", ".join(missing)}: the server needs all 11 files', markup=False)
