"""The page of a benchmark: a table of its tasks with links to their pages."""

import pathlib
from collections.abc import Collection

from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.benchmark_table import SUBMISSION, averages, summarise
from bertjax.finetune.results import RESULTS
from bertjax.metrics.glue import OFFICIAL
from bertjax.pages.page import Section, link, render_page
from bertjax.report.build import TEMPLATE
from bertjax.tasks.sentence.glue_table import TASKS


def benchmark_page(folder: pathlib.Path, linked: Collection[str]) -> str:
    """Returns the page of a benchmark as HTML. The page lists all tasks, finished or not.

    Args:
      linked: The tasks with a page TASK/report.html.
    """
    lacking = read_json_or_none(folder / RESULTS, lambda summary: dict(summary['lacking'])) or {}
    summary, rows = summarise(folder, lacking)
    count = summary['averaged_tasks']
    tiles = {'tasks': (count, f'finished, of {len(OFFICIAL)}')}
    tiles |= {name: (value, 'of 100') for name, value in averages(summary) if count}
    data = {
        'tiles': tiles,
        'rows': [
            (link(title, f'{task}/report.html') if task in linked else title, *rest)
            for task, (title, *rest) in zip(OFFICIAL, rows, strict=True)
        ],
        'lacking': {TASKS[task].title: reason for task, reason in lacking.items() if task not in summary['tasks']},
        'submission': SUBMISSION if (folder / SUBMISSION).exists() else '',
    }
    about = 'Scores in per cent. A task links to its page, with its curves, errors and config.'
    sections = [Section('tasks', 'Tasks', data, about)]
    return render_page(TEMPLATE, f'Benchmark: {folder.resolve().name}', 'GLUE, dev', sections)
