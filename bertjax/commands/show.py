"""run=show: print the config, and how it differs from the recipe and from the run in WORKDIR."""

import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict

from bertjax.config.files import find_recipe, load_recipe
from bertjax.config.plain import to_plain
from bertjax.config.verb import Verb
from bertjax.errors import printable
from bertjax.files.paths import display_path
from bertjax.training.health.goodput import read_goodput
from bertjax.workdir.differences import (
    align_columns,
    comparable_keys,
    find_differences,
    format_literal,
    resolve_like,
    task_kind,
)
from bertjax.workdir.files import read_recorded_config

VERB = Verb(devices=False, workdir=False, bucket='look')


def run(config: ConfigDict, workdir: str | None, recipe: str) -> None:
    """Prints the config, and its differences from the recipe and from the run in the workdir, if there is one.

    The keys are printed line by line in alphabetical order, so that `diff` can compare two outputs. The goodput of the
    run is printed too. The verb writes and locks nothing.

    Raises:
      UserError: The config.json of the workdir is damaged, or the workdir has a run of another kind than the recipe.
    """
    values, defaults = to_plain(config), to_plain(load_recipe(find_recipe(recipe)))
    path = pathlib.Path(workdir or '.') / 'config.json'
    kind = task_kind(values)
    run_config = read_recorded_config(path, kind) if workdir and path.exists() and kind is not None else None
    _print(align_columns((key, format_literal(value)) for key, value in comparable_keys(values).items()))
    changed = find_differences(defaults, values)
    _print_differences(f'the recipe {recipe}', changed)
    if run_config is not None:
        if goodput := read_goodput(path.parent):
            _print(['', f'goodput {goodput}'])
        resolved = resolve_like(values, run_config, [key for key, *_ in changed])
        _print_differences(f'the run in {display_path(path.parent)}', find_differences(run_config, resolved))


def _print_differences(other: str, differences: Sequence[tuple[str, str, str]]) -> None:
    if differences:
        _print(['', f'differs from {other} in'])
        _print(f'  {line}' for line in align_columns((key, before, '->', after) for key, before, after in differences))
    else:
        _print(['', f'the same as {other}'])


def _print(lines) -> None:
    for line in lines:
        print(printable(line))
