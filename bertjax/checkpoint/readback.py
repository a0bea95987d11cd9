"""A check that a saved checkpoint can be read back. It does not check the values of the arrays."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.errors import UserError

Structure = dict[str, tuple[tuple[int, ...], str]]  # {path: (shape, dtype)} of arrays


def structure(tree: Any) -> Structure:
    """Returns {path: (shape, dtype)} of the arrays, or abstract arrays, in a tree."""
    leaves = jax.tree.flatten_with_path(tree)[0]
    name = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
    return {name(path): (tuple(x.shape), str(x.dtype)) for path, x in leaves}


def check_readable(step_dir: pathlib.Path, state: Structure, items: Mapping[str, Any]) -> None:
    """Raises a UserError if the structure of the state or a JSON item of a saved step differs when it is read back.

    The path `step_dir` has no wildcards, which Orbax would expand. `items` is {name: saved JSON value}.
    """
    try:
        restored = structure(ocp.StandardCheckpointHandler().metadata(epath.Path(step_dir, 'state')).tree)
        differences = sorted(restored.items() ^ state.items())
        for name, saved in items.items():
            read = ocp.JsonCheckpointHandler().restore(epath.Path(step_dir, name))
            if json.dumps(read, sort_keys=True) != json.dumps(saved, sort_keys=True):
                differences.append((name, 'another value'))
    except Exception as error:  # Orbax and tensorstore raise many types
        differences = [(type(error).__name__, ' '.join(str(error).split())[:200])]
    if differences:
        name, reason = differences[0]
        found = f'a save that cannot be read back ({name}: {reason})'
        fix = 'check the disk, then start the same command again: earlier checkpoints are kept'
        raise UserError(f'checkpoint {step_dir.name}', found, 'the values that were saved', fix)
