"""Runs the verb of a recipe from the command line or from Python, after checks of the recipe and the workdir."""

import contextlib
import inspect
import json
import os
import pathlib
import types
from collections.abc import Callable

import jax
import jaxlib

from bertjax import __version__, memory
from bertjax.config.check import check_ranges
from bertjax.config.files import Recipe
from bertjax.config.plain import dump
from bertjax.config.resume import check_processes
from bertjax.config.suggestions import VERBS, nearest_name
from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.files import disk, memory_map
from bertjax.files.paths import check_address, is_remote
from bertjax.parallel import distributed
from bertjax.usage import example_recipe, load_verb, verbs


def run_verb(recipe: Recipe, workdir: str | None, prepare: Callable[[str, Verb], None]) -> None:
    """Runs the verb of a recipe, config.run.

    Args:
      workdir: The path of the workdir, or its address in a bucket; None if the verb needs none.
      prepare: A function to call with the name and the declaration of the verb, before `check_processes`.

    Raises:
      UserError: The config or the workdir is wrong, several processes differ in their config, versions or workdir, or
        the verb fails with a UserError.
    """
    config, in_bucket = recipe.config, is_remote(workdir or '')
    if in_bucket:
        check_address(workdir, '--workdir')
    else:
        workdir = workdir and os.path.expanduser(workdir)
        path = pathlib.Path(workdir or '.')
        existing = next((parent for parent in (path, *path.parents) if parent.exists()), None)
        if existing and not existing.is_dir():
            raise UserError('--workdir', f'{existing}, which is a file', 'a folder for the run', 'give another path')
    disk.check_open_files()
    check_ranges(config)
    module = _find_verb(recipe)
    verb: Verb = module.VERB
    if not workdir and (verb.workdir or recipe.rows):
        raise UserError('--workdir', 'nothing', 'a folder for the run', 'for example --workdir=out/tiny')
    if verb.devices:
        memory.check_address_space()
    memory_map.explain_bus_errors()
    prepare(config.run, verb)
    if distributed.is_multiprocess():
        facts = {'workdir': workdir.rstrip('/') if in_bucket else 'a local folder', 'bertjax version': __version__}
        facts |= {'jax version': jax.__version__, 'jaxlib version': jaxlib.__version__}
        for compared in ({'fingerprints': facts}, config):  # the versions first, because another one has other keys
            check_processes([json.loads(text) for text in distributed.gather_texts(dump(compared))])
    if in_bucket:
        from bertjax.workdir.mirror import mirrored_workdir  # This module imports most export formats.
    with mirrored_workdir(workdir, verb.bucket) if in_bucket else contextlib.nullcontext(workdir) as folder:
        if recipe.rows:
            from bertjax.workdir.rows import write_rows

            recipe = write_rows(recipe, pathlib.Path(folder))
        # See `config.verb.Verb` for the arguments that follow the config and the workdir.
        names = [*inspect.signature(module.run).parameters][2:]
        arguments = {name: recipe.name if name == 'recipe' else getattr(recipe, name) for name in names}
        module.run(recipe.config, folder, **arguments)


def explain_error(error: Exception, workdir: str | None) -> UserError | None:
    """Returns a UserError if the machine caused `error`, for example by a full disk or too little memory; else None."""
    return disk.explain_os_error(error, workdir or '.') or memory.out_of_memory_error(error)


def _find_verb(recipe: Recipe) -> types.ModuleType:
    """Returns the module of config.run. Raises a UserError if the verb does not exist, or needs another recipe."""
    config, name = recipe.config, recipe.config.run
    if name not in verbs():
        possible = [verb for verb in verbs() if load_verb(verb).VERB.needs in ('', *config)]
        near = nearest_name(name, possible, VERBS) or nearest_name(name, verbs(), VERBS)
        fix = f'did you mean --config.run={near}?' if near else 'see --help'
        raise UserError('config.run', repr(name), 'one of ' + ', '.join(verbs()), fix)
    module = load_verb(name)
    if module.VERB.needs not in ('', *config):
        found, fix = f'a recipe without config.{module.VERB.needs}', f'give a recipe such as {example_recipe(name)}'
        raise UserError(f'--config.run={name}', found, 'a recipe with this key', fix)
    if 'distill' in config and not module.VERB.teacher:
        fix = 'leave out --config.run, or give a recipe without a teacher'
        raise UserError(f'--config.run={name}', 'a recipe with config.distill', '--config.run=distill', fix)
    return module
