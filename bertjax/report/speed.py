"""The speed of the run, its memory and its goodput."""

import statistics

from bertjax.pages.charts import BarChart, Chart
from bertjax.pages.page import Section
from bertjax.report.curves import make_curve
from bertjax.report.run_record import Run
from bertjax.train.health.goodput import read_goodput
from bertjax.train.health.goodput_clock import SLOW, TIMES

_GIB = 2**30
_RATES = (
    ('sequences a second', 'sequences_per_s', ',.1f', 1),
    ('real tokens a second', 'tokens_per_s', ',.0f', 1),
    ('seconds a step', 'seconds_per_step', '.4f', 1),
    ('waited for data', 'data_wait', '.1%', 1),
    ('model FLOPs utilisation', 'mfu', '.1%', 1),
    ('host memory, GiB', 'host_memory', '.2f', _GIB),
    ('device memory, GiB', 'device_memory', '.2f', _GIB),
)


def speed_section(run: Run) -> Section | None:
    """Returns the section with the rates, the memory and the goodput, or None for a run without rates."""
    rows = [row for row in run.rows_of('train') if row.get('sequences_per_s')]
    if not rows:
        return None
    rates = []
    for name, key, form, unit in _RATES:
        if values := [row[key] / unit for row in rows if row.get(key) is not None]:
            rates.append((name, *(format(x, form) for x in (statistics.median(values), min(values), max(values)))))
    goodput = read_goodput(run.folder)
    lost = {name: (share, f'{share:.1%}') for name, share in goodput.rest() if share >= 0.0005} if goodput else {}
    data = {
        'chart': Chart('Sequences a second', [make_curve('speed', rows, 'sequences_per_s', 'teal')], height=280),
        'rates': rates,
        'goodput': goodput,
        'lost': BarChart('Share of the wall time outside productive steps', lost) if lost else None,
        'slowest': max(goodput.slow, key=lambda row: row['slow']) if goodput and goodput.slow else None,
        'slow_factor': SLOW,
        'file': TIMES,
    }
    return Section('speed', 'Speed', data)
