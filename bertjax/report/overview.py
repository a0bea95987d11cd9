"""The most important numbers and the speed of a run."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.pages.charts import BarChart, Chart
from bertjax.pages.page import Section
from bertjax.pretrain.chance_baselines import ChanceBaselines
from bertjax.pretrain.heldout import group_rows_by_text
from bertjax.report.curves import make_curves
from bertjax.report.run_record import Run
from bertjax.training.health.goodput import read_goodput
from bertjax.training.health.goodput_clock import SLOW, TIMES
from bertjax.writers.console import format_value

Tiles = dict[str, tuple[str, str]]
_GIB = 2**30
_RATES = (
    ('sequences a second', 'sequences_per_s', ',.1f', 1),
    ('real tokens a second', 'tokens_per_s', ',.0f', 1),
    ('seconds a step', 'seconds_per_step', '.4f', 1),
    ('waited for data', 'data_wait', '.1%', 1),
    ('model FLOPs utilization', 'mfu', '.1%', 1),
    ('host memory, GiB', 'host_memory', '.2f', _GIB),
    ('device memory, GiB', 'device_memory', '.2f', _GIB),
)


def overview_section(run: Run, baselines: ChanceBaselines) -> Section:
    """Returns the section with the most important numbers."""
    train = run.rows_of('train')
    tiles: Tiles = {}
    if run.rows:
        total = run.total_steps
        remark = 'all of them' if run.steps == total else 'so far' if total is None else f'of {total:,}'
        tiles['steps'] = (f'{run.steps:,}', remark)
    tiles |= _task_tiles(run) if run.is_task else _pretraining_tiles(run, baselines)
    speeds = [row['sequences_per_s'] for row in train if row.get('sequences_per_s')]
    if speeds:
        tiles['speed'] = (f'{statistics.median_high(speeds):,.0f}', 'sequences a second, median')
    skipped = max((row.get('skipped') or 0 for row in train), default=0)
    has_no_rows = not (run.rows or run.is_sweep or run.is_evaluation)
    return Section('overview', 'Overview', {'tiles': tiles, 'skipped': skipped, 'has_no_rows': has_no_rows})


def _pretraining_tiles(run: Run, baselines: ChanceBaselines) -> Tiles:
    tiles: Tiles = {}
    heldout = run.rows_of('heldout')
    if heldout:
        last, accuracy = heldout[-1], f'{baselines.pair}_accuracy'
        name, (value, remark) = _loss_tile(heldout)
        if name == 'MLM loss' and baselines.unigram is not None:
            remark += f'; without context {baselines.unigram:.3f}'
        tiles[f'held-out {name}'] = (value, remark)
        if last.get('mlm_accuracy') is not None:
            tiles['held-out MLM accuracy'] = (format_value(last['mlm_accuracy']), _first_value(heldout, 'mlm_accuracy'))
        if last.get(accuracy) is not None:
            majority = baselines.majority.get(last['phase'])
            remark = f'always the same answer: {majority:.3f}' if majority is not None else ''
            tiles[f'held-out {baselines.pair.upper()} accuracy'] = (format_value(last[accuracy]), remark)
    for text, rows in group_rows_by_text(run.rows).items():
        name, tile = _loss_tile(rows)
        tiles[f'{name} on {text}'] = tile
    return tiles


def _loss_tile(rows: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[str, str]]:
    """Returns the name and the tile of the MLM loss, or of the total loss if there is no MLM loss."""
    key, name = ('mlm_loss', 'MLM loss') if rows[-1].get('mlm_loss') is not None else ('loss', 'loss')
    return name, (format_value(rows[-1].get(key)), _first_value(rows, key))


def _first_value(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    return f'{format_value(rows[0].get(key))} at step {rows[0]["step"]:,}'


def _task_tiles(run: Run) -> Tiles:
    results = run.results() or {'splits': {}}
    score = results.get('score', '')
    tiles = {
        f'{score} on {split}': (format_value(values.get(score)), '') for split, values in results['splits'].items()
    }
    if results.get('collapsed'):
        tiles['answers'] = ('nearly all the same', '')
    return tiles


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
        'chart': Chart('Sequences a second', make_curves('speed', rows, 'sequences_per_s', 'teal'), height=280),
        'rates': rates,
        'goodput': goodput,
        'lost': BarChart('Share of the wall time outside productive steps', lost) if lost else None,
        'slowest': max(goodput.slow, key=lambda row: row['slow']) if goodput and goodput.slow else None,
        'slow_factor': SLOW,
        'file': TIMES,
    }
    return Section('speed', 'Speed', data)
