"""Labels and scores for a person to read: how they are distributed, and how well they were predicted."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.metrics.classification import ClassScores, class_scores
from bertjax.tasks.sentence.labels import Labelled, odd_labels

_FEW = 10  # a label with fewer records can hardly be learned
_RARE = 0.01  # a label with a smaller share is reported as rare
_MATRIX = 20  # up to so many labels the whole confusion table is shown
_BANDS = 5


def describe_labels(counts: Mapping[str, int], records: Sequence[Labelled]) -> str:
    """Counts and shares of the labels, the accuracy of always guessing the most frequent, and what looks wrong."""
    total = len(records)
    width = max(map(len, counts))
    order = sorted(counts, key=lambda label: -counts[label])
    lines = [f'{total:,} records for training, {len(counts)} labels']
    lines += [f'  {label:{width}}  {counts[label]:>9,}  {counts[label] / total:6.1%}' for label in order]
    lines.append(f'always {order[0]!r} would be right in {counts[order[0]] / total:.1%}')
    least = order[-1]
    if counts[least] < _RARE * total:
        lines.append(f'warning: only {counts[least]:,} of {total:,} are {least!r}: look at its recall, not at accuracy')
    elif counts[least] < _FEW:
        lines.append(f'warning: only {counts[least]:,} records are {least!r}: too few to learn it well')
    return '\n'.join(lines + odd_labels(counts, records) + _oddities(records))


def describe_label_sets(counts: Mapping[str, int], records: Sequence[Labelled]) -> str:
    """Counts and shares of the labels of records that may have several, and what looks wrong."""
    total, width = len(records), max(map(len, counts))
    lines = [f'{total:,} records for training, {len(counts)} labels, {sum(counts.values()) / total:.2f} a record']
    order = sorted(counts, key=lambda label: -counts[label])
    lines += [f'  {label:{width}}  {counts[label]:>9,}  {counts[label] / total:6.1%}' for label in order]
    bare = sum(not record.label for record in records)
    lines += [f'{bare:,} records have no label'] if bare else []
    least = order[-1]
    if counts[least] < _FEW:
        lines.append(f'warning: only {counts[least]:,} of {total:,} are {least!r}: look at its recall')
    return '\n'.join(lines + _oddities(records))


def describe_values(records: Sequence[Labelled]) -> str:
    """The range and spread of the scores, and what looks wrong."""
    values = np.array([record.label for record in records], np.float64)
    lines = [
        f'{len(values):,} records for training, scores from {values.min():g} to {values.max():g}, '
        f'mean {values.mean():.3f}, standard deviation {values.std():.3f}'
    ]
    if values.std() == 0:
        lines.append('warning: all scores are equal, there is nothing to learn')
    return '\n'.join(lines + _oddities(records))


def _oddities(records: Sequence[Labelled]) -> list[str]:
    """Lines about empty texts and about repeated texts, some with another label."""
    lines = []
    empty = [record.where for record in records if not record.first.strip() or record.second == '']
    if empty:
        lines.append(f'warning: {len(empty):,} records with an empty text, the first at {empty[0]}')
    seen: dict[tuple[str, str | None], str | float | frozenset[str] | None] = {}
    differ = []
    for record in records:
        label = frozenset(record.label) if isinstance(record.label, tuple) else record.label
        if seen.setdefault((record.first, record.second), label) != label:
            differ.append(record.where)
    again = len(records) - len(seen)
    if again:
        contradict = f'; {len(differ):,} with another label, the first at {differ[0]}' if differ else ''
        lines.append(f'{again:,} records have the text of an earlier one{contradict}')
    return lines


def class_report(table: np.ndarray, labels: Sequence[str]) -> str:
    """Precision, recall and F1 of each label, and the confusion table (with many labels, the most frequent confusions).

    Args:
      table: int64 [C, C], see metrics/classification.py:confusion.
      labels: C names.
    """
    scores = class_scores(table)
    width = max(len('all, mean of labels'), *map(len, labels))
    number = len(str(len(labels)))
    lines = _score_lines(scores, labels, width)
    seen = (scores.true + scores.predicted) > 0
    if seen.any():
        means = ''.join(
            f'{x[seen].mean():{w}.4f}' for x, w in ((scores.precision, 9), (scores.recall, 8), (scores.f1, 8))
        )
        lines.append(f'{"":{number}} {"all, mean of labels":{width}}  {means}{table.sum():9,}{table.sum():11,}')
    return '\n'.join([*lines, '', *(_matrix(table, labels) if len(labels) <= _MATRIX else _pairs(table, labels))])


def _score_lines(scores: ClassScores, labels: Sequence[str], width: int) -> list[str]:
    number = len(str(len(labels)))
    lines = [f'{"":{number}} {"label":{width}}  precision  recall      f1     true  predicted']
    for i, label in enumerate(labels):
        figures = f'{scores.precision[i]:9.4f}{scores.recall[i]:8.4f}{scores.f1[i]:8.4f}'
        lines.append(f'{i + 1:{number}} {label:{width}}  {figures}{scores.true[i]:9,}{scores.predicted[i]:11,}')
    return lines


def label_report(scores: ClassScores, figures: Mapping[str, float | None], labels: Sequence[str]) -> str:
    """Precision, recall and F1 of each of several labels, then micro and macro (see metrics/multi_label.py)."""
    names = {'micro': 'all, every decision', 'macro': 'all, mean of labels'}
    width, number = max(map(len, [*names.values(), *labels])), len(str(len(labels)))
    lines = _score_lines(scores, labels, width)
    for name, title in names.items():
        shown = ''.join(f'{figures[f"{name}_{x}"]:{w}.4f}' for x, w in (('precision', 9), ('recall', 8), ('f1', 8)))
        lines.append(f'{"":{number}} {title:{width}}  {shown}{scores.true.sum():9,}{scores.predicted.sum():11,}')
    return '\n'.join([*lines, f'exactly right: {figures["exact"]:.4f}'])


def _matrix(table: np.ndarray, labels: Sequence[str]) -> list[str]:
    name, cell = max(map(len, labels)), max(3, len(f'{table.max():,}')) + 1
    number = len(str(len(labels)))
    lines = ['true label (row) and predicted label (column, by number)']
    lines.append(' ' * (number + 1 + name) + ''.join(f'{i + 1:{cell}}' for i in range(len(labels))))
    for i, label in enumerate(labels):
        lines.append(f'{i + 1:{number}} {label:{name}}' + ''.join(f'{count:{cell},}' for count in table[i].tolist()))
    return lines


def _pairs(table: np.ndarray, labels: Sequence[str]) -> list[str]:
    wrong = table - np.diag(table.diagonal())
    order = [at for at in np.argsort(-wrong, axis=None, kind='stable')[:_MATRIX] if wrong.flat[at]]
    lines = [f'{labels[at // len(labels)]} taken for {labels[at % len(labels)]}: {wrong.flat[at]:,}' for at in order]
    return ['most frequent confusions', *lines] if lines else ['no confusions']


def value_report(true: Sequence[float], predicted: Sequence[float]) -> str:
    """The errors of the scores, by bands of the true score."""
    x, y = np.asarray(true, np.float64), np.asarray(predicted, np.float64)
    edges = np.linspace(x.min(), x.max(), _BANDS + 1)
    band = np.clip(np.searchsorted(edges, x, side='right') - 1, 0, _BANDS - 1)
    lines = ['true score           records  mean true  mean predicted  mean absolute error']
    for i in range(_BANDS):
        mine = band == i
        if mine.any():
            figures = f'{x[mine].mean():11.3f}{y[mine].mean():16.3f}{np.abs(x - y)[mine].mean():21.3f}'
            lines.append(f'{edges[i]:8.3f} to {edges[i + 1]:8.3f}{mine.sum():9,}{figures}')
    return '\n'.join(lines)
