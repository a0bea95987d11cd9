"""Goodput: the share of a run's wall time that went into productive steps, and the shares of other activities."""

import collections
import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.progress import format_duration
from bertjax.training.health.goodput_clock import KINDS, STEP, TIMES
from bertjax.writers.jsonl import parse_row

LOST = 'lost'  # the time of steps after the last checkpoint, which a later process repeated
_DESCRIPTIONS = {**{kind: kind for kind in KINDS}, LOST: 'steps done again', 'data': 'waiting for data'}


@dataclasses.dataclass(frozen=True)
class Goodput:
    """The wall time of all processes of a run. The time of a process ends with its last row in time.jsonl."""

    seconds: Mapping[str, float]  # {kind: seconds}: `goodput_clock.KINDS`, without lost steps, and LOST
    processes: int  # the number of processes, which ran one after the other
    slow: Sequence[Mapping[str, Any]] = ()  # the log rows about slow steps

    @property
    def total(self) -> float:
        """The seconds of all kinds."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The share of productive steps in the total time, from 0 to 1."""
        return self.seconds.get(STEP, 0.0) / self.total

    def rest(self) -> list[tuple[str, float]]:
        """Returns (description, share) of each kind except STEP that took time. The largest share is first."""
        kinds = [kind for kind, each in self.seconds.items() if kind != STEP and each > 0]
        shares = [(_DESCRIPTIONS[kind], self.seconds[kind] / self.total) for kind in kinds]
        return sorted(shares, key=lambda item: -item[1])

    def facts(self) -> dict[str, Any]:
        """Returns the goodput entry of summary.json."""
        seconds = {kind: round(each, 3) for kind, each in self.seconds.items()}
        return {'share': round(self.share, 4), 'processes': self.processes, 'seconds': seconds}

    def __str__(self) -> str:
        processes = f' of {self.processes} processes' if self.processes > 1 else ''
        rest = ', '.join(f'{name} {share:.1%}' for name, share in self.rest() if share >= 0.0005)
        return f'{self.share:.1%} of {format_duration(self.total)}{processes}' + (f'; the rest: {rest}' if rest else '')


def read_goodput(folder: pathlib.Path, until: int | None = None) -> Goodput | None:
    """Reads the goodput of a run, finished or not, from its workdir. Returns None if the log has no usable rows.

    Steps that a later process repeated count as LOST, and so do steps after `until`, from which the run will continue.
    If only some steps of a row are lost, the row's step seconds are divided equally among its steps.
    """
    seconds: collections.Counter[str] = collections.Counter()
    spans: list[tuple[int, int, float]] = []  # (after, step, seconds) of the steps that the state contains
    processes, slow = 0, []

    def lose_after(step: int) -> None:
        nonlocal spans
        retained = [_truncate_span(span, step) for span in spans]
        seconds[LOST] += sum(span[2] for span in spans) - sum(span[2] for span in retained)
        spans = retained

    for row in _read_rows(folder / TIMES):
        if 'slow' in row:
            slow.append(row)
            continue
        after, step = row['after'], row['step']
        if 'began' in row:
            processes += 1
            lose_after(after)
        for kind, each in row['seconds'].items():
            if kind == STEP:
                spans.append((after, step, each))
            else:
                seconds[kind] += each
    if until is not None:
        lose_after(until)
    spent = {STEP: sum(span[2] for span in spans), **{kind: x for kind, x in seconds.items() if x > 0}}
    goodput = Goodput(spent, processes, slow)
    return goodput if goodput.total > 0 and processes else None


def _truncate_span(span: tuple[int, int, float], end: int) -> tuple[int, int, float]:
    """Returns the part of a span of steps up to step `end`."""
    after, step, seconds = span
    if step <= end:
        return span
    share = max(end - after, 0) / max(step - after, 1)
    return min(after, end), end, seconds * share


def _read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads the undamaged rows."""
    rows = []
    with contextlib.suppress(OSError), path.open('rb') as lines:
        for line in lines:
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # damaged
                row = parse_row(line)
                row['seconds'] = {kind: float(x) for kind, x in row['seconds'].items() if kind in KINDS}
                if 'slow' not in row:
                    row['after'] = int(row['after'])
                rows.append(row)
    return rows
