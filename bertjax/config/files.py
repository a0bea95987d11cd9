"""Find recipes by name or by path, and load their configs."""

import importlib.util
import inspect
import pathlib
import re
import traceback

from ml_collections import ConfigDict

from bertjax.config.suggestions import suggestion
from bertjax.errors import UserError

_PACKAGE = pathlib.Path(__file__).parent.parent
# The first folder exists in an installed bertjax, the second folder in a checkout.
_FOLDERS = (_PACKAGE / 'configs', _PACKAGE.parent / 'configs')


def recipe_names() -> list[str]:
    """Returns the names of the recipes that come with bertjax."""
    return sorted(path.stem for folder in _FOLDERS for path in folder.glob('*.py'))


def find_recipe(recipe: str) -> str:
    """Resolves `NAME[:ARGUMENT]` to `FILE.py[:ARGUMENT]`; a path is returned unchanged.

    Raises:
      UserError: `recipe` is neither the name nor the path of a recipe.
    """
    name, colon, argument = recipe.partition(':')
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
        raise UserError(f'{path}:{e.lineno}', e.msg, 'Python', 'correct the recipe') from None
    except Exception as e:  # a recipe may raise anything
        lines = [frame.lineno for frame in traceback.extract_tb(e.__traceback__) if frame.filename == path]
        where = f'{path}:{lines[-1]}' if lines else path
        reason = ' '.join(f'{type(e).__name__}: {e}'.split())
        raise UserError(where, reason, 'a recipe that runs', 'correct this line') from e
    if not isinstance(config, ConfigDict):
        found, fix = f'a {type(config).__name__} from get_config', 'make it with a function of bertjax.config.recipes'
        raise UserError(path, found, 'a ConfigDict', fix)
    return config
