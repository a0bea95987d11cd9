"""What a ledger lacks: it names every example that was trained on, so a gap in it is said, and never filled."""

import itertools
import json
import pathlib
import re
from collections.abc import Iterable

from bertjax.checkpoint import Position

_ROW = re.compile(rb'\{"step": (\d+), "phase": (\d+), "first": (\d+), "count": (\d+)\}\n')
_SHOWN = 5


def ledger_damage(path: pathlib.Path, position: Position) -> list[str]:
    """What is wrong in the lines up to `position`, by line and step; [] for a whole ledger. One pass over the file."""
    unreadable, missing, astray, ends = [], [], [], []
    last: tuple[int, int, int] | None = (0, 0, 0)  # step, phase, the example after it; None after a gap
    expected = 1
    if path.exists():
        with path.open('rb') as file:
            for number, line in enumerate(file, 1):
                row = _read(line)
                if row is None and not line.endswith(b'\n'):  # cut off by a kill: of a step that will come again
                    continue
                if row is None:
                    unreadable.append((number, number))
                    continue
                step, phase, first, count = row
                if step > position.step:
                    continue
                if step < expected:
                    astray.append((number, number))
                    continue
                if step > expected:
                    missing.append((expected, step - 1))
                    last = None
                # The rows of a phase follow on one another, and each phase begins at 0.
                if last is not None and first != (last[2] if phase == last[1] else 0):
                    astray.append((number, number))
                expected, last = step + 1, (step, phase, first + count)
    if expected <= position.step:
        missing.append((expected, position.step))
    elif last is not None and last[1:] != (position.phase, position.next):
        ends.append((position.step, position.step))
    found = {
        'cannot be read: line': unreadable,
        'does not follow on what is before it: line': astray,
        'is missing: step': missing,
        'does not end where the checkpoint does: step': ends,
    }
    return [f'{what} {summarize_damage(ranges)}' for what, ranges in found.items() if ranges]


def _read(line: bytes) -> tuple[int, int, int, int] | None:
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
    """Ascending ranges as `3, 5-9`, those that touch as one; of many the first."""
    joined: list[list[int]] = []
    for low, high in ranges:
        if joined and low == joined[-1][1] + 1:
            joined[-1][1] = high
        else:
            joined.append([low, high])
    parts = [str(low) if low == high else f'{low}-{high}' for low, high in itertools.islice(joined, _SHOWN)]
    more = len(joined) - len(parts)
    return ', '.join(parts) + (f' and {more} more' if more else '')
