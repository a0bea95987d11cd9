"""run=show: print the config as it would run; how it differs from the recipe and from the run in WORKDIR."""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.plain import plain
from bertjax.config.verb import Verb
from bertjax.errors import printable
from bertjax.files.paths import user_name
from bertjax.train.health.goodput import read_goodput
from bertjax.workdir.differences import (
    Difference,
    align_columns,
    comparable_keys,
    find_differences,
    format_literal,
    resolve_like,
)
from bertjax.workdir.files import recorded_config

VERB = Verb(devices=False, workdir=False, bucket='look')


def run(config: ConfigDict, workdir: str | None, recipe: str) -> None:
    """Prints; nothing is computed, written or locked.

    A line a key, in alphabetical order, so that two such lists can be compared with `diff`.

    Args:
      config: with what the command line changes.
      workdir: where a run may be; None for none.
      recipe: as the command line names it.

    Raises:
      UserError: the config.json of the workdir is damaged, or of a run of another kind.
    """
    own, theirs = plain(config), plain(load_recipe(find_recipe(recipe)))
    path = pathlib.Path(workdir or '.') / 'config.json'
    saved = recorded_config(path, own) if workdir and path.exists() else None
    _print(align_columns((key, format_literal(value)) for key, value in comparable_keys(own).items()))
    _print_differences(f'the recipe {recipe}', find_differences(theirs, own))
    if saved is not None:
        if goodput := read_goodput(path.parent):
            _print(['', f'goodput {goodput}'])
        _print_differences(f'the run in {user_name(path.parent)}', find_differences(saved, resolve_like(own, saved)))


def _print_differences(other: str, found: Sequence[Difference]) -> None:
    if found:
        _print(['', f'differs from {other} in'])
        _print(f'  {line}' for line in align_columns((one.key, one.before, '->', one.after) for one in found))
    else:
        _print(['', f'the same as {other}'])


def _print(lines) -> None:
    for line in lines:
        print(printable(line))
