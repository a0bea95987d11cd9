"""The few figures that matter most, and where the run stands."""

from bertjax.experiment.levels import Levels
from bertjax.metrics.rows import with_pair_names
from bertjax.pages import parts
from bertjax.pages.page import Section
from bertjax.report.run import Run
from bertjax.writers.console import shown


def overview(run: Run, levels: Levels) -> Section:
    """Of any run."""
    tiles, notes = {}, []
    total = run.config.get('steps')
    if run.rows:
        finished = run.steps == total
        ended = '' if finished or not isinstance(total, int) else f'of {total:,}'
        tiles['steps'] = (f'{run.steps:,}', ended or 'all of them')
    elif not run.is_sweep:
        notes.append(parts.note('No step has been trained here, or its rows are gone.'))
    tiles |= _of_task(run) if run.is_task else _of_pretraining(run, levels)
    speeds = [row['sequences_per_s'] for row in run.rows if row['split'] == 'train' and row.get('sequences_per_s')]
    if speeds:
        tiles['speed'] = (f'{sorted(speeds)[len(speeds) // 2]:,.0f}', 'sequences a second, median')
    skipped = max((row.get('skipped') or 0 for row in run.rows if row['split'] == 'train'), default=0)
    if skipped:
        notes.append(parts.warning(f'{skipped:,} steps were skipped, because loss or gradient were not finite.'))
    return Section('overview', 'Overview', [*([parts.tiles(tiles)] if tiles else []), *notes])


def _of_pretraining(run: Run, levels: Levels) -> dict[str, tuple[str, str]]:
    heldout = [with_pair_names(row, levels.pair) for row in run.rows if row['split'] == 'heldout']
    tiles = {}
    if heldout:
        first, last = heldout[0], heldout[-1]
        remark = f'{shown(first.get("mlm_loss"))} at step {first["step"]:,}'
        remark += f'; without context {levels.unigram:.3f}' if levels.unigram is not None else ''
        tiles['held-out MLM loss'] = (shown(last.get('mlm_loss')), remark)
        tiles['held-out MLM accuracy'] = (shown(last.get('mlm_accuracy')), f'{shown(first.get("mlm_accuracy"))} before')
        pair = f'{levels.pair}_accuracy'
        if last.get(pair) is not None:
            always = levels.majority.get(last['phase'])
            remark = f'always the same answer: {always:.3f}' if always is not None else ''
            tiles[f'held-out {levels.pair.upper()} accuracy'] = (shown(last[pair]), remark)
    return tiles


def _of_task(run: Run) -> dict[str, tuple[str, str]]:
    results = run.results()
    if not results:
        return {}
    score = results.get('score', '')
    tiles = {f'{score} on {name}': (shown(x.get(score)), '') for name, x in results['splits'].items()}
    if results.get('collapsed'):
        tiles['answers'] = ('all the same', 'the run has learned nothing')
    return tiles
