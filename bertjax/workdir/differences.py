"""Configs in plain form beside each other: key by key, as the command line writes their values."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.config.check import FOUND
from bertjax.config.plain import flatten
from bertjax.config.ranges import in_steps

_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Difference:
    """A key that has another value, as text; '-' stands for none."""

    key: str
    before: str
    after: str


def format_literal(value: Any) -> str:
    """A value as one gives it on the command line."""
    return repr(tuple(value) if isinstance(value, list) else value)


def comparable_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a config in alphabetical order, without `run`, which is the verb, and what a run found out."""
    return {key: value for key, value in sorted(flatten(config).items()) if key != 'run' and not key.startswith(FOUND)}


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """What has changed from a config to another, by key."""
    old, new = comparable_keys(before), comparable_keys(after)
    return [
        Difference(key, *('-' if value is _ABSENT else format_literal(value) for value in pair))
        for key in sorted(old.keys() | new.keys())
        if (pair := (old.get(key, _ABSENT), new.get(key, _ABSENT)))[0] != pair[1]
    ]


def resolve_like(config: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """A config with its durations in steps, as those of `run`, the config.json of one like it."""
    own = dict(config)
    is_task, steps = 'task' in own, run['steps']
    per_epoch = steps / run['epochs'] if is_task and run['epochs'] else None
    if is_task and steps and in_steps(own['steps'], 'steps', steps_per_epoch=per_epoch) == 0:
        own['steps'] = round(own['epochs'] * per_epoch) if per_epoch else own['steps']
    elif is_task and per_epoch:
        own['steps'] = in_steps(own['steps'], 'steps', steps_per_epoch=per_epoch)
        own['epochs'] = own['steps'] / per_epoch
    elif not is_task and 'epoch' in str(own['steps']) + 'epoch' * (own['epochs'] > 0):
        own['steps'] = steps  # how many an epoch has, the text tells
    total = own['steps'] if isinstance(own['steps'], int) and own['steps'] else None
    for key in ('eval_every', 'checkpoint_every'):
        relative = str(own[key]).endswith('%'), 'epoch' in str(own[key])
        if isinstance(run[key], int) and (not any(relative) or (relative[0] and total) or (relative[1] and per_epoch)):
            own[key] = in_steps(own[key], key, total=total, steps_per_epoch=per_epoch)
    if is_task and run.get('max_padded_lengths') and not own['max_padded_lengths']:
        own['max_padded_lengths'] = run['max_padded_lengths']  # 0: by the length of the run
    if is_task and own.get('packing') == 'auto':
        own['packing'] = run.get('packing', 'off')
    return own


def align_columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of columns that begin below each other."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ['  '.join(f'{cell:{width}}' for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
