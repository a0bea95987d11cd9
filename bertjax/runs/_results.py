"""The end of a run over a task: figures, predictions, the export, and what a person wants to see."""

import json
import pathlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.orbax import export_orbax, head_facts
from bertjax.files import write_atomic
from bertjax.runs._task import LEARNED, Split
from bertjax.runs._tuning import TaskEvaluator, Tuning
from bertjax.tasks.task import Task
from bertjax.writers.console import shown

RESULTS = 'results.json'
EXPORTED = 'export/cell.txt'  # of a sweep: the cell whose model is in export/


def finish_task(folder: pathlib.Path, plan: Mapping[str, Any], tuning: Tuning, params: Any) -> dict[str, Any]:
    """Evaluates every labelled split, writes results.json, the predictions, the export; prints. Returns the results."""
    data, task = tuning.data, tuning.data.task
    console = Console(highlight=False, soft_wrap=True)
    results: dict[str, Any] = {'task': task.name, 'score': task.score, **run_facts(plan), 'collapsed': None}
    results['splits'] = {}
    for name in data.evaluated:
        split = data.split(name)
        predictions = TaskEvaluator(tuning, split).predictions(params)
        if name == 'dev':
            task.tune(split.records, predictions)
            results['collapsed'] = task.collapsed(split.records, predictions)
        results['splits'][name] = task.metrics(split.records, predictions)
        write_predictions(folder / 'predictions', task, name, split, predictions)
        report = task.report(split.records, predictions)
        if report:
            console.print(f'\n{task.name}, {name}', style='bold')
            console.print(report, markup=False)
    write_atomic(folder / LEARNED, data.learned())
    write_atomic(folder / RESULTS, json.dumps(results, indent=2) + '\n')
    if tuning.config.export:
        export_task(folder, plan, tuning, params, results)
    if results['splits']:
        console.print(results_table(results))
    if results['collapsed']:
        mend = 'another --config.seed, a lower learning rate or more steps usually help'
        console.print(f'the run learned nothing: it gives every record of dev the same answer; {mend}', markup=False)
    _print_places(console, folder, tuning.config.export)
    return results


def exported_cell(folder: pathlib.Path) -> str | None:
    """The cell of a sweep whose model is in export/; None in a workdir without a sweep, or before the first export."""
    path = folder / EXPORTED
    return path.read_text(encoding='utf-8').strip() if path.exists() else None


def run_facts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What tells one run over a task from another."""
    keys = (
        'init',
        'seed',
        'train',
        'epochs',
        'steps',
        'batch_size',
        'seq_len',
        'learning_rate',
        'layer_decay',
        'select',
    )
    return {key: plan[key] for key in keys}


def export_task(
    folder: pathlib.Path, plan: Mapping[str, Any], tuning: Tuning, params: Any, results: Mapping[str, Any]
) -> None:
    """export/hf and export/orbax of a task's model, with task.json beside the Hugging Face files."""
    data = tuning.data
    card: dict[str, Any] = {'title': f'BERT for {data.task.name}, trained with bertjax'}
    card |= {key.replace('_', ' '): value for key, value in run_facts(plan).items() if key != 'init'}
    card |= {
        f'Split {name}': {key: value for key, value in values.items() if value is not None}
        for name, values in results['splits'].items()
    }
    target = folder / 'export' / 'hf'
    head = data.task.huggingface()
    params = jax.device_get(params)
    beside = {LEARNED: data.learned()}
    export_huggingface(params, data.encoder, data.tokenizer, target, card=card, head=head, beside=beside)
    export_orbax(params, data.encoder, folder / 'export' / 'orbax', head=head_facts(tuning.model))


def write_predictions(
    folder: pathlib.Path, task: Task, name: str, split: Split, predictions: Sequence[Any]
) -> list[pathlib.Path]:
    """FOLDER/SPLIT.jsonl with a line a record; the benchmark's own files in FOLDER/SPLIT/ and, zipped, SPLIT.zip."""
    written = [folder / f'{name}.jsonl']
    write_atomic(written[0], json_lines(task.rows(split.records, predictions)))
    official = task.official_files(name, split.records, predictions)
    for file, text in official.items():
        written.append(folder / name / file)
        write_atomic(written[-1], text)
    if official:
        written.append(folder / f'{name}.zip')
        write_zip(written[-1], official)
    return written


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """A line a row."""
    return ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows)


def write_zip(path: pathlib.Path, files: Mapping[str, str]) -> None:
    """An archive without dates: equal files give equal bytes."""
    temporary = path.with_name(f'.{path.name}.tmp')
    with zipfile.ZipFile(temporary, 'w', zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    temporary.replace(path)


def results_table(results: Mapping[str, Any]) -> Table:
    """A column a split, a row a figure."""
    splits = results['splits']
    table = Table(title=f'{results["task"]}', title_justify='left')
    table.add_column('')
    for name in splits:
        table.add_column(name, justify='right')
    for metric in next(iter(splits.values())):
        marked = f'{metric} *' if metric == results['score'] else metric
        table.add_row(marked, *(shown(values.get(metric)) for values in splits.values()))
    return table


def _print_places(console: Console, folder: pathlib.Path, exported: bool) -> None:
    console.print('\nwhere everything lies', style='bold')
    for name, what in (
        ('results.json', 'the figures above'),
        ('predictions', "a line a record, and the benchmark's own files"),
        ('export/hf', 'for transformers: from_pretrained(...)' if exported else ''),
        ('metrics.jsonl', 'every step; also in tensorboard/'),
    ):
        if what and (folder / name).exists():
            console.print(f'  {folder / name}  {what}', markup=False)
