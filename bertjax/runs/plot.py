"""run=plot: draws WORKDIR/metrics.jsonl as a picture, WORKDIR/learning_curve.png."""

import io
import pathlib
from typing import Any

from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.experiment.levels import Levels, levels_of
from bertjax.files.atomic import write_atomic
from bertjax.metrics.rows import with_pair_names
from bertjax.writers.jsonl import read_rows

TRAIN, HELDOUT, REFERENCE = '#b8c4d6', '#1f4e9c', '#b2452b'


def run(config: ConfigDict, workdir: str) -> None:
    """Draws what was measured against the step: MLM loss and pair accuracy, with the levels of a model that has learned
    nothing; of a fine-tuning the loss and the figures on dev.

    Raises:
      UserError: no metrics.jsonl or no row in it, or matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        mend = "install the extra 'plot': pip install -e '.[plot]'"
        raise UserError('--config.run=plot', 'no matplotlib', 'matplotlib to draw with', mend) from None
    matplotlib.use('Agg')
    folder = pathlib.Path(workdir)
    rows = _rows(folder / 'metrics.jsonl')
    path = folder / 'learning_curve.png'
    # What the workdir is, whatever the recipe.
    figure = _draw(rows, levels_of(folder)) if any('mlm_loss' in row for row in rows) else _draw_task(rows)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=144)
    write_atomic(path, picture.getvalue())
    print(f'drawn: {path}')


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(str(path), 'no such file', 'the metrics of a training run', 'train first, in this --workdir')
    rows = read_rows(path)
    if not rows:
        raise UserError(str(path), 'no row', 'at least one', 'let the run reach its first evaluation')
    return rows


def _draw(rows: list[dict[str, Any]], levels: Levels) -> Any:
    """A matplotlib figure with one panel, or two where there is a pair objective."""
    from matplotlib import pyplot as plt

    objective = 'sop' if any('sop_accuracy' in row for row in rows) else levels.pair
    rows, pair = [with_pair_names(row, objective) for row in rows], f'{objective}_accuracy'
    paired = any(row.get(pair) is not None for row in rows)
    figure, axes = plt.subplots(1, 2 if paired else 1, figsize=(11 if paired else 6.5, 4.2), squeeze=False)
    left = axes[0][0]
    _curves(left, rows, 'mlm_loss')
    if levels.unigram is not None:
        _level(left, levels.unigram, f'unigram entropy of the held-out text, {levels.unigram:.2f}')
    left.set(title='masked language model', ylabel='loss (nats)', xlabel='step')
    left.legend(frameon=False, loc='upper right')
    if paired:
        right = axes[0][1]
        _curves(right, rows, pair)
        begin = 0
        for phase in sorted({row['phase'] for row in rows}):
            end = max(row['step'] for row in rows if row['phase'] == phase)
            if phase in levels.majority:
                share = levels.majority[phase]
                _level(right, share, f'always the same answer, {share:.2f}', begin, end)
            begin = end
        title = {'nsp': 'next sentence or not', 'sop': 'order of two segments'}[objective]
        right.set(title=title, ylabel='accuracy', xlabel='step')
        lowest = min([0.4, *(row[pair] for row in rows if row[pair] is not None)])
        right.set_ylim(lowest - 0.02, 1.0)
        right.legend(frameon=False, loc='upper left')
    _tidy(figure)
    return figure


def _draw_task(rows: list[dict[str, Any]]) -> Any:
    """A matplotlib figure: the loss of training, and each figure on dev."""
    from matplotlib import pyplot as plt

    evaluated = [row for row in rows if row['split'] != 'train']
    figure, axes = plt.subplots(1, 2 if evaluated else 1, figsize=(11 if evaluated else 6.5, 4.2), squeeze=False)
    left = axes[0][0]
    _curves(left, rows, 'loss')
    left.set(title='training', ylabel='loss', xlabel='step')
    if evaluated:
        right = axes[0][1]
        for name in [name for name in evaluated[-1] if name not in ('step', 'split', 'phase', 'examples')]:
            points = [(row['step'], row[name]) for row in evaluated if row[name] is not None]
            if points:
                label = name.replace('_', ' ')
                right.plot(*zip(*points, strict=True), 'o-', markersize=3.5, linewidth=1.4, label=label)
        right.set(title=evaluated[-1]['split'], xlabel='step')
        right.legend(frameon=False, loc='upper left', bbox_to_anchor=(1.0, 1.0))
    _tidy(figure)
    return figure


def _tidy(figure: Any) -> None:
    for axis in figure.axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.set_xlim(left=0)
    figure.tight_layout()


def _curves(axis: Any, rows: list[dict[str, Any]], name: str) -> None:
    for split, color, style in (('train', TRAIN, '-'), ('heldout', HELDOUT, 'o-')):
        # Rows of a skipped step, as early versions wrote them, have no loss.
        points = [(row['step'], row[name]) for row in rows if row['split'] == split and row.get(name) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            label = {'train': 'training', 'heldout': 'held out'}[split]
            axis.plot(steps, values, style, color=color, markersize=3.5, linewidth=1.4, label=label)


def _level(axis: Any, value: float, text: str, begin: float = 0, end: float | None = None) -> None:
    """A dashed line from step `begin` to `end`, by default across the panel, called `text` in the legend."""
    end = axis.get_xlim()[1] if end is None else end
    axis.plot((begin, end), (value, value), color=REFERENCE, linewidth=0.9, linestyle='--', label=text)
