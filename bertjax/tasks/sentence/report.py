"""Text reports on labels and scores: their distribution, and the quality of predictions."""

from collections.abc import Mapping, Sequence

import numpy as np

from bertjax.metrics.classification import ClassScores, class_scores
from bertjax.tasks.sentence.labels import LabeledRecord, count_labels, find_odd_labels

_MIN_RECORDS = 10  # the rarest label is reported if it has fewer records
_MIN_SHARE = 0.01  # in single-label data, the rarest label is also reported below this fraction of the records
_MAX_MATRIX = 20  # the maximum number of labels for which the full confusion table is printed
_MEAN = 'macro average'  # the title of the last row of a table of scores


def describe_labels(labels: Sequence[str], records: Sequence[LabeledRecord]) -> str:
    """Returns a report on the counts of the labels in the training records, with warnings."""
    all_counts = count_labels(records)
    counts = {label: all_counts[label] for label in labels}
    total, has_sets, width = len(records), isinstance(records[0].label, tuple), max(map(len, counts))
    order = sorted(counts, key=lambda label: -counts[label])
    rarest, fewest = order[-1], counts[order[-1]]
    per_record = f', {sum(counts.values()) / total:.2f} per record' if has_sets else ''
    lines = [f'{total:,} records for training, {len(counts)} labels{per_record}']
    lines += [f'  {label:{width}}  {counts[label]:>9,}  {counts[label] / total:6.1%}' for label in order]
    if not has_sets:
        lines.append(f'always predicting {order[0]!r} would be correct for {counts[order[0]] / total:.1%}')
    elif unlabeled := sum(not record.label for record in records):
        lines.append(f'{unlabeled:,} records have no label')
    if fewest < _MIN_RECORDS or (not has_sets and fewest < _MIN_SHARE * total):
        lines.append(f'warning: only {fewest:,} of {total:,} records are {rarest!r}; check its recall')
    return '\n'.join(lines + find_odd_labels(counts, records) + _text_warnings(records))


def describe_values(records: Sequence[LabeledRecord]) -> str:
    """Returns a report on the range, mean and standard deviation of the scores, with warnings."""
    values = np.array([record.label for record in records], np.float64)
    lines = [
        f'{len(values):,} records for training, scores from {values.min():g} to {values.max():g}, '
        f'mean {values.mean():.3f}, standard deviation {values.std():.3f}'
    ]
    if values.std() == 0:
        lines.append('warning: all scores are equal, so there is nothing to learn')
    return '\n'.join(lines + _text_warnings(records))


def _text_warnings(records: Sequence[LabeledRecord]) -> list[str]:
    """Returns lines about empty texts and about repeated texts."""
    lines = []
    empty = [record.where for record in records if not record.first.strip() or record.second == '']
    if empty:
        lines.append(f'warning: {len(empty):,} records with an empty text, the first at {empty[0]}')
    seen: dict[tuple[str, str | None], str | float | frozenset[str] | None] = {}
    contradictions = []
    for record in records:
        label = frozenset(record.label) if isinstance(record.label, tuple) else record.label
        if seen.setdefault((record.first, record.second), label) != label:
            contradictions.append(record.where)
    repeats = len(records) - len(seen)
    if repeats:
        lines.append(f'{repeats:,} records repeat the text of an earlier record')
    if contradictions:
        lines[-1] += f'; {len(contradictions):,} with another label, the first at {contradictions[0]}'
    return lines


def class_report(table: np.ndarray, labels: Sequence[str]) -> str:
    """Returns a text with precision, recall and F1 of each label, and with the confusion `table`, int64 [C, C].

    If there are more than 20 labels, the text lists the most frequent confusions instead of the table.
    """
    scores = class_scores(table)
    seen = (scores.true + scores.predicted) > 0
    means = [x[seen].mean() for x in (scores.precision, scores.recall, scores.f1)]
    confusions = _matrix(table, labels) if len(labels) <= _MAX_MATRIX else _pairs(table, labels)
    return '\n'.join([*_score_lines(scores, labels, {_MEAN: means}), '', *confusions])


def _score_lines(
    scores: ClassScores, labels: Sequence[str], averages: Mapping[str, Sequence[float | None]]
) -> list[str]:
    """Returns the lines of a table: the scores of each label, then `averages`, {title: (precision, recall, F1)}."""
    number, width = len(str(len(labels))), max(map(len, (_MEAN, *averages, *labels)))
    rows = zip(scores.precision, scores.recall, scores.f1, scores.true, scores.predicted, strict=True)
    numbered = [(str(i), label, *row) for i, (label, row) in enumerate(zip(labels, rows, strict=True), 1)]
    numbered += [('', title, *row, scores.true.sum(), scores.predicted.sum()) for title, row in averages.items()]
    return [f'{"":{number}} {"label":{width}}  precision  recall      f1     true  predicted'] + [
        f'{i:>{number}} {name:{width}}  {precision:9.4f}{recall:8.4f}{f1:8.4f}{true:9,}{predicted:11,}'
        for i, name, precision, recall, f1, true, predicted in numbered
    ]


def label_report(scores: ClassScores, figures: Mapping[str, float | None], labels: Sequence[str]) -> str:
    """Returns a text with the scores of each label and `figures`, see metrics/classification.py:multi_label_figures."""
    names = {'micro': 'micro average', 'macro': _MEAN}
    averages = {
        title: [figures[f'{name}_{score}'] for score in ('precision', 'recall', 'f1')] for name, title in names.items()
    }
    lines = _score_lines(scores, labels, averages)
    return '\n'.join([*lines, f'records with all labels correct: {figures["exact"]:.4f}'])


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
    order = [i for i in np.argsort(-wrong, axis=None, kind='stable')[:_MAX_MATRIX] if wrong.flat[i]]
    lines = [f'{labels[i // len(labels)]} predicted as {labels[i % len(labels)]}: {wrong.flat[i]:,}' for i in order]
    return ['most frequent confusions', *lines] if lines else ['no confusions']
