"""Detection of damage in a ledger, which lists every example that was trained on. Gaps are reported, never filled."""

import collections
import itertools
import json
import pathlib
import re
from collections.abc import Iterable

from bertjax.checkpoint.position import Position

_ROW = re.compile(rb'\{"step": (\d+), "phase": (\d+), "first": (\d+), "count": (\d+)\}\n')
_MAX_RANGES = 5


def ledger_damage(path: pathlib.Path, position: Position) -> list[str]:
    """Finds unreadable lines, and damage in the rows up to `position`, in one pass over the file.

    Returns:
      Descriptions of the damage, with line or step numbers; [] for an undamaged ledger.
    """
    unreadable, missing, out_of_order, ends = [], [], [], []
    last: tuple[int, int, int] | None = (0, 0, 0)  # step, phase, next example; None after a gap
    expected, ends_of_phases = 1, collections.Counter[int]()
    if path.exists():
        with path.open('rb') as file:
            for number, line in enumerate(file, 1):
                row = _parse_line(line)
                if row is None and not line.endswith(b'\n'):  # cut off by a kill; the step will be done again
                    continue
                if row is None:
                    unreadable.append((number, number))
                    continue
                step, phase, first, count = row
                if step > position.step:
                    continue
                if step < expected:
                    out_of_order.append((number, number))
                    continue
                if step > expected:
                    missing.append((expected, step - 1))
                    last = None
                # A phase begins at example 0, and continues if the run returns to it.
                if last is not None and first != ends_of_phases[phase]:
                    out_of_order.append((number, number))
                expected, last, ends_of_phases[phase] = step + 1, (step, phase, first + count), first + count
    if expected <= position.step:
        missing.append((expected, position.step))
    elif last is not None and last[1:] != (position.phase, position.next):
        ends.append((position.step, position.step))
    damage = {
        'unreadable: line': unreadable,
        'out of order: line': out_of_order,
        'missing: step': missing,
        'last example differs from the checkpoint: step': ends,
    }
    return [f'{what} {summarize_damage(ranges)}' for what, ranges in damage.items() if ranges]


def _parse_line(line: bytes) -> tuple[int, int, int, int] | None:
    match = _ROW.fullmatch(line)
    if match:
        return tuple(map(int, match.groups()))
    try:
        row = json.loads(line)
        values = tuple(row[name] for name in ('step', 'phase', 'first', 'count'))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return values if all(type(value) is int for value in values) else None


def summarize_damage(ranges: Iterable[tuple[int, int]]) -> str:
    """Formats ascending ranges as `3, 5-9`: merges adjacent ranges and shows the first few."""
    joined: list[list[int]] = []
    for low, high in ranges:
        if joined and low == joined[-1][1] + 1:
            joined[-1][1] = high
        else:
            joined.append([low, high])
    parts = [str(low) if low == high else f'{low}-{high}' for low, high in itertools.islice(joined, _MAX_RANGES)]
    more = len(joined) - len(parts)
    return ', '.join(parts) + (f' and {more} more' if more else '')
