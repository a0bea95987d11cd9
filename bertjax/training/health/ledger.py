"""Detection of damage in a ledger, which lists every example that was trained on. Gaps are reported, never filled."""

import collections
import contextlib
import itertools
import pathlib
from collections.abc import Iterable

from bertjax.checkpoint.position import Position
from bertjax.writers.jsonl import parse_row

_MAX_RANGES = 5


def ledger_damage(path: pathlib.Path, position: Position) -> list[str]:
    """Describes unreadable lines, and damage in the rows up to `position`, with line or step numbers."""
    unreadable, missing, out_of_order = [], [], []
    # The expected step and, for each phase, the example with which a run that returns to the phase continues.
    expected, next_examples = 1, collections.Counter[int]()
    last = (0, 0)  # (phase, next example)
    with path.open('rb') if path.exists() else contextlib.nullcontext(()) as lines:
        for number, line in enumerate(lines, 1):
            row = _parse_line(line)
            if row is None:
                # A kill leaves an incomplete last line. This is not damage: the run will repeat the step.
                unreadable += [(number, number)] if line.endswith(b'\n') else []
                continue
            step, phase, first, count = row
            if step > position.step:
                continue
            if step < expected:
                out_of_order.append((number, number))
                continue
            if step > expected:
                missing.append((expected, step - 1))
            elif first != next_examples[phase]:
                out_of_order.append((number, number))
            expected, last, next_examples[phase] = step + 1, (phase, first + count), first + count
    differs = last != (position.phase, position.next)
    if expected <= position.step:
        missing.append((expected, position.step))
        differs = False
    damage = {
        'unreadable: line': unreadable,
        'out of order: line': out_of_order,
        'missing: step': missing,
        'last example differs from the checkpoint: step': [(position.step, position.step)] if differs else [],
    }
    return [f'{what} {summarize_damage(ranges)}' for what, ranges in damage.items() if ranges]


def _parse_line(line: bytes) -> tuple[int, ...] | None:
    """Returns step, phase, first example and count of examples, or None if the line is damaged."""
    row = parse_row(line) or {}
    values = tuple(row.get(name) for name in ('step', 'phase', 'first', 'count'))
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
