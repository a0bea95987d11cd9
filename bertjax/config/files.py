"""Finds recipes by name or by path, loads their configs, and changes the values of keys."""

import contextlib
import copy
import dataclasses
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bertjax.config.check import check_key, check_ranges, config_keys
from bertjax.config.plain import flatten
from bertjax.config.ranges import check_value
from bertjax.config.recipes import phase
from bertjax.config.suggestions import suggestion
from bertjax.errors import UserError
from bertjax.tasks.registry import options

_PACKAGE = pathlib.Path(__file__).parent.parent
# The folders of the recipes: in an installed bertjax, and in a checkout.
_FOLDERS = (_PACKAGE / 'configs', _PACKAGE.parent / 'configs')
# A Python program may give rows instead of file names for these keys; see workdir/rows.py.
ROW_KEYS = ('data', 'corpus')
_PATH = (str, os.PathLike)
SAVED_CONFIG = _PACKAGE / 'config' / 'saved_config.py'


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A recipe with the changes of the user, made by `bertjax.recipe` or by the command line.

    Attributes:
      name: The recipe as the user spells it.
      config: The config of the recipe with all changes.
      flag_keys: The config keys that the user set: in flags `--config.KEY=VALUE`, in Python or in a saved config.
      rows: The rows that a Python program gave instead of files, {key of ROW_KEYS: rows}.
      base: The recipe that a saved config names; '' means `name`.
    """

    name: str
    config: ConfigDict
    flag_keys: Collection[str] = frozenset()
    rows: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    base: str = ''

    def __post_init__(self):
        if 'steps' not in self.flag_keys:
            _use_epochs(self.config, self.flag_keys)

    def __repr__(self) -> str:
        values = flatten(self.config)
        keys = [f'{key}={values[key]!r}' for key in sorted(self.flag_keys) if key in values and key not in self.rows]
        return f'Recipe({", ".join([repr(self.name), *keys, *(f"{key}=rows" for key in self.rows)])})'

    def with_keys(self, keys: Mapping[str, Any]) -> 'Recipe':
        """Returns a copy in which some keys have new values, such as {'optimizer.b2': 0.98}.

        Raises:
          UserError: A key is unknown, or a value is outside its range.
        """
        config, known, flat = copy.deepcopy(self.config), config_keys(self.config), flatten(self.config)
        rows = {key: value for key, value in keys.items() if key in ROW_KEYS and not isinstance(value, _PATH)}
        for key, value in keys.items():
            check_key(key, flat)
            if key in rows:
                continue
            value = _to_config_value(value)
            try:
                completed = complete_phases(value) if key == 'phases' else value
                if completed is value and key in known:
                    check_value(key, value, known[key].allowed, known[key].default)
                config_path.set_value(key, config, completed)
            except (TypeError, ValueError) as error:
                found = f'{value!r}, a {type(value).__name__}'
                expected = 'a value of the type that the key has in this recipe'
                raise UserError(f'config.{key}', found, expected, str(error)) from None
        if 'steps' not in keys:
            _use_epochs(config, keys)
        check_ranges(config)
        rows |= {key: value for key, value in self.rows.items() if key not in keys}
        return dataclasses.replace(self, config=config, flag_keys=frozenset((*self.flag_keys, *keys)), rows=rows)

    @property
    def command_line_keys(self) -> set[str]:
        """The keys in `flag_keys`, and the keys that the argument of the recipe sets."""
        path, config, keys = find_recipe(self.base or self.name), self.config, set(self.flag_keys)
        recipe, _, argument = path.partition(':')
        if argument and recipe != str(SAVED_CONFIG):
            if 'distill' in config and 'task' in config:
                with contextlib.suppress(UserError):  # a user's recipe may take any argument
                    return keys | Recipe(argument, load_recipe(find_recipe(argument))).command_line_keys
            with contextlib.suppress(UserError):  # the recipe may require an argument
                defaults = flatten(load_recipe(recipe))
                keys |= {key for key, value in flatten(load_recipe(path)).items() if value != defaults.get(key)}
            if '=' not in argument.split(',')[0] and 'task' in config:  # the first item is a name, as in glue:rte
                named_options = [name for name, option in options(config.task.kind).items() if option.named]
                keys |= {f'task.{name}' for name in named_options if name in config.task}
        return keys


def _use_epochs(config: ConfigDict, set_keys: Collection[str]) -> None:
    """Sets the steps of a fine-tuning to 0 if the user sets its epochs, which then decide the length of the run."""
    if 'task' in config and ('epochs' in set_keys or ('sweep.epochs' in set_keys and config.sweep.epochs)):
        config.steps = 0


def complete_phases(entries: Any) -> Any:
    """Returns the value of config.phases. Keys that a dict leaves out get their defaults.

    Raises a UserError if a value has another type than its key.
    """
    if not (isinstance(entries, tuple) and all(isinstance(entry, dict) for entry in entries)):
        return entries  # `check_ranges` reports the wrong value
    try:
        return tuple(phase(**entry) for entry in entries)
    except (TypeError, ValueError) as error:
        fix = ' '.join(str(error).split())
        raise UserError('config.phases', repr(entries), 'values of the types of their keys', fix) from None


def _to_config_value(value: Any) -> Any:
    """Converts a path, a list, a dict or a NumPy scalar to the type that a flag would give."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return tuple(map(_to_config_value, value))
    if isinstance(value, dict | ConfigDict):
        return {name: _to_config_value(entry) for name, entry in value.items()}
    return value.item() if hasattr(value, 'item') and not getattr(value, 'ndim', 0) else value


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with bertjax."""
    return sorted(path.stem for folder in _FOLDERS for path in folder.glob('*.py'))


def find_recipe(recipe: str) -> str:
    """Resolves `NAME[:ARGUMENT]` to `FILE.py[:ARGUMENT]`. The path of a recipe is returned unchanged.

    A saved config, FILE.yaml or FILE.json, becomes the argument of the recipe `bertjax.config.saved_config`.

    Raises:
      UserError: `recipe` is neither the name nor the path of a recipe.
    """
    name, colon, argument = recipe.partition(':')
    if pathlib.Path(recipe).suffix in ('.yaml', '.yml', '.json') and pathlib.Path(recipe).is_file():
        return f'{SAVED_CONFIG}:{recipe}'
    if pathlib.Path(name).is_file():
        return recipe
    if re.fullmatch(r'\w+', name):
        for folder in _FOLDERS:
            if (folder / f'{name}.py').is_file():
                return f'{folder / name}.py{colon}{argument}'
    expected = 'the name or the path of a recipe'
    if '/' not in name:
        names = recipe_names()
        fix = suggestion(name.removesuffix('.py'), names) or 'choose from ' + ', '.join(names)
        raise UserError('--config', f'no recipe {name!r}', expected, fix)
    paths = [*pathlib.Path(name).parent.glob('*.py'), *pathlib.Path('configs').glob('*.py')]
    choices = sorted(map(str, paths)) or [f'--config={name}' for name in recipe_names()]
    raise UserError('--config', f'no file {name}', expected, 'choose from ' + ', '.join(choices))


def load_recipe(recipe: str) -> ConfigDict:
    """Loads the config of `FILE.py[:ARGUMENT]`.

    Raises:
      UserError: The file is not a recipe, the recipe raises an error, or the recipe takes no argument but gets one.
    """
    path, _, argument = recipe.partition(':')
    spec = importlib.util.spec_from_file_location('recipe', path)
    if spec is None:  # not a .py file
        raise UserError('--config', path, 'a Python file with a function get_config', 'see configs/')
    module = importlib.util.module_from_spec(spec)
    with contextlib.suppress(OSError):  # the current folder was deleted
        # `python -m` adds the current folder to sys.path; the script `bertjax` does not.
        if pathlib.Path(path).parent not in _FOLDERS and not {'', os.getcwd()} & {*sys.path}:
            sys.path.append(os.getcwd())
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, 'get_config'):
            raise UserError(path, 'no function get_config', 'get_config(argument) -> ConfigDict', 'see configs/')
        if argument and not inspect.signature(module.get_config).parameters:
            found, expected = f'the argument {argument!r}', f'none: {path} takes no argument'
            raise UserError('--config', found, expected, f'give --config={path}')
        config = module.get_config(argument) if argument else module.get_config()
    except UserError:
        raise
    except SyntaxError as e:
        raise UserError(f'{path}:{e.lineno}', e.msg, 'valid Python', 'correct the recipe') from None
    except Exception as e:  # a recipe may raise anything
        lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == spec.origin]
        where = f'{path}:{lines[-1]}' if lines else path
        reason = ' '.join(f'{type(e).__name__}: {e}'.split())
        raise UserError(where, reason, 'a recipe that runs', 'correct the recipe') from e
    if not isinstance(config, ConfigDict):
        found, fix = f'a {type(config).__name__} from get_config', 'make it with a function of bertjax.config.recipes'
        raise UserError(path, found, 'a ConfigDict', fix)
    return config
