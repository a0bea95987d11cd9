"""Goodput: the share of a run's wall time that went into productive steps, and the shares of other activities."""

import collections
import contextlib
import dataclasses
import math
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

    seconds: Mapping[str, float]  # {kind: seconds} for the KINDS of goodput_clock.py and for LOST; STEP excludes LOST
    processes: int  # the number of processes, which ran one after the other
    slow: Sequence[Mapping[str, Any]] = ()  # the rows of time.jsonl about slow steps

    @property
    def total(self) -> float:
        """The seconds of all kinds."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The share of productive steps in the total time, from 0 to 1."""
        return self.seconds.get(STEP, 0.0) / self.total

    def rest(self) -> list[tuple[str, float]]:
        """Returns (description, share) of each kind that took time, except STEP. The largest share is first."""
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
    rows = _read_rows(folder / TIMES)
    limit = math.inf if until is None else until  # later steps are lost
    seconds: collections.Counter[str] = collections.Counter()
    processes = 0
    for row in reversed(rows):
        if 'slow' in row:
            continue
        after, step = row['after'], row['step']
        for kind, each in row['seconds'].items():
            retained = each
            if kind == STEP and step > limit:
                retained *= max(limit - after, 0) / max(step - after, 1)
                seconds[LOST] += each - retained
            seconds[kind] += retained
        if 'began' in row:
            processes += 1
            limit = min(limit, after)
    spent = {kind: seconds[kind] for kind in _DESCRIPTIONS if kind == STEP or seconds[kind] > 0}
    goodput = Goodput(spent, processes, [row for row in rows if 'slow' in row])
    return goodput if goodput.total > 0 and processes else None


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
