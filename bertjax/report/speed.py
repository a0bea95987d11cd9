"""How fast it was, and where its time went."""

import statistics

from markupsafe import Markup

from bertjax.pages import parts
from bertjax.pages.charts import chart
from bertjax.pages.page import Section
from bertjax.report.curves import curve
from bertjax.report.run_record import Run
from bertjax.train.goodput import read_goodput
from bertjax.train.goodput_clock import SLOW, TIMES


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
    return Section('speed', 'Speed', [*body, *_goodput(run)])


def _goodput(run: Run) -> list[Markup]:
    """Where the wall time went, of a run with its log."""
    found = read_goodput(run.folder)
    if found is None:
        return [parts.note(f'Goodput is not known: {TIMES}, which has the times, is not there.')]
    rest = {name: share for name, share in found.rest() if share >= 0.0005}
    body = [parts.note(f'Goodput {found}.')]
    if rest:
        bars = parts.bars(rest, {name: f'{share:.1%}' for name, share in rest.items()})
        body.append(parts.titled('Of the wall time, what were no steps of this run', bars))
    if found.slow:
        worst = max(found.slow, key=lambda row: row['slow'])
        text = f'{len(found.slow):,} steps took {SLOW} times the median or more, step {worst["step"]:,} the longest'
        body.append(parts.note(f'{text} ({worst["slow"]:.1f} s); {TIMES} has each, with what it was at.'))
    return body
