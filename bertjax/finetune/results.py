"""The results of a fine-tuning run: metrics, predictions, the export and the printed summary."""

import itertools
import json
import pathlib
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from bertjax.config.plain import to_plain
from bertjax.config.schema import Trained
from bertjax.convert.content import ExportContent
from bertjax.files.atomic import AtomicFile, write_atomic, write_zip, writes_are_disabled
from bertjax.files.paths import display_path, real_path
from bertjax.finetune.advice import advise
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TASK_FILE, TaskData, TaskSplit
from bertjax.finetune.task_model import TaskModel
from bertjax.metrics.rows import finite_or_none
from bertjax.tasks.embedding.head import exported_module
from bertjax.tasks.reading.texts import Blank
from bertjax.tasks.registry import options
from bertjax.tasks.task import Outputs, Task
from bertjax.terminal import BOXED, Console, make_table
from bertjax.training.health.goodput import read_goodput
from bertjax.workdir import exports
from bertjax.workdir.exports import push_export, write_exports
from bertjax.workdir.files import distillation_facts, read_recorded_config
from bertjax.writers.console import format_value, print_next_commands, print_output_files
from bertjax.writers.jsonl import read_rows

_PREDICTED = ('label', 'labels', 'score', 'tags', 'prediction', 'answer')  # records may use these names for true labels
_IGNORED_OPTIONS = ('input_format', 'normalize')  # options that do not affect the predictions of a split
RESULTS = 'results.json'
# Keys of results.json.
STEP = 'step'  # the step of the evaluated checkpoint; missing if the final model of the run was evaluated
MEMBER_STEPS = 'member_steps'  # {workdir: step} of the members of an ensemble that are not final models
OTHER_DATA = 'other_data'  # the figures on data other than the run's, or with other options
STOPPED = 'stopped_at'  # the last step if config.patience ended the run before config.steps
# The config keys that distinguish the runs of a task.
_FACTS = ('init', 'seed', 'trainable', 'epochs', 'steps')
_FACTS += ('batch_size', 'seq_len', 'learning_rate', 'layer_decay', 'use_checkpoint')


def finish_task(
    folder: pathlib.Path, config: Mapping[str, Any], task_model: TaskModel, params: Any, last: int, recipe: str
) -> None:
    """Evaluates every labeled split, writes results.json, the predictions and the export, and prints a summary.

    `config` is the resolved config, `last` is the last step of the training, and `recipe` is the value of --config.
    """
    data, task = task_model.data, task_model.data.task
    console = Console(highlight=False, soft_wrap=True)
    facts = {key: config[key] for key in _FACTS}
    results: dict[str, Any] = {'task': task.name, 'score': task.score, **facts, 'collapsed': None}
    if last != config['steps']:
        results[STOPPED] = last
    outputs = {name: task_model.outputs(params, data.split(name)) for name in data.eval_splits}
    evaluation, predictions = evaluate_split(data, outputs, folder / 'predictions')
    results |= evaluation
    for name, split_predictions in predictions.items():
        report = task.report(data.split(name).records, split_predictions)
        if report:
            console.print(f'\n{task.name}, {name}', style='bold', markup=False)
            console.print(report, markup=False)
    write_atomic(folder / TASK_FILE, data.task_json())
    if task_model.settings.export:
        export_task(folder, config, task_model, params, results, task_model.settings.formats)
    # Written after the export, because a benchmark task that has results counts as finished.
    write_atomic(folder / RESULTS, json.dumps(results, indent=2) + '\n')
    if results['splits']:
        console.print(results_table(results))
    if results['collapsed']:
        advice = advise(read_rows(folder / 'metrics.jsonl'), config['learning_rate'])
        count = len(data.split('dev').records)
        console.print(f'the model gives all {count:,} records of dev nearly the same answer', markup=False)
        console.print(f'  {advice}', markup=False)
    if goodput := read_goodput(folder):
        console.print(f'\ngoodput {goodput}', markup=False)
    files = {
        'results.json': 'the figures above',
        'predictions': "one line per record, and any files for the benchmark's server or scorer",
        **exports.EXPORT_FOLDERS,
        'metrics.jsonl': 'every figure; also in tensorboard/',
    }
    print_output_files(console, folder, files, exported=task_model.settings.export)
    same_run = f'--config={shlex.quote(recipe)} --workdir={shlex.quote(display_path(folder))}'
    commands = [
        ('predictions for a file (-: standard input)', f'{same_run} --config.run=predict --config.input=FILE'),
        ('a page about this workdir, with the worst errors', f'{same_run} --config.run=report', 'report'),
        ('a plot of the training', f'{same_run} --config.run=plot', 'plot'),
    ]
    if task.has_baselines:
        title = 'the score of the most frequent answer and of a linear model'
        commands.insert(1, (title, f'{same_run} --config.run=baseline', 'baseline'))
    print_next_commands(console, commands)
    if task_model.settings.export:  # the upload is last, because it may fail
        push_export(folder, task_model.settings.push_to, private=task_model.settings.push_private)


