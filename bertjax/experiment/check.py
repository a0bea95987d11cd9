"""A recipe, with the changes of the command line, against the declared range of each of its keys."""

import re
from collections.abc import Mapping
from typing import Any

from bertjax.config import flatten, unknown_key_error
from bertjax.errors import UserError
from bertjax.ranges import Range, check_value, format_value, one_of
from bertjax.recipe import distillation, finetuning_config, phase, pretraining_config, using_config
from bertjax.recipe_ranges import DISTILLATION, FINETUNING, OF_VERB, PHASE, PRETRAINING, TASK_DISTILLATION, USING
from bertjax.tasks.registry import KINDS, options


def check_ranges(config: Mapping[str, Any]) -> None:
    """Checks every key before anything is computed; what depends on several keys, the settings check.

    Raises:
      UserError: the first key that is outside its range, that its kind of recipe does not have, or that is missing.
    """
    values, known = flatten(config), declared(config)
    for key, value in values.items():
        if key not in known:
            raise _unknown(key, value, known)
        check_value(key, value, *known[key])
    for key, (allowed, _) in known.items():
        # A recipe of one's own need not have all options of its kind.
        if key not in values and not key.startswith('task.'):
            fix = 'make the config with a function of bertjax.recipe'
            raise UserError(f'config.{key}', 'no such key in the recipe', allowed.words, fix)


def check_recorded(config: Mapping[str, Any], where: str, fix: str) -> None:
    """Checks the values of a config that a run recorded in the file `where`; keys of other versions are let be.

    Raises:
      UserError: the first that is outside its range, with the file.
    """
    known = declared(config)
    for key, value in flatten(config).items():
        if key in known and not known[key][0].holds(value):
            raise UserError(f'{where}: {key}', format_value(value), known[key][0].words, fix)


def _unknown(key: str, value: Any, known: Mapping[str, Any]) -> UserError:
    below = [name for name in known if name.startswith(f'{key}.')]
    if below:
        return UserError(f'config.{key}', format_value(value), f'keys such as {below[0]}', 'see bertjax/recipe.py')
    return unknown_key_error(key, known)


def declared(config: Mapping[str, Any]) -> dict[str, tuple[Range, Any]]:
    """Range and default of every key that a config of this kind can have.

    Raises:
      UserError: no such kind of task.
    """
    if 'task' in config:
        kinds = one_of(KINDS)
        kind = flatten(config).get('task.kind')
        check_value('task.kind', kind, kinds, 'classification')
        of_task = {f'task.{name}': (option.allowed, option.default) for name, option in options(kind).items()}
        taught = _paired(TASK_DISTILLATION, distillation(finetuning_config(kind))) if 'distill' in config else {}
        return {**_paired(FINETUNING, finetuning_config(kind)), **taught, 'task.kind': (kinds, kind), **of_task}
    verb = next((verb for verb in OF_VERB if verb in config), None)
    if verb:
        own = {f'{verb}.{name}': declaration for name, declaration in OF_VERB[verb].items()}
        usual = using_config(verb)
        return {**_paired({key: USING[key] for key in flatten(usual)}, usual), **own}
    known = _paired(PRETRAINING, pretraining_config())
    if 'distill' in config:
        known |= _paired(DISTILLATION, distillation(pretraining_config()))
    entries = dict.fromkeys(match[0] for match in map(re.compile(r'phases\[\d+\]').match, flatten(config)) if match)
    for entry in entries:
        known.pop('phases', None)
        known |= {f'{entry}.{name}': pair for name, pair in _paired(PHASE, phase(steps='50%')).items()}
    return known


def _paired(ranges: Mapping[str, Range], usual: Mapping[str, Any]) -> dict[str, tuple[Range, Any]]:
    defaults = flatten(usual)
    return {key: (allowed, defaults[key]) for key, allowed in ranges.items()}
