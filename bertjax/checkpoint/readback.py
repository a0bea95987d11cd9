"""Whether what was saved can be read: by a fresh reader, all but the bytes of the arrays."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from bertjax.errors import UserError

Structure = dict[str, tuple[tuple[int, ...], str]]


def structure(tree: Any) -> Structure:
    """{path of an array: its shape and dtype}, of arrays or of what describes them."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {'/'.join(map(_name, path)): (tuple(x.shape), str(x.dtype)) for path, x in leaves}


def _name(key: Any) -> str:
    return str(next(getattr(key, field) for field in ('key', 'name', 'idx') if hasattr(key, field)))


def check_readable(step_dir: pathlib.Path, state: Structure, items: Mapping[str, Any]) -> None:
    """Reads a step's structure and its JSON items as another process will.

    Args:
      step_dir: of the step, by a path that Orbax can take.
      state: what was given to save.
      items: {name: what was given to save as JSON}.

    Raises:
      UserError: they cannot be read, or are not what was given.
    """
    try:
        found = structure(ocp.StandardCheckpointHandler().metadata(epath.Path(step_dir, 'state')).tree)
        wrong = sorted(found.items() ^ state.items())
        for name, given in items.items():
            read = ocp.JsonCheckpointHandler().restore(epath.Path(step_dir, name))
            if json.dumps(read, sort_keys=True) != json.dumps(given, sort_keys=True):
                wrong.append((name, 'another value'))
    except Exception as error:  # Orbax and tensorstore raise a dozen kinds.
        wrong = [(type(error).__name__, ' '.join(str(error).split())[:200])]
    if wrong:
        name, what = wrong[0]
        raise UserError(
            f'checkpoint {step_dir.name}',
            f'a save that cannot be read back ({name}: {what})',
            'what was given to save',
            'the checkpoints before it are whole: check the disk, then start the same command again',
        )