def evaluate_split(
    data: TaskData, outputs: Mapping[str, Outputs], folder: pathlib.Path
) -> tuple[dict[str, Any], dict[str, Sequence[Any]]]:
    """Computes the metrics of labeled splits, tunes the task's thresholds on dev, and writes predictions to `folder`.

    `outputs` is {split: the outputs of the model}. Returns a dict of results, and {split: predictions}. The results
    have 'splits', {split: metrics}, and with a dev split 'collapsed', see `Task.collapsed`. If a split or train is a
    sample, the results also have 'parts', see `TaskData.parts`.
    """
    task, evaluation, figures, predictions = data.task, {}, {}, {}
    for name, rows in outputs.items():
        split = data.split(name)
        predictions[name] = task.predictions(split.records, split.features, rows)
        if name == 'dev':
            task.tune(split.records, predictions[name])
            data.thresholds_tuned = True
            evaluation['collapsed'] = task.collapsed(split.records, predictions[name])
        figures[name] = task.metrics(split.records, predictions[name])
        write_predictions(folder, task, name, split, predictions[name])
    parts = data.parts(['train', *outputs])
    return {**evaluation, 'splits': figures, **({'parts': parts} if parts else {})}, predictions


def export_task(
    folder: pathlib.Path,
    config: Mapping[str, Any],
    task_model: TaskModel,
    params: Any,
    results: Mapping[str, Any],
    formats: Collection[str],
    *,
    finished: bool = True,
) -> list[pathlib.Path]:
    """Writes a folder in WORKDIR/export/ for each format, and returns the folders.

    The model card shows the metrics in `results`. For `finished`, see `task_data.make_task_json`.
    """
    data = task_model.data
    card: dict[str, Any] = {'title': f'BERT for {data.task.name}, trained with bertjax'}
    card['name'] = config.get('push_to', '')
    card |= {key.replace('_', ' '): config[key] for key in _FACTS if key != 'init'}
    loss = data.task.objective.distill_loss
    card |= distillation_facts(config, uses_temperature=loss is not None and loss.uses_temperature)
    card |= data.task.card_facts(data.tokenizer)
    parts = results.get('parts', {})
    card |= {'training data': parts['train']} if 'train' in parts else {}
    card |= {'stopped at step': results[STOPPED]} if STOPPED in results and STEP not in results else {}
    card |= {
        f'Split {name}' + (f', {parts[name]}' if name in parts else ''): {
            key: value for key, value in values.items() if value is not None
        }
        for name, values in results['splits'].items()
    }
    module = task_model.setup.module
    content = ExportContent(
        module=module,
        params=params,
        tokenizer=data.tokenizer,
        card=card,
        head=data.task.head,
        task=data.task.huggingface(),
        extra_files={TASK_FILE: data.task_json(finished=finished).encode()},
        max_length=data.task.truncated_length,
        about=config.get('card', {}),
        files=data.task.model_files(module.config),
        embeddings=exported_module(module.config, data.task.sentence_modules()),
        figures={
            name: {key: value for key, value in values.items() if key not in data.task.thresholds}
            for name, values in results['splits'].items()
        },
    )
    return write_exports(content, folder, formats)


