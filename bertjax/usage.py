"""The output of --help: the flags and verbs of the program, or the docstring and the keys of a recipe."""

import ast
import importlib
import pathlib
import pkgutil
import shutil
import sys
import textwrap
import types

from bertjax import commands
from bertjax.config.check import check_ranges, config_keys
from bertjax.config.files import find_recipe, load_recipe, recipe_names
from bertjax.config.plain import flatten
from bertjax.config.verb import EXAMPLES
from bertjax.workdir.differences import align_columns, format_literal

_PROGRAM = """bertjax: pre-train and fine-tune BERT.

  bertjax RECIPE[:ARGUMENT] [KEY=VALUE ...] --workdir=DIR
  bertjax --config=RECIPE[:ARGUMENT] [--config.KEY=VALUE ...] --workdir=DIR    the same with the full names of flags
  python -m bertjax.main ...     the same without an installation of bertjax

  --config=RECIPE     a file such as configs/pretrain_tiny.py, or the name of a recipe that comes with bertjax:
{recipes}
  --config=FILE.yaml  a config file: `recipe: NAME` and the changed keys, or all keys, as in the config.json of a run
  --workdir=DIR       the folder of the run, for config.json, tokenizer/, store/, checkpoints/, metrics.jsonl, export/
  --config.KEY=VALUE  changes one key of the recipe, for example --config.batch_size=64
  --config.run=VERB   the verb to run, see below; each recipe has a default
  --verbosity=1       prints more, such as the mesh, the attention implementation and the parameters with weight decay
  --help RECIPE       prints the documentation and the keys of a recipe
  --version           prints the version of bertjax

Verbs:
{verbs}

First steps:
  bertjax pretrain_tiny --workdir=out/tiny
  bertjax pretrain_tiny corpus='texts/*.txt' --workdir=out/mine
  bertjax glue:rte init=out/tiny lr=3e-5 --workdir=out/rte

The same command in the same workdir continues the run. --helpfull lists all flags.
"""


def verbs() -> list[str]:
    """Returns the names of the verbs. Each verb is a file in bertjax/commands/."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def load_verb(name: str) -> types.ModuleType:
    """Returns the module of a verb, with its function `run` and its requirements `VERB`."""
    return importlib.import_module(f'bertjax.commands.{name}')


def example_recipe(verb: str) -> str:
    """Returns an example of a recipe that a verb can run, or the placeholder 'RECIPE'."""
    return verb if verb in recipe_names() else EXAMPLES.get(load_verb(verb).VERB.needs, 'RECIPE')


def program_help() -> str:
    """Returns the help of the program: flags, recipes and verbs."""
    lines = align_columns((f'  {verb}', _purpose(verb)) for verb in verbs())
    indent = ' ' * 22
    names = textwrap.fill(', '.join(recipe_names()), 120, initial_indent=indent, subsequent_indent=indent)
    return _PROGRAM.format(recipes=names, verbs='\n'.join(lines))


def _purpose(verb: str) -> str:
    """Returns PURPOSE from a verb's docstring `run=VERB: PURPOSE.`. Importing the module would be slow."""
    text = (pathlib.Path(commands.__path__[0]) / f'{verb}.py').read_text(encoding='utf-8')
    first = (ast.get_docstring(ast.parse(text)) or '').partition('\n')[0]
    return first.removeprefix(f'run={verb}: ').removesuffix('.')


def recipe_help(recipe: str) -> str:
    """Returns the docstring of a recipe, NAME[:ARGUMENT] or FILE.py[:ARGUMENT], and its keys with values and ranges.

    Raises:
      UserError: The recipe does not exist or raises an error, or its argument sets a value outside its range.
    """
    path = find_recipe(recipe)
    config = load_recipe(path)
    check_ranges(config)
    text = pathlib.Path(path.partition(':')[0]).read_text(encoding='utf-8')
    descriptions = {name: (key.about.removesuffix('.'), key.allowed.words) for name, key in config_keys(config).items()}
    rows = [
        (f'  {name}', format_literal(value), '; '.join(filter(None, descriptions.get(name, ()))))
        for name, value in flatten(config).items()
    ]
    heading, lines = f'Keys of --config={recipe}; change them with --config.KEY=VALUE:', align_columns(rows)
    if sys.stdout.isatty():  # In a pipe, each key stays on one line, for grep.
        names, values, _ = zip(*rows, strict=True)
        start = sum(2 + max(map(len, column)) for column in (names, values))
        width = max(shutil.get_terminal_size().columns, start + 40)
        lines = [textwrap.fill(line, width, subsequent_indent=' ' * start) for line in lines]
    return '\n'.join([ast.get_docstring(ast.parse(text)) or '', '', heading, *lines, ''])
