"""Configs: recipe arguments, durations, the names of keys, and the plain form that is written to config.json."""

import json
import types
from collections.abc import Collection
from typing import Any

import ml_collections

from bertjax.errors import UserError
from bertjax.ranges import COUNT, parse_duration
from bertjax.suggestions import nearest, suggestion


def parse_argument(argument: str, **defaults: Any) -> types.SimpleNamespace:
    """Typed arguments of a recipe, from the text after the colon of `--config=FILE.py:ARGUMENT`.

    `large,seq=512,cased` sets the first key of `defaults` to 'large', `seq` to the integer 512 and the boolean `cased`
    to True. A value takes the type of its default.

    Raises:
      UserError: an unknown name, a value of another type, or a bare word where none fits.
    """
    values = dict(defaults)
    kinds = {name: f'{name} ({type(default).__name__}, default {default!r})' for name, default in defaults.items()}
    known = ', '.join(kinds.values()) or 'no argument at all'
    for position, item in enumerate(filter(None, argument.split(','))):
        name, given, text = item.partition('=')
        if not given:
            if isinstance(defaults.get(name), bool):
                values[name] = True
                continue
            first = next(iter(defaults), None)
            if position > 0 or first is None or isinstance(defaults[first], bool):
                fix = suggestion(name, defaults) or 'write NAME=VALUE, or the name of a boolean'
                raise UserError('--config=FILE:ARGUMENT', f'{item!r}', known, fix)
            name, text = first, item
        if name not in defaults:
            fix = suggestion(name, defaults) or 'see the docstring of the recipe'
            raise UserError('--config=FILE:ARGUMENT', f'unknown name {name!r}', known, fix)
        values[name] = _convert(name, text, defaults[name])
    return types.SimpleNamespace(**values)


def _convert(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
        return type(default)(text)
    except (KeyError, ValueError):
        kind = type(default).__name__
        raise UserError(
            '--config=FILE:ARGUMENT', f'{name}={text}', f'a value of type {kind}', f'for example {name}={default}'
        ) from None


def plain(config: Any) -> Any:
    """A config as JSON-ready dicts, lists and scalars, keys sorted."""
    if isinstance(config, ml_collections.ConfigDict):
        return {key: plain(config[key]) for key in sorted(config)}
    if isinstance(config, dict):
        return {key: plain(config[key]) for key in sorted(config)}
    if isinstance(config, (tuple, list)):
        return [plain(item) for item in config]
    return config


def from_plain(saved: Any) -> Any:
    """The config of a plain form, such as that of config.json."""
    if isinstance(saved, dict):
        return ml_collections.ConfigDict({key: from_plain(value) for key, value in saved.items()})
    return tuple(map(from_plain, saved)) if isinstance(saved, list) else saved


def with_defaults(value: Any, usual: Any) -> Any:
    """A plain form with what it lacks of `usual`: keys that are younger than a saved config."""
    if not isinstance(value, dict) or not isinstance(usual, dict):
        return value
    return {**usual, **{key: with_defaults(item, usual.get(key)) for key, item in value.items()}}


def dump(config: Any) -> str:
    """The text of `config.json`."""
    return json.dumps(plain(config), indent=2, sort_keys=True, ensure_ascii=False) + '\n'


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
    """{'model.width': 128, 'phases[0].steps': '90%', ...} of a config or its plain form."""
    config = plain(config)
    flat: dict[str, Any] = {}
    if isinstance(config, dict):
        for key, value in config.items():
            flat |= flatten(value, f'{prefix}.{key}' if prefix else key)
    elif isinstance(config, list) and any(isinstance(item, dict) for item in config):
        for i, item in enumerate(config):
            flat |= flatten(item, f'{prefix}[{i}]')
    else:
        flat[prefix] = config
    return flat


def unknown_key_error(key: str, known: Collection[str]) -> UserError:
    """The error for a config key that is not among the `known` ones, naming the nearest that is."""
    branches = {path[:i] for path in known for i, letter in enumerate(path) if letter == '.'}
    near = nearest(key, [*known, *branches])
    return UserError(
        f'--config.{key if len(key) <= 60 else key[:56] + " …"}',
        'an unknown config key',
        'a key of this recipe',
        f'did you mean --config.{near}?' if near else 'see all keys with --help beside --config',
    )


def in_steps(
    value: int | float | str, key: str, *, total: int | None = None, steps_per_epoch: float | None = None
) -> int:
    """A duration in steps: `1000`, `'1000'`, `'10%'` of `total`, or `'2 epochs'` of `steps_per_epoch` steps.

    Raises:
      UserError: another form, less than 0 or more than int32 counts, or a relative one where there is nothing to
        relate it to.
    """
    try:
        amount, unit = parse_duration(value)
        if unit == '%' and total is not None:
            steps = round(amount / 100 * total)
        elif unit == 'epochs' and steps_per_epoch is not None:
            steps = round(amount * steps_per_epoch)
        elif not unit and amount == int(amount):
            steps = int(amount)
        else:
            raise ValueError(value)
        if not 0 <= steps <= COUNT:
            raise ValueError(value)
    except ValueError:
        forms = ['a number of steps']
        forms += ['a percentage like 10%'] if total is not None else []
        forms += ['epochs like 2epochs'] if steps_per_epoch is not None else []
        raise UserError(f'config.{key}', repr(value), ' or '.join(forms), f'for example --config.{key}=1000') from None
    return steps
