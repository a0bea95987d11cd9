"""Charts of the metrics by step, with the chance baselines. run=plot draws `main_charts` and `teacher_charts`."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.metrics.rows import PAIRS, distillation_names
from bertjax.pages.charts import COLORS, Chart, Curve
from bertjax.pages.page import Section
from bertjax.pretrain.chance_baselines import ChanceBaselines
from bertjax.pretrain.heldout import PREFIX, group_rows_by_text
from bertjax.report.run_record import Run

MetricRows = Sequence[Mapping[str, Any]]
_SMALL = 260  # the height of a small chart, in pixels
_POSITION = ('step', 'split', 'phase', 'examples')  # the keys of a row that are not metrics
_TITLES = {
    'nsp_accuracy': 'Next sentence or not',
    'sop_accuracy': 'Order of two segments',
    # The losses of distill/objective.py.
    'soft_loss': "The teacher's outputs",
    'label_loss': 'Labels',
    'cosine_loss': 'Direction of the last hidden states',
    'hidden_loss': 'Hidden states',
    'attention_loss': 'Attention scores',
    'embeddings_loss': 'Embeddings',
}


def curves_section(run: Run, baselines: ChanceBaselines) -> Section | None:
    """Returns the section with the charts, or None for a run without rows, such as a sweep."""
    if not run.rows:
        return None
    charts = {
        'large': main_charts(run.rows, baselines),
        'teacher': teacher_charts(run.rows),
        'small': _training_charts(run.rows),
    }
    return Section('curves', 'Curves', charts, 'Drag a box to zoom; double-click to reset the zoom.')


def make_curves(name: str, rows: Iterable[Mapping[str, Any]], key: str, color: str, kind: str = 'line') -> list[Curve]:
    """Returns a list with one curve, the values of `key` by step, or [] if no row has a value."""
    points = [(row['step'], row[key]) for row in rows if row.get(key) is not None]
    return [Curve(name, *map(list, zip(*points, strict=True)), color, kind)] if points else []


def main_charts(rows: MetricRows, baselines: ChanceBaselines) -> list[Chart]:
    """Returns charts of the main losses, the accuracy on pairs, the held-out texts, and every further split."""
    mlm = _train_and_heldout(rows, 'mlm_loss')
    if mlm and baselines.unigram is not None:
        name = f'unigram entropy, {baselines.unigram:.2f}'
        mlm.append(Curve(name, [0, rows[-1]['step']], [baselines.unigram] * 2, 'red', 'level'))
    charts = [Chart('Masked language model', mlm, 'loss (nats)')]
    if distillation_names(rows) or not mlm:
        charts.append(Chart('Training objective', _train_and_heldout(rows, 'loss'), 'loss'))
    for key in (f'{pair}_accuracy' for pair in PAIRS):
        if accuracy := _train_and_heldout(rows, key):
            charts.append(Chart(_TITLES[key], accuracy + _majority(rows, baselines), 'accuracy'))
    if texts := group_rows_by_text(rows):
        texts['held out of the corpus'] = [row for row in rows if row['split'] == 'heldout']
        key = 'mlm_loss' if mlm else 'loss'
        lines = _colored((name, of_text, key) for name, of_text in texts.items())
        charts.append(Chart('Held-out texts', lines, 'loss'))
    for split in dict.fromkeys(row['split'] for row in rows):
        if split not in ('train', 'heldout') and not split.startswith(PREFIX):
            split_rows = [row for row in rows if row['split'] == split]
            keys = [key for key in split_rows[-1] if key not in _POSITION]
            lines = _colored((key.replace('_', ' '), split_rows, key) for key in keys)
            charts.append(Chart(f'Metrics on {split}', lines))
    return [chart for chart in charts if chart.curves]


def teacher_charts(rows: MetricRows) -> list[Chart]:
    """Returns a separate chart for each distillation loss, because the losses differ by orders of magnitude."""
    charts = [
        Chart(_TITLES.get(key, key), _train_and_heldout(rows, key), key, height=_SMALL)
        for key in distillation_names(rows)
    ]
    return [chart for chart in charts if chart.curves]


def _training_charts(rows: MetricRows) -> list[Chart]:
    """Returns small charts of the accuracy on masks, the learning rate and the gradient norm."""
    train = [row for row in rows if row['split'] == 'train']
    charts = [
        Chart('Accuracy on masks', _train_and_heldout(rows, 'mlm_accuracy'), 'accuracy', height=_SMALL),
        Chart('Learning rate', make_curves('Learning rate', train, 'learning_rate', 'purple'), height=_SMALL),
        Chart('Norm of the gradient', make_curves('Norm of the gradient', train, 'grad_norm', 'orange'), height=_SMALL),
    ]
    return [chart for chart in charts if chart.curves]


def _train_and_heldout(rows: MetricRows, key: str) -> list[Curve]:
    train, heldout = ([row for row in rows if row['split'] == split] for split in ('train', 'heldout'))
    return make_curves('training', train, key, 'pale') + make_curves('held out', heldout, key, 'blue', 'dots')


def _colored(named: Iterable[tuple[str, MetricRows, str]]) -> list[Curve]:
    """Returns a curve for each (name, rows, key) with values. The colors repeat after the last of COLORS."""
    colors = itertools.cycle(COLORS)
    return [curve for name, rows, key in named for curve in make_curves(name, rows, key, next(colors), 'dots')]


def _majority(rows: MetricRows, baselines: ChanceBaselines) -> list[Curve]:
    """Returns a horizontal line at the majority baseline of each phase: the accuracy of a constant answer."""
    lines, begin = [], 0
    for phase in sorted({row['phase'] for row in rows}):
        end = max(row['step'] for row in rows if row['phase'] == phase)
        if phase in baselines.majority:
            share = baselines.majority[phase]
            lines.append(Curve(f'always the same answer, {share:.2f}', [begin, end], [share] * 2, 'red', 'level'))
        begin = end
    return lines
