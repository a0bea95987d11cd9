"""How fast it was, and where its time went."""

import statistics
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from bertjax.pages import parts
from bertjax.pages.charts import chart
from bertjax.pages.page import Section
from bertjax.report.curves import curve
from bertjax.report.run_record import Run
from bertjax.writers.tensorboard import read_times


def speed(run: Run) -> Section | None:
    """Rates by step, memory, and the share of the time that went into steps which counted."""
    rows = [row for row in run.rows if row['split'] == 'train' and row.get('sequences_per_s')]
    if not rows:
        return None
    facts = []
    for name, figure, form in (
        ('sequences a second', 'sequences_per_s', '{:,.1f}'),
        ('real tokens a second', 'tokens_per_s', '{:,.0f}'),
        ('seconds a step', 'seconds_per_step', '{:.4f}'),
        ('waited for data', 'data_wait', '{:.1%}'),
        ('model FLOPs utilisation', 'mfu', '{:.1%}'),
        ('host memory, GiB', 'host_memory', '{:.2f}'),
        ('device memory, GiB', 'device_memory', '{:.2f}'),
    ):
        scale = 2**30 if figure.endswith('memory') else 1
        values = [row[figure] / scale for row in rows if row.get(figure) is not None]
        if values:
            cells = (statistics.median(values), min(values), max(values))
            facts.append((name, *(form.format(value) for value in cells)))
    body = [parts.table(['', 'median', 'least', 'most'], facts)]
    drawn = curve('speed', rows, 'sequences_per_s', 'teal')
    body = [parts.columns(chart('Sequences a second', [drawn], x='step', y='', height=280), *body)] if drawn else body
    return Section('speed', 'Speed', [*body, _goodput(run, rows)])


def _goodput(run: Run, rows: Sequence[dict[str, Any]]) -> Markup:
    """The share of the time of all processes, each from its first row to its last, that the steps took which are in
    the run; what was trained again after a kill, evaluation, saving and compiling is the rest."""
    processes = [times for times in read_times(run.folder / 'tensorboard') if len(times) > 1]
    seconds = sum(times[-1][2] - times[0][2] for times in processes)
    if seconds <= 0:
        return parts.note("Goodput is not known: TensorBoard's files, which have the times, are not there.")
    # Where a process begins with a row of training, the steps before that are not between two rows of it.
    beginnings = {step for (step, split, _), *_ in processes if split == 'train'}
    useful = sum(
        row['seconds_per_step'] * (row['step'] - before)
        for before, row in zip([0, *(row['step'] for row in rows[:-1])], rows, strict=True)
        if row['step'] not in beginnings
    )
    text = f'Goodput {min(useful / seconds, 1):.1%}: of {_clock(seconds)} between the first and the last row'
    text += f' of {len(processes)} processes' if len(processes) > 1 else ''
    return parts.note(f'{text}, {_clock(useful)} were steps of this run; the rest was evaluating, saving, compiling.')


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f'{minutes // 60} h {minutes % 60} min'
    return f'{minutes} min {rest} s' if minutes else f'{seconds:.1f} s'
