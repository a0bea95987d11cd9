"""The few figures that matter most, and where the run stands."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.metrics.rows import with_pair_names
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.pretrain.chance_baselines import ChanceBaselines
from bertjax.pretrain.heldout_texts import rows_of_texts
from bertjax.report.run_record import Run
from bertjax.writers.console import format_value


def overview(run: Run, levels: ChanceBaselines) -> Section:
    """Of any run."""
    tiles, notes = {}, []
    total = run.config.get('steps')
    if run.rows:
        finished = run.steps == total
        ended = '' if finished or not isinstance(total, int) else f'of {total:,}'
        tiles['steps'] = (f'{run.steps:,}', ended or 'all of them')
    elif not (run.is_sweep or run.is_evaluation):
        notes.append(parts.note('No step has been trained here, or its rows are gone.'))
    tiles |= _of_task(run) if run.is_task else _of_pretraining(run, levels)
    speeds = [row['sequences_per_s'] for row in run.rows if row['split'] == 'train' and row.get('sequences_per_s')]
    if speeds:
        tiles['speed'] = (f'{sorted(speeds)[len(speeds) // 2]:,.0f}', 'sequences a second, median')
    skipped = max((row.get('skipped') or 0 for row in run.rows if row['split'] == 'train'), default=0)
    if skipped:
        notes.append(parts.warning(f'{skipped:,} steps were skipped, because loss or gradient were not finite.'))
    return Section('overview', 'Overview', [*([parts.tiles(tiles)] if tiles else []), *notes])


def _of_pretraining(run: Run, levels: ChanceBaselines) -> dict[str, tuple[str, str]]:
    rows = [with_pair_names(row, levels.pair) for row in run.rows]
    heldout = [row for row in rows if row['split'] == 'heldout']
    tiles = {}
    if heldout:
        figure, called = _loss(heldout)
        remark = _at_first(heldout, figure)
        if figure == 'mlm_loss' and levels.unigram is not None:
            remark += f'; without context {levels.unigram:.3f}'
        tiles[f'held-out {called}'] = (format_value(heldout[-1].get(figure)), remark)
        last = heldout[-1]
        if last.get('mlm_accuracy') is not None:
            tiles['held-out MLM accuracy'] = (format_value(last['mlm_accuracy']), _at_first(heldout, 'mlm_accuracy'))
        pair = f'{levels.pair}_accuracy'
        if last.get(pair) is not None:
            always = levels.majority.get(last['phase'])
            remark = f'always the same answer: {always:.3f}' if always is not None else ''
            tiles[f'held-out {levels.pair.upper()} accuracy'] = (format_value(last[pair]), remark)
    for name, mine in rows_of_texts(rows).items():
        figure, called = _loss(mine)
        tiles[f'{called} on {name}'] = (format_value(mine[-1].get(figure)), _at_first(mine, figure))
    return tiles


def _loss(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The loss that says most of these rows, and what it is called: a student may predict nothing."""
    return ('mlm_loss', 'MLM loss') if rows[-1].get('mlm_loss') is not None else ('loss', 'loss')


def _at_first(rows: Sequence[Mapping[str, Any]], figure: str) -> str:
    return f'{format_value(rows[0].get(figure))} at step {rows[0]["step"]:,}'


def _of_task(run: Run) -> dict[str, tuple[str, str]]:
    results = run.results()
    if not results:
        return {}
    score = results.get('score', '')
    tiles = {f'{score} on {name}': (format_value(x.get(score)), '') for name, x in results['splits'].items()}
    if results.get('collapsed'):
        tiles['answers'] = ('all the same', 'the run has learned nothing')
    return tiles
