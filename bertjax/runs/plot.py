"""run=plot: draws WORKDIR/metrics.jsonl as a picture, WORKDIR/learning_curve.png."""

import itertools
import pathlib
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertjax.corpus.store import open_store
from bertjax.errors import UserError
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
    figure = _draw_task(rows) if 'task' in config else _draw(rows, unigram_entropy(folder / 'store'))
    figure.savefig(path, dpi=144)
    print(f'drawn: {path}')


def _rows(path: pathlib.Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise UserError(str(path), 'no such file', 'the metrics of a training run', 'train first, in this --workdir')
    rows = read_rows(path)
    if not rows:
        raise UserError(str(path), 'no row', 'at least one', 'let the run reach its first evaluation')
    return rows


def unigram_entropy(store: pathlib.Path) -> float | None:
    """Entropy in nats of the held-out tokens: the loss of a model that knows each piece's frequency and no context.

    Counted on the held-out text itself, so it is the best that any such model can do. None without a store.
    """
    if not (store / 'manifest.json').exists():
        return None
    split = open_store(store, tokenizer_fingerprint=None).split('heldout')
    counts = np.zeros(0, np.int64)
    offsets = split.sentence_offsets[split.document_offsets]  # first token of each document, and the end
    for start, end in itertools.pairwise(offsets):
        found = np.bincount(split.tokens(int(start), int(end - start)), minlength=len(counts))
        counts = found + np.pad(counts, (0, len(found) - len(counts)))
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) if len(shares) else None


def _draw(rows: list[dict[str, Any]], entropy: float | None) -> Any:
    """A matplotlib figure with one panel, or two where there is a pair objective."""
    from matplotlib import pyplot as plt

    paired = any(row['nsp_accuracy'] is not None for row in rows)
    figure, axes = plt.subplots(1, 2 if paired else 1, figsize=(11 if paired else 6.5, 4.2), squeeze=False)
    left = axes[0][0]
    _curves(left, rows, 'mlm_loss')
    if entropy is not None:
        _level(left, entropy, f'unigram entropy of the held-out text, {entropy:.2f}')
    left.set(title='masked language model', ylabel='loss (nats)', xlabel='step')
    left.legend(frameon=False, loc='upper right')
    if paired:
        right = axes[0][1]
        _curves(right, rows, 'nsp_accuracy')
        _level(right, 0.5, 'chance')
        right.set(title='sentence pairs', ylabel='accuracy', xlabel='step')
        right.set_ylim(0.4, 1.0)
    _tidy(figure)
    return figure


def _draw_task(rows: list[dict[str, Any]]) -> Any:
    """A matplotlib figure: the loss of training, and each figure on dev."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    _curves(left, rows, 'loss')
    left.set(title='training', ylabel='loss', xlabel='step')
    evaluated = [row for row in rows if row['split'] != 'train']
    for name in [name for name in evaluated[-1] if name not in ('step', 'split', 'phase', 'examples')]:
        points = [(row['step'], row[name]) for row in evaluated if row[name] is not None]
        if points:
            right.plot(*zip(*points, strict=True), 'o-', markersize=3.5, linewidth=1.4, label=name.replace('_', ' '))
    right.set(title=evaluated[-1]['split'], xlabel='step')
    right.legend(frameon=False)
    _tidy(figure)
    return figure


def _tidy(figure: Any) -> None:
    for axis in figure.axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.set_xlim(left=0)
    figure.tight_layout()


def _curves(axis: Any, rows: list[dict[str, Any]], name: str) -> None:
    for split, color, style in (('train', TRAIN, '-'), ('heldout', HELDOUT, 'o-')):
        points = [(row['step'], row[name]) for row in rows if row['split'] == split and row[name] is not None]
        if points:
            steps, values = zip(*points, strict=True)
            label = {'train': 'training', 'heldout': 'held out'}[split]
            axis.plot(steps, values, style, color=color, markersize=3.5, linewidth=1.4, label=label)


def _level(axis: Any, value: float, text: str) -> None:
    axis.axhline(value, color=REFERENCE, linewidth=0.9, linestyle='--')
    axis.annotate(
        text, (1.0, value), xycoords=('axes fraction', 'data'), xytext=(0, 3), textcoords='offset points',
        ha='right', fontsize=8, color=REFERENCE,
    )  # fmt: skip
