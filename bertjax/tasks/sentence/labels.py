"""Collects the labels of a file, and checks for labels that are probably mistakes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from bertjax.errors import UserError

_MISSING = ('nan', '<na>', '#n/a', 'nat')  # missing values as programs write them
_PERHAPS_MISSING = ('none', 'null', 'na', 'n/a', '-', '?')  # missing values as people write them, or real labels


class LabeledRecord(Protocol):
    """The interface of a record that may have a label. For its attributes, see task.py:Example."""

    first: str
    second: str | None
    label: str | float | tuple[str, ...] | None
    where: str


def labels_of(record: LabeledRecord) -> tuple[str, ...]:
    """Returns the labels of a labeled record."""
    return record.label if isinstance(record.label, tuple) else (record.label,)


def count_labels(records: Sequence[LabeledRecord]) -> Counter[str]:
    """Returns the number of records with each label."""
    return Counter(label for record in records for label in labels_of(record))


def find_labels(records: Sequence[LabeledRecord]) -> list[str]:
    """Returns the labels of `records`, sorted, with numbers before words.

    Raises:
      UserError: There are fewer than two labels, or more than 20 with fewer than two records per label on average. Or a
        label stands for a missing value, such as nan, or two labels are equal numbers.
    """
    counts, where = count_labels(records), f'{records[0].where} and below'
    if len(counts) < 2:
        found = f'only the label {next(iter(counts))!r}' if counts else 'no labels'
        raise UserError(where, found, 'two or more labels', 'check the label column')
    if len(counts) > 20 and 2 * len(counts) > sum(counts.values()):
        some = ', '.join(repr(label[:20]) for label in list(counts)[:3])
        fix = 'set config.task.label to the label column, or list all labels in config.task.labels'
        if not isinstance(records[0].label, tuple):
            fix += '; for scores set config.task.regression=True'
        raise UserError(where, f'{len(counts):,} different labels: {some} …', 'several records for each label', fix)
    for label, count in counts.items():
        if label.lower() in _MISSING:
            fix = 'add the labels or remove the records; if this text is a label, list all labels in config.task.labels'
            raise UserError(_first(label, records), f'the label {label!r} of {count:,} records', 'a label', fix)
    _check_numbers(counts, records)
    return sorted(counts, key=_numbers_first)


def _check_numbers(counts: Mapping[str, int], records: Sequence[LabeledRecord]) -> None:
    """Raises a UserError if two labels are equal numbers, such as 1 and 1.0."""
    label_of_number: dict[float, str] = {}
    for label in counts:
        number = _number(label)
        other = None if number is None else label_of_number.setdefault(number, label)
        if other not in (None, label):
            few, many = sorted((label, other), key=counts.__getitem__)
            found = f'the label {few!r} of {counts[few]:,} records'
            example = f'{counts[many]:,} records have {many!r}, such as {_first(many, records)}'
            expected = f'a single form of each number; {example}'
            fix = 'use the same form; if both are labels, list all labels in config.task.labels'
            raise UserError(_first(few, records), found, expected, fix)


def find_odd_labels(counts: Mapping[str, int], records: Sequence[LabeledRecord]) -> list[str]:
    """Returns warnings about labels that are probably mistakes."""
    lines = []
    for label, count in counts.items():
        if count and label.lower() in _PERHAPS_MISSING:
            known = f'{count:,} records have the label {label!r}, the first at {_first(label, records)}'
            lines.append(f'warning: {known}; is it a missing value?')
    by_folded: dict[str, list[str]] = {}
    for label in counts:
        by_folded.setdefault(' '.join(label.casefold().split()), []).append(label)
    for group in by_folded.values():
        if len(group) > 1:
            lines.append(f'warning: {" and ".join(map(repr, group))} are different labels; is one a mistake?')
    return lines


def _first(label: str, records: Sequence[LabeledRecord]) -> str:
    """Returns the location of the first record that has the label."""
    return next(record.where for record in records if label in labels_of(record))


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def _numbers_first(label: str) -> tuple[bool, float, str]:
    number = _number(label)
    return number is None, number or 0.0, label
