"""The page of a benchmark: the table of its tasks, each of which leads to the page of its own."""

import pathlib
from collections.abc import Collection

from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.benchmark_table import SUBMISSION, averages, summarise
from bertjax.finetune.results import RESULTS
from bertjax.metrics.glue import OFFICIAL
from bertjax.pages import parts
from bertjax.pages.page import Section, page
from bertjax.tasks.sentence.glue_table import TASKS


def benchmark_page(folder: pathlib.Path, linked: Collection[str]) -> str:
    """The page of all tasks, as HTML; finished or not.

    Args:
      folder: the workdir.
      linked: the tasks that have a page of their own, TASK/report.html.
    """
    lacking = read_json_or_none(folder / RESULTS, lambda summary: dict(summary['lacking'])) or {}
    summary, rows = summarise(folder, lacking)
    count = summary['averaged_tasks']
    tiles = {'tasks': (f'{count}', f'finished, of {len(OFFICIAL)}')}
    tiles |= {name: (value, 'of 100') for name, value in averages(summary) if count}
    cells = [
        (parts.link(title, f'{task}/report.html') if task in linked else title, *rest)
        for task, (title, *rest) in zip(OFFICIAL, rows, strict=True)
    ]
    body = [parts.tiles(tiles), parts.table(['task', 'dev', 'figures', 'score'], cells, text=(0, 2))]
    still = {task: what for task, what in lacking.items() if task not in summary['tasks']}
    body += [parts.note(f'{TASKS[task].title}: {what}') for task, what in still.items()]
    if (folder / SUBMISSION).exists():
        body.append(parts.note(f'{SUBMISSION}, beside this page, is for gluebenchmark.com.'))
    about = 'Figures in per cent; a task leads to its own page: its curves, its errors, its config.'
    return page(f'Benchmark: {folder.resolve().name}', 'GLUE, dev', [Section('tasks', 'Tasks', body, about)])