def is_about(results: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Whether the content of results.json is about the model with these facts, see `EvaluatedTask.facts`."""
    same = all(results.get(key, value) == value for key, value in model.items())
    return same and all(results.get(key) == model.get(key) for key in (STEP, 'ensemble', MEMBER_STEPS))


def describe_other_data(settings: FinetuningSettings, folder: pathlib.Path, results: dict[str, Any]) -> str | None:
    """Describes the data and task options in `settings`; returns None if both are those of the run in `folder`.

    The description is the path of the data and the options that differ from those of the run or, without a run, from
    their defaults. Without a run, the description is compared with results['data']. If this key is missing, the
    function sets it to the description.
    """
    path = folder / 'config.json'
    recorded = read_recorded_config(path) if path.exists() else {'task': {}}
    changes = [
        f'task.{name}={value}'
        for name, option in options(settings.task['kind']).items()
        if option.trained is Trained.COMMAND_LINE and name not in _IGNORED_OPTIONS
        if (value := to_plain(settings.task[name])) != to_plain(recorded['task'].get(name, option.default))
    ]
    data = ' '.join([real_path(settings.data), *changes])
    run_data = real_path(recorded['data']) if path.exists() else results.setdefault('data', data)
    return None if data == run_data else data


def write_predictions(
    folder: pathlib.Path,
    task: Task,
    name: str,
    split: TaskSplit,
    predictions: Sequence[Any],
    items: Sequence[Any] | None = None,
) -> list[pathlib.Path]:
    """Writes the predictions of a split and returns the files.

    FOLDER/SPLIT.jsonl has a row for each of `items`, by default the records of the split; see `prediction_rows`.
    Files for a benchmark's server or scorer, if there are any, are written to FOLDER/SPLIT/ and to FOLDER/SPLIT.zip.
    No such file is written for a sample or, unless `task.partial_files`, for an input with skipped records. Files of an
    earlier evaluation, perhaps of another model, are then removed.
    """
    written = [folder / f'{name}.jsonl']
    with AtomicFile(written[0]) as target:
        for row in prediction_rows(task, items or split.records, predictions):  # all rows may not fit in memory
            target.write(json_lines([row]).encode())
    official = {} if split.population else task.official_files(name, split.records, predictions)
    skipped = sum(isinstance(item, Blank) and item.fields is not None for item in items or ())  # no blank lines
    if official and skipped and not task.partial_files:
        reason = f"a benchmark's server or scorer needs a prediction for every record, and {skipped:,} have no text"
        print(f'no {folder / name}/ and {name}.zip are written, and earlier ones are removed: {reason}')
        official = {}
    for file, text in official.items():
        written.append(folder / name / file)
        write_atomic(written[-1], text)
    if official:
        written.append(folder / f'{name}.zip')
        write_zip(written[-1], official)
    elif not writes_are_disabled():
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / f'{name}.zip').unlink(missing_ok=True)
    return written


def prediction_rows(task: Task, items: Sequence[Any], predictions: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Returns a row for each record or `Blank` in `items`; see `merge_answers`."""
    records = [item for item in items if not isinstance(item, Blank)]
    return merge_answers(items, task.rows(records, predictions))


def merge_answers(items: Iterable[Any], answers: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields a row for each record or `Blank` in `items`. `answers` has an answer for each record.

    The row of a record has its fields and its answer. The row of a `Blank` has its fields, its kind and `where`. Fields
    that are not finite, which JSON cannot represent, become null. A field NAME that is also a key of the answer becomes
    input_NAME. If the answer has the same value, the field is left out. Fields that may be true labels (_PREDICTED) are
    always kept, because only some rows would lack them.
    """
    answers = iter(answers)
    for item in items:
        row = {'skipped': item.kind, 'where': item.where} if isinstance(item, Blank) else next(answers)
        fields = {}
        for key, value in finite_or_none(getattr(item, 'fields', None) or {}).items():
            if key in row and key not in _PREDICTED and json.dumps(row[key]) == json.dumps(value):
                continue
            while key in row or key in fields:
                key = f'input_{key}'
            fields[key] = value
        yield {**fields, **row}


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns a string with one line of JSON per row."""
    text = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)
    # A lone surrogate in a field becomes a JSON escape, because UTF-8 cannot encode it.
    return text.encode('utf-8', 'backslashreplace').decode('utf-8')


def results_table(results: Mapping[str, Any]) -> Table:
    """Returns a table with a column for each split and a row for each metric."""
    splits, parts = results['splits'], results.get('parts', {})
    names = [f'{name}\n({parts[name]})' if name in parts else name for name in splits]
    table = make_table(results['task'], '', *names, **BOXED)
    for metric in dict.fromkeys(itertools.chain(*splits.values())):
        marked = f'{metric} *' if metric == results['score'] else metric
        table.add_row(marked, *(format_value(values.get(metric)) for values in splits.values()))
    return table
