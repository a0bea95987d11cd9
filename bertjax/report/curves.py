"""What was measured against the step, with the levels of a model that has learned nothing, as run=plot draws it."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from bertjax.metrics.rows import distillation_names, with_pair_names
from bertjax.pages import parts
from bertjax.pages.charts import Series, chart
from bertjax.pages.page import Section
from bertjax.pretrain.chance_baselines import ChanceBaselines
from bertjax.pretrain.heldout_texts import rows_of_texts
from bertjax.report.run_record import Run

COLORS = ('blue', 'orange', 'green', 'purple', 'teal', 'pink', 'red')
_SMALL = 260  # pixels of height
_PLACE = ('step', 'split', 'phase', 'examples')
# What a teacher teaches, as its parts are called in rows: see distill/objective.py.
_LESSONS = {
    'soft_loss': "The teacher's outputs",
    'label_loss': 'Labels',
    'cosine_loss': 'Direction of the last hidden states',
    'hidden_loss': 'Hidden states',
    'attention_loss': 'Attention scores',
    'embeddings_loss': 'Embeddings',
}
_TITLES = {'nsp': 'Next sentence or not', 'sop': 'Order of two segments'}


def curves(run: Run, levels: ChanceBaselines) -> Section | None:
    """Loss and figures of a run; None for a sweep, whose trials have their own."""
    if not run.rows:
        return None
    large, small = _of_task(run.rows) if run.is_task else _of_pretraining(run.rows, levels)
    body = [parts.columns(*large), *_of_a_lesson(run.rows)]
    body.append(parts.columns(*small, *_of_training(run.rows), narrow=True))
    return Section('curves', 'Curves', body, 'Drag a box to zoom, double-click to see all again.')


def curve(name: str, rows: Iterable[dict[str, Any]], figure: str, color: str, look: str = 'line') -> Series | None:
    """A figure of the rows that have it."""
    points = [(row['step'], row[figure]) for row in rows if row.get(figure) is not None]
    return Series(name, *map(list, zip(*points, strict=True)), color, look) if points else None


def both(rows: Sequence[dict[str, Any]], figure: str) -> list[Series]:
    """A figure in training and on held-out text."""
    train, heldout = ([row for row in rows if row['split'] == split] for split in ('train', 'heldout'))
    drawn = (curve('training', train, figure, 'pale'), curve('held out', heldout, figure, 'blue', 'dots'))
    return [one for one in drawn if one]


def _of_pretraining(rows: Sequence[dict[str, Any]], levels: ChanceBaselines) -> tuple[list[Markup], list[Markup]]:
    rows = [with_pair_names(row, levels.pair) for row in rows]
    last, charts = max(row['step'] for row in rows), []
    loss, accuracy = both(rows, 'mlm_loss'), both(rows, f'{levels.pair}_accuracy')
    if loss and levels.unigram is not None:
        name = f'how often each piece occurs, {levels.unigram:.2f}'
        loss.append(Series(name, [0, last], [levels.unigram] * 2, 'red', 'dashes'))
    if loss:
        charts.append(chart('Masked language model', loss, x='step', y='loss (nats)'))
    minimised = both(rows, 'loss')
    if minimised and (distillation_names(rows) or not loss):
        charts.append(chart('What is minimised', minimised, x='step', y='loss'))
    if accuracy:
        charts.append(chart(_TITLES[levels.pair], accuracy + _majority(rows, levels), x='step', y='accuracy'))
    charts += _of_texts(rows, 'mlm_loss' if loss else 'loss')
    filled = both(rows, 'mlm_accuracy')
    small = [chart('Masks filled rightly', filled, x='step', y='accuracy', height=_SMALL)] if filled else []
    return charts, small


def _majority(rows: Sequence[dict[str, Any]], levels: ChanceBaselines) -> list[Series]:
    drawn, begin = [], 0
    for phase in sorted({row['phase'] for row in rows}):
        end = max(row['step'] for row in rows if row['phase'] == phase)
        if phase in levels.majority:
            share = levels.majority[phase]
            drawn.append(Series(f'always the same answer, {share:.2f}', [begin, end], [share] * 2, 'red', 'dashes'))
        begin = end
    return drawn


def _of_texts(rows: Sequence[dict[str, Any]], figure: str) -> list[Markup]:
    """The loss on each further held-out text, beside that on what the corpus itself holds out."""
    texts, colors = rows_of_texts(rows), itertools.cycle(COLORS)
    own = [row for row in rows if row['split'] == 'heldout']
    drawn = [curve(name, mine, figure, next(colors), 'dots') for name, mine in texts.items()]
    drawn.append(curve('held out of the corpus', own, figure, 'quiet', 'dots'))
    return [chart('Held-out texts', [one for one in drawn if one], x='step', y='loss')] if texts else []


def _of_a_lesson(rows: Sequence[dict[str, Any]]) -> list[Markup]:
    """Each part of what a teacher teaches, before it is weighted; they differ by orders of magnitude."""
    drawn = {name: both(rows, name) for name in distillation_names(rows)}
    charts = [
        chart(_LESSONS.get(name, name), series, x='step', y=name, height=_SMALL)
        for name, series in drawn.items()
        if series
    ]
    return [parts.titled('What the teacher teaches', parts.columns(*charts, narrow=True))] if charts else []


def _of_task(rows: Sequence[dict[str, Any]]) -> tuple[list[Markup], list[Markup]]:
    train = curve('training', [row for row in rows if row['split'] == 'train'], 'loss', 'pale')
    charts = [chart('Training loss', [train], x='step', y='loss')] if train else []
    for split in dict.fromkeys(row['split'] for row in rows if row['split'] != 'train'):
        mine = [row for row in rows if row['split'] == split]
        names = [name for name in mine[-1] if name not in _PLACE]
        colors = itertools.cycle(COLORS)
        drawn = [curve(name.replace('_', ' '), mine, name, next(colors), 'dots') for name in names]
        if any(drawn):
            charts.append(chart(f'Figures on {split}', [one for one in drawn if one], x='step', y=''))
    return charts, []


def _of_training(rows: Sequence[dict[str, Any]]) -> list[Markup]:
    """How the optimiser fared."""
    train, charts = [row for row in rows if row['split'] == 'train'], []
    for title, figure, color in (
        ('Learning rate', 'learning_rate', 'purple'),
        ('Norm of the gradient', 'grad_norm', 'orange'),
    ):
        drawn = curve(title.lower(), train, figure, color)
        charts += [chart(title, [drawn], x='step', y='', height=_SMALL)] if drawn else []
    return charts
