"""Where recipes are, by name or by path, and how one becomes a config."""

import importlib.util
import inspect
import pathlib
import re
import traceback

from ml_collections import ConfigDict

from bertjax.config.suggestions import suggestion
from bertjax.errors import UserError

_PACKAGE = pathlib.Path(__file__).parent.parent
# Of an installed bertjax, and of a checkout.
_FOLDERS = (_PACKAGE / 'configs', _PACKAGE.parent / 'configs')


def recipe_names() -> list[str]:
    """The recipes that come with bertjax, which need no path."""
    return sorted(path.stem for folder in _FOLDERS for path in folder.glob('*.py'))


def find_recipe(recipe: str) -> str:
    """`NAME[:ARGUMENT]` as `FILE.py[:ARGUMENT]`; a path stays as it is.

    Raises:
      UserError: neither the name of a recipe nor the path of one.
    """
    given, colon, argument = recipe.partition(':')
    if pathlib.Path(given).is_file():
        return recipe
    if re.fullmatch(r'\w+', given):
        for folder in _FOLDERS:
            if (folder / f'{given}.py').is_file():
                return f'{folder / given}.py{colon}{argument}'
    expected = 'the name or the path of a recipe'
    if '/' not in given:
        names = recipe_names()
        fix = suggestion(given.removesuffix('.py'), names) or 'there is ' + ', '.join(names)
        raise UserError('--config', f'no recipe {given!r}', expected, fix)
    have = [*pathlib.Path(given).parent.glob('*.py'), *pathlib.Path('configs').glob('*.py')]
    there = sorted(map(str, have)) or [f'--config={name}' for name in recipe_names()]
    raise UserError('--config', f'no file {given}', expected, 'there is ' + ', '.join(there))


def load_recipe(recipe: str) -> ConfigDict:
    """The config of `FILE.py[:ARGUMENT]`.

    Raises:
      UserError: a file that is no recipe, a recipe that does not run, an argument that it does not take.
    """
    path, _, argument = recipe.partition(':')
    spec = importlib.util.spec_from_file_location('recipe', path)
    if spec is None:  # not a .py file
        raise UserError('--config', path, 'a Python file with a function get_config', 'see configs/')
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if not hasattr(module, 'get_config'):
            raise UserError(path, 'no function get_config', 'get_config(argument) -> ConfigDict', 'see configs/')
        if argument and not inspect.signature(module.get_config).parameters:
            found, expected = f'the argument {argument!r}', f'none: {path} takes no argument'
            raise UserError('--config', found, expected, f'write {path}')
        config = module.get_config(argument) if argument else module.get_config()
    except UserError:
        raise
    except SyntaxError as e:
        raise UserError(f'{path}:{e.lineno}', e.msg, 'Python', 'correct the recipe') from None
    except Exception as e:  # whatever a recipe of one's own may raise
        lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == path]
        where = f'{path}:{lines[-1]}' if lines else path
        reason = ' '.join(f'{type(e).__name__}: {e}'.split())
        raise UserError(where, reason, 'a recipe that runs', 'correct this line') from e
    if not isinstance(config, ConfigDict):
        found, fix = f'a {type(config).__name__} from get_config', 'make it with a function of bertjax.config.recipes'
        raise UserError(path, found, 'a ConfigDict', fix)
    return config
