"""Reads --config=FILE.yaml or FILE.json, which has the changed keys of a recipe, or all keys of a run.

    recipe: glue:rte
    learning_rate: 3e-5
    optimizer:
      b2: 0.98

Without `recipe`, the file must have every key of a run, as WORKDIR/config.json does.
"""

import pathlib
import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml
from ml_collections import ConfigDict

from bertjax.config.check import check_recorded, keys_class
from bertjax.config.files import SAVED_CONFIG, Recipe, find_recipe, load_recipe
from bertjax.config.plain import from_plain
from bertjax.config.pretraining import BUDGET_CHOICES, ROTARY_FIELDS
from bertjax.config.ranges import format_value
from bertjax.config.recipes import as_config
from bertjax.config.schema import from_config
from bertjax.errors import UserError


class _Loader(yaml.SafeLoader):
    """A loader that reads 3e-5 as a number, as in YAML 1.2. PyYAML follows YAML 1.1, in which 3e-5 is text."""


_FLOAT = re.compile(r'[-+]?\d+(\.\d*)?[eE][-+]?\d+$')
_Loader.add_implicit_resolver('tag:yaml.org,2002:float', _FLOAT, list('-+0123456789'))


def get_config(path: str) -> ConfigDict:
    """Returns the config that the file `path` describes.

    Raises:
      UserError: The file cannot be read, lacks a key of a run, or has a key or value that its recipe does not accept.
    """
    recipe, values = _read(path)
    if recipe is None:
        if values.get('budget'):  # the run computed these phases from its budget
            values['phases'] = []
        config = from_plain(values)
        check_recorded(config, path, 'correct it, or add `recipe: NAME` and keep only the changed keys')
        return as_config(from_config(keys_class(config), config))
    try:
        changed = Recipe(recipe, load_recipe(find_recipe(recipe))).with_keys(_flat(values))
        for key in changed.rows:
            fix = 'write one string; separate several paths by commas, such as a.txt,b.txt'
            raise UserError(f'config.{key}', format_value(values[key]), 'text', fix)
        return changed.config
    except UserError as error:
        raise UserError(f'{path}: {error.where}', error.found, error.expected, error.fix) from None


def make_recipe(name: str, config: ConfigDict, flag_keys: Collection[str] = ()) -> Recipe:
    """Returns the recipe `name` (as the user spells it), with its `config`.

    The keys that a saved config changes are added to `flag_keys`. For the saved config of a run, these are the keys
    that a new run would choose again: the choices of a budget, or ROTARY_FIELDS if config.init sets the architecture.
    """
    keys, base = {*flag_keys}, name
    while find_recipe(base).startswith(f'{SAVED_CONFIG}:'):
        inner, values = _read(base)
        if inner is None:
            if values.get('budget'):
                keys |= {'batch_size', *(f'model.{key}' for key in BUDGET_CHOICES)}
            if values.get('architecture_from') == 'init' and values.get('model', {}).get('position') == 'rope':
                keys |= {f'model.{key}' for key in ROTARY_FIELDS}
            break
        keys |= _flat(values).keys()
        base = inner
    return Recipe(name, config, keys, base=base)


def _read(path: str) -> tuple[str | None, dict[str, Any]]:
    """Returns (recipe, values): the recipe that a file names, or None, and the values of its other keys."""
    expected, fix = 'a YAML mapping of keys to values', 'for example the lines `recipe: glue:rte` and `steps: 9`'
    try:
        values = yaml.load(pathlib.Path(path).read_text(encoding='utf-8'), _Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(path, ' '.join(str(error).split()), expected, fix) from None
    if not isinstance(values, dict):
        found = 'no keys' if values is None else f'a {type(values).__name__}'
        raise UserError(path, found, expected, fix)
    for key in values:
        if not isinstance(key, str):
            raise UserError(path, f'the key {format_value(key)}', 'a name as the key', fix)
    recipe = values.pop('recipe', None)
    if not isinstance(recipe, str | None):
        fix = 'for example recipe: glue:rte'
        raise UserError(f'{path}: recipe', repr(recipe), 'the name or the path of a recipe', fix)
    budget = values.get('budget')
    if isinstance(budget, float):  # YAML reads `budget: 3e15` as a number, but a recipe has text
        values['budget'] = f'{budget:.12g}'.replace('e+', 'e')
    return recipe, values


def _flat(values: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Flattens groups of keys, to a dict such as {'optimizer.b2': 0.98}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f'{prefix}{key}.')
        else:
            flat[f'{prefix}{key}'] = from_plain(value)
    return flat
