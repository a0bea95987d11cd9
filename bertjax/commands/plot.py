"""run=plot: draw the learning curve of WORKDIR, WORKDIR/learning_curve.png."""

import io
import itertools
import pathlib
from typing import Any

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import user_name
from bertjax.metrics.rows import distillation_names, with_pair_names
from bertjax.pretrain.chance_baselines import ChanceBaselines, read_chance_baselines
from bertjax.pretrain.heldout_texts import PREFIX, rows_of_texts
from bertjax.writers.jsonl import read_rows

VERB = Verb(devices=False, bucket='look')

TRAIN, HELDOUT, REFERENCE = '#b8c4d6', '#1f4e9c', '#b2452b'


def run(config: ConfigDict, workdir: str) -> None:
    """Draws what was measured against the step: MLM loss and pair accuracy, with the levels of a model that has learned
    nothing; further held-out texts; what a teacher teaches; of a fine-tuning the loss and the figures on dev.

    Raises:
      UserError: no metrics.jsonl or no row in it, or matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        fix = "install the extra 'plot': pip install -e '.[plot]'"
        raise UserError('--config.run=plot', 'no matplotlib', 'matplotlib to draw with', fix) from None
    matplotlib.use('Agg')
    folder = pathlib.Path(workdir)
    rows = _rows(folder / 'metrics.jsonl')
    path = folder / 'learning_curve.png'
    # What the workdir is, whatever the recipe.
    levels = read_chance_baselines(folder) if any('mlm_loss' in row for row in rows) else ChanceBaselines()
    figure = _draw(rows, levels)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=144)
    write_atomic(path, picture.getvalue())
    print(f'drawn: {user_name(path)}')


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(str(path), 'no such file', 'the metrics of a training run', 'train first, in this --workdir')
    rows = read_rows(path)
    if not rows:
        raise UserError(str(path), 'no row', 'at least one', 'let the run reach its first evaluation')
    return rows


def _draw(rows: list[dict[str, Any]], levels: ChanceBaselines) -> Any:
    """A matplotlib figure, with a panel for each kind of figure that the rows have."""
    from matplotlib import pyplot as plt

    objective = 'sop' if any('sop_accuracy' in row for row in rows) else levels.pair
    rows = [with_pair_names(row, objective) for row in rows]
    has = lambda name: any(row.get(name) is not None for row in rows)  # noqa: E731
    panels = [lambda axis: _masked(axis, rows, levels) if has('mlm_loss') else _loss(axis, rows)]
    if has(f'{objective}_accuracy'):
        panels.append(lambda axis: _pairs(axis, rows, objective, levels))
    if rows_of_texts(rows):
        panels.append(lambda axis: _texts(axis, rows, 'mlm_loss' if has('mlm_loss') else 'loss'))
    if distillation_names(rows):
        panels.append(lambda axis: _lesson(axis, rows))
    if _evaluated(rows):
        panels.append(lambda axis: _figures(axis, _evaluated(rows)))
    columns, lines = min(len(panels), 2), -(-len(panels) // 2)
    figure, axes = plt.subplots(lines, columns, figsize=(11 if columns > 1 else 6.5, 4.2 * lines), squeeze=False)
    for axis, draw in itertools.zip_longest(axes.flat, panels):
        if draw is None:
            axis.remove()
            continue
        draw(axis)
        axis.set(xlabel='step')
    _tidy(figure)
    return figure


def _masked(axis: Any, rows: list[dict[str, Any]], levels: ChanceBaselines) -> None:
    _curves(axis, rows, 'mlm_loss')
    if levels.unigram is not None:
        _level(axis, levels.unigram, f'unigram entropy of the held-out text, {levels.unigram:.2f}')
    axis.set(title='masked language model', ylabel='loss (nats)')
    axis.legend(frameon=False, loc='upper right')


def _loss(axis: Any, rows: list[dict[str, Any]]) -> None:
    _curves(axis, rows, 'loss')
    axis.set(title='training', ylabel='loss')
    if any(row['split'] == 'heldout' for row in rows):
        axis.legend(frameon=False, loc='upper right')


def _pairs(axis: Any, rows: list[dict[str, Any]], objective: str, levels: ChanceBaselines) -> None:
    pair, begin = f'{objective}_accuracy', 0
    _curves(axis, rows, pair)
    for phase in sorted({row['phase'] for row in rows}):
        end = max(row['step'] for row in rows if row['phase'] == phase)
        if phase in levels.majority:
            share = levels.majority[phase]
            _level(axis, share, f'always the same answer, {share:.2f}', begin, end)
        begin = end
    axis.set(title={'nsp': 'next sentence or not', 'sop': 'order of two segments'}[objective], ylabel='accuracy')
    lowest = min([0.4, *(row[pair] for row in rows if row.get(pair) is not None)])
    axis.set_ylim(lowest - 0.02, 1.0)
    axis.legend(frameon=False, loc='upper left')


def _texts(axis: Any, rows: list[dict[str, Any]], figure: str) -> None:
    """Further held-out texts, beside what the corpus itself holds out."""
    own = [row for row in rows if row['split'] == 'heldout']
    for name, mine in rows_of_texts(rows).items():
        _series(axis, mine, figure, name)
    _series(axis, own, figure, 'held out of the corpus', color=TRAIN)
    axis.set(title='held-out texts', ylabel='loss')
    _legend_beside(axis)


def _lesson(axis: Any, rows: list[dict[str, Any]]) -> None:
    """What a teacher teaches, in training, and what is minimised: they differ by orders of magnitude."""
    trained = [row for row in rows if row['split'] == 'train']
    for name in [*distillation_names(rows), 'loss']:
        _series(axis, trained, name, name.removesuffix('_loss'), style='-')
    axis.set(title='what the teacher teaches', ylabel='loss', yscale='log')
    _legend_beside(axis)


def _evaluated(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a task that are not of training."""
    return [row for row in rows if row['split'] not in ('train', 'heldout') and not row['split'].startswith(PREFIX)]


def _figures(axis: Any, rows: list[dict[str, Any]]) -> None:
    """Each figure of a task."""
    for name in [name for name in rows[-1] if name not in ('step', 'split', 'phase', 'examples')]:
        _series(axis, rows, name, name.replace('_', ' '))
    axis.set(title=rows[-1]['split'])
    _legend_beside(axis)


def _legend_beside(axis: Any) -> None:
    """For curves that may be anywhere."""
    axis.legend(frameon=False, loc='upper left', bbox_to_anchor=(1.0, 1.0))


def _series(axis: Any, rows: list[dict[str, Any]], name: str, label: str, style: str = 'o-', **look: Any) -> None:
    points = [(row['step'], row[name]) for row in rows if row.get(name) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), style, markersize=3.5, linewidth=1.4, label=label, **look)


def _tidy(figure: Any) -> None:
    for axis in figure.axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.set_xlim(left=0)
    figure.tight_layout()


def _curves(axis: Any, rows: list[dict[str, Any]], name: str) -> None:
    for split, color, style in (('train', TRAIN, '-'), ('heldout', HELDOUT, 'o-')):
        # Rows of a skipped step, as early versions wrote them, have no loss.
        label = {'train': 'training', 'heldout': 'held out'}[split]
        _series(axis, [row for row in rows if row['split'] == split], name, label, style, color=color)


def _level(axis: Any, value: float, text: str, begin: float = 0, end: float | None = None) -> None:
    """A dashed line from step `begin` to `end`, by default across the panel, called `text` in the legend."""
    end = axis.get_xlim()[1] if end is None else end
    axis.plot((begin, end), (value, value), color=REFERENCE, linewidth=0.9, linestyle='--', label=text)
