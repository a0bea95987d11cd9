"""The differences between two configs in plain form, with values in the syntax of the command line."""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bertjax.config.check import COMPUTED_KEYS
from bertjax.config.plain import flatten
from bertjax.config.pretraining import BUDGET_CHOICES
from bertjax.config.ranges import in_steps, is_in_epochs
from bertjax.errors import UserError
from bertjax.model.config import FieldKind, fields_of

_ABSENT = object()
_BUDGET_KEYS = ('steps', 'phases', 'batch_size', 'grad_accum_steps', 'eval_every', 'checkpoint_every')


def format_literal(value: Any) -> str:
    """Returns the value in the syntax of the command line."""
    return repr(tuple(value) if isinstance(value, list) else value)


def task_kind(config: Mapping[str, Any]) -> str | None:
    """Returns the kind of task in a config; '' for pre-training, None for a config that trains nothing."""
    return config['task']['kind'] if 'task' in config else '' if 'steps' in config else None


def comparable_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns {key: value} of a config, sorted, without `run` (the verb) and without the keys that a run computes."""
    return {
        key: value
        for key, value in sorted(flatten(config).items())
        if key != 'run' and not key.startswith(COMPUTED_KEYS)
    }


def find_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (key, value before, value after) for the keys that differ between two configs, sorted by key.

    The values are text; '-' stands for a missing key.
    """
    old, new = comparable_keys(before), comparable_keys(after)
    return [
        (key, *('-' if value is _ABSENT else format_literal(value) for value in pair))
        for key in sorted(old.keys() | new.keys())
        if (pair := (old.get(key, _ABSENT), new.get(key, _ABSENT)))[0] != pair[1]
    ]


def resolve_like(config: Mapping[str, Any], run: Mapping[str, Any], set_keys: Collection[str] = ()) -> dict[str, Any]:
    """Returns `config` with durations in steps.

    Keys that a run chooses itself get the values of `run`, the saved config of a run, unless they are in `set_keys`.
    """
    resolved, is_task = dict(config), 'task' in config
    # The saved config of a sweep has unresolved durations.
    per_epoch = run['steps'] / run['epochs'] if is_task and isinstance(run['steps'], int) and run['epochs'] else None
    if per_epoch:
        per_epoch *= run['batch_size'] / config['batch_size']  # up to the rounding of the last batch
        steps = in_steps(config['steps'], 'steps', steps_per_epoch=per_epoch)
        resolved['steps'] = steps or round(config['epochs'] * per_epoch)
        resolved['epochs'] = steps / per_epoch if steps else config['epochs']
    elif not is_task and (is_in_epochs(config['steps']) or config['epochs'] > 0):
        resolved['steps'] = run['steps']  # the number of steps in an epoch depends on the text
    elif not is_task:
        resolved['steps'] = in_steps(config['steps'], 'steps')  # also from text, such as '2000'
    total = resolved['steps'] if isinstance(resolved['steps'], int) and resolved['steps'] else None
    for key in ('eval_every', 'checkpoint_every'):
        with contextlib.suppress(UserError):  # raised if the duration is relative to an unknown number of steps
            if isinstance(run[key], int):
                resolved[key] = in_steps(config[key], key, total=total, steps_per_epoch=per_epoch, minimum=1)
    if not is_task:
        resolved |= _chosen_in_pretraining(config, run, set_keys)
    if is_task and run.get('max_padded_lengths') and not resolved['max_padded_lengths']:
        resolved['max_padded_lengths'] = run['max_padded_lengths']  # 0 lets the run choose a value
    if is_task and resolved.get('packing') == 'auto':
        resolved['packing'] = run.get('packing', 'off')
    return resolved


def _chosen_in_pretraining(
    config: Mapping[str, Any], run: Mapping[str, Any], set_keys: Collection[str]
) -> dict[str, Any]:
    """Returns the keys that pre-training takes from config.init, a teacher or a budget, with the values of `run`."""
    source = config['architecture_from']
    names = {'init': fields_of(FieldKind.ARCHITECTURE), 'budget': BUDGET_CHOICES}.get(source, ())
    keys = _BUDGET_KEYS if config['budget'] and config['budget'] == run['budget'] else ()
    # Relative intervals count as chosen even if they are set, because the run resolves them with the steps of its plan.
    relative = [key for key in ('eval_every', 'checkpoint_every') if isinstance(config[key], str)]
    chosen = {key: run[key] for key in keys if key not in set_keys or key in relative}
    if run['architecture_from'] == source:
        names = [name for name in names if name in config['model'] and f'model.{name}' not in set_keys]
        chosen['model'] = config['model'] | {name: run['model'][name] for name in names}
    teachers = [(each.get('distill') or {}).get('teacher') for each in (config, run)]
    if teachers[0] and teachers[0] == teachers[1] and not config['tokenizer']:
        chosen['tokenizer'] = run['tokenizer']
    return chosen


def align_columns(rows: Iterable[Sequence[str]]) -> list[str]:
    """Returns a line of text per row, with the cells of each column aligned."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ['  '.join(f'{cell:{width}}' for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
