"""Checks a config against the declarations of its keys."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bertjax.config.distillation import DistillationKeys, TaskDistillationKeys
from bertjax.config.finetuning import FinetuningKeys
from bertjax.config.inference import INFERENCE_KEYS
from bertjax.config.plain import flatten
from bertjax.config.pretraining import INHERITED, UNSET, PhaseKeys, PretrainingKeys
from bertjax.config.ranges import check_value, format_value, one_of
from bertjax.config.run import ANY_RECIPE
from bertjax.config.schema import Change, Key, Trained, keys_of
from bertjax.config.suggestions import nearest_name
from bertjax.errors import UserError
from bertjax.tasks.registry import KINDS, options

# Keys that no recipe sets: a run computes their values and records them in its config.json.
COMPUTED_KEYS = ('fingerprints', 'model.vocab_size')


def config_keys(config: Mapping[str, Any]) -> dict[str, Key]:
    """Returns {name: key} for all keys that `config` should have, which depend on its verb, task and phases.

    Raises:
      UserError: The kind of task is unknown.
    """
    known = keys_of(keys_class(config))
    if 'distill' in config:
        group_class = TaskDistillationKeys if 'task' in config else DistillationKeys
        known |= keys_of(group_class, 'distill.', Change.TRAINING)
    if 'task' in config:
        kinds, kind = one_of(KINDS), flatten(config).get('task.kind')
        check_value('task.kind', kind, kinds, 'classification')
        known['task.kind'] = Key(kind, kinds, 'the kind of task', Change.STATE, Trained.SAME)
        known |= {f'task.{name}': option for name, option in options(kind).items()}
    for entry in _phases(flatten(config)):
        known.pop('phases', None)
        known |= keys_of(PhaseKeys, f'{entry}.', Change.TRAINING)
    return known


def keys_class(config: Mapping[str, Any]) -> type:
    """Returns the dataclass that declares the keys of `config`."""
    verb = next((verb for verb in INFERENCE_KEYS if verb in config), None)
    return INFERENCE_KEYS[verb] if verb else FinetuningKeys if 'task' in config else PretrainingKeys


def _phases(names: Iterable[str]) -> list[str]:
    """Returns the entries of config.phases that have a key in `names`: phases[0], phases[1], …"""
    return list(dict.fromkeys(match[0] for match in map(re.compile(r'phases\[\d+\]').match, names) if match))


def check_ranges(config: Mapping[str, Any], *, computed: bool = False) -> None:
    """Raises a UserError for the first key that is unknown or outside its range, or else for the first missing key.

    The settings classes check combinations of keys later. `computed` allows COMPUTED_KEYS.
    """
    values, known = flatten(config), config_keys(config)
    for name, value in values.items():
        if name in known:
            check_value(name, value, known[name].allowed, known[name].default)
        elif not (computed and name.startswith(COMPUTED_KEYS)):
            check_key(name, known, format_value(value))
    for name, key in known.items():
        if name not in values:
            fix = 'make the config with a function of bertjax.config.recipes'
            raise UserError(f'config.{name}', 'no such key', key.allowed.words, fix)


def check_recorded(config: Mapping[str, Any], where: str, fix: str) -> None:
    """Makes the checks of `check_ranges` for a config that a run recorded, which may have COMPUTED_KEYS.

    `where` is the path of the file, and `fix` is the advice of the error.
    """
    try:
        check_ranges(config, computed=True)
    except UserError as error:
        key = error.where.removeprefix('--').removeprefix('config.')
        raise UserError(f'{where}: {key}', error.found, error.expected, fix) from None


def check_used(config: Mapping[str, Any], flag_keys: Collection[str]) -> None:
    """Raises a UserError for the first of `flag_keys` that has no effect because of the value of another key.

    `flag_keys` are the keys that a command or call sets. A recipe may set keys without effect, for other verbs.
    """
    values, known = flatten(config), config_keys(config)
    for name in sorted(known.keys() & values.keys() & {*flag_keys}):
        if values[name] == known[name].default:
            continue
        _check_used_by_a_phase(name, values, flag_keys)
        other = name
        while known[other].used_with:  # the other key must have an effect, too
            other, *used = known[other].used_with
            # A phase may have its own value of the other key.
            others = [value for key, value in values.items() if other in (key, INHERITED.get(key.partition('].')[2]))]
            has_effect = any(value in used for value in others) if used else any(others)
            if not has_effect:
                found = f'{format_value(values[name])} with config.{other}={format_value(values[other])}'
                fix = f'leave it out, or set --config.{other}'
                fix += ' to ' + ' or '.join(str(x) or "''" for x in used if x not in ANY_RECIPE) if used else ''
                raise UserError(f'config.{name}', found, 'no value, because it has no effect', fix)


def _check_used_by_a_phase(name: str, values: Mapping[str, Any], flag_keys: Collection[str]) -> None:
    """Raises a UserError if the key `name` of the run has no effect, because the recipe sets it in every phase."""
    phases = _phases(values)
    for key in (key for key, run_key in INHERITED.items() if run_key == name):
        names = [f'{phase}.{key}' for phase in phases]
        if names and all(values.get(own, UNSET[key]) != UNSET[key] and own not in flag_keys for own in names):
            fix = f'set --config.phases[0].{key}, and the same key of every other phase'
            raise UserError(f'config.{name}', 'a value', 'none, because every phase has its own value', fix)


def check_key(key: str, known: Collection[str], found: str = 'a value for a group of keys') -> None:
    """Raises a UserError unless `key` is one of `known`, the keys of a recipe.

    If `key` is a group of keys, `found` describes the value in the error. A ConfigDict would accept keys such as
    `items`, one of its attributes, and `corpus[0]`, a letter of a string.
    """
    if key in known or any(name.startswith(f'{key}[') for name in known):  # 'phases', if there is 'phases[0].steps'
        return
    if below := [name for name in known if name.startswith(f'{key}.')]:
        example = next((name for name in below if name.endswith('.name')), below[0])
        raise UserError(f'--config.{key}', found, f'keys such as {example}', f'for example --config.{example}=VALUE')
    groups = {name[:i] for name in known for i, letter in enumerate(name) if letter == '.'}
    near = nearest_name(key, [*known, *groups])
    where = f'--config.{key if len(key) <= 60 else key[:56] + " …"}'
    fix = f'did you mean --config.{near}?' if near else 'see all keys with --help --config=RECIPE'
    raise UserError(where, 'an unknown config key', 'a key of this recipe', fix)
