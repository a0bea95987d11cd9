"""run=report: write WORKDIR/report.html, an HTML page about the run in WORKDIR."""

import pathlib
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.plain import to_plain
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import display_path
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.benchmark import SUBMISSION, averages, recipe_of_task, summarize
from bertjax.finetune.results import RESULTS
from bertjax.metrics.glue import OFFICIAL
from bertjax.pages.charts import check_plotly
from bertjax.pages.page import Section, link, render_page
from bertjax.report.build import TEMPLATE, build_page
from bertjax.report.run_record import read_run
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.workdir.lock import REQUEST

VERB = Verb(devices=False)


def run(config: ConfigDict, workdir: str, recipe: str) -> None:
    """Writes the page of a run, a sweep, an evaluation or a corpus. The run may be unfinished, and of another recipe.

    For a benchmark the verb writes one page about all tasks, and a page about each task that has started.

    Raises:
      UserError: The workdir has no run, corpus or evaluation, its config.json is damaged, the recipe lacks the corpus
        or the task, or Plotly is not installed.
    """
    check_plotly()
    folder, values = pathlib.Path(workdir), to_plain(config)
    # A benchmark, finished or not. Its workdir may also have a pre-training run, and then the recipe chooses.
    if (folder / REQUEST).exists() and ('task' in values or not (folder / 'config.json').exists()):
        _write(folder, _benchmark_page(folder, _write_task_pages(values, folder, recipe)))
    else:
        _write(folder, build_page(read_run(values, folder, recipe)))


def _write_task_pages(config: Mapping[str, Any], folder: pathlib.Path, recipe: str) -> list[str]:
    """Writes a page in the workdir of each task that has started, and returns the names of the tasks with a page."""
    tasks = []
    for task in TASKS:
        if not (folder / task / 'config.json').exists():
            continue
        name = recipe_of_task(recipe, task) if config.get('task', {}).get('kind') == 'glue' else recipe
        try:
            _write(folder / task, build_page(read_run(config, folder / task, name)))
        except UserError as error:
            print(f'no page about {TASKS[task].title}: {error}')
            continue
        tasks.append(task)
    return tasks


def _benchmark_page(folder: pathlib.Path, linked: Collection[str]) -> str:
    """Returns the page of a benchmark, with all its tasks. `linked` are the tasks with a page TASK/report.html."""
    missing = read_json_or_none(folder / RESULTS, lambda summary: dict(summary['missing_data'])) or {}
    summary, rows = summarize(folder, missing)
    count = summary['averaged_tasks']
    tiles = {'tasks': (count, f'finished, of {len(OFFICIAL)}')}
    tiles |= {name: (value, 'of 100') for name, value in averages(summary) if count}
    data = {
        'tiles': tiles,
        'rows': [
            (link(title, f'{task}/report.html') if task in linked else title, *rest)
            for task, (title, *rest) in zip(OFFICIAL, rows, strict=True)
        ],
        'missing_data': {TASKS[task].title: reason for task, reason in missing.items() if task not in summary['tasks']},
        'submission': SUBMISSION if (folder / SUBMISSION).exists() else '',
    }
    about = 'Scores in per cent. A task links to its page, with its curves, errors and config.'
    sections = [Section('tasks', 'Tasks', data, about)]
    return render_page(TEMPLATE, f'Benchmark: {folder.resolve().name}', 'GLUE, dev', sections)


def _write(folder: pathlib.Path, text: str) -> None:
    path = folder / 'report.html'
    write_atomic(path, text)
    print(f'written: {display_path(path)}, which any browser opens ({len(text) / 2**20:.1f} MB)')
