"""The seal of a checkpoint: a file, written last, with the sizes and checksums of all other files.

Orbax marks a complete step as committed, but it does not notice flipped bits when it restores the arrays. In bertjax, a
step is finished if its seal exists, and undamaged if all other files have the recorded sizes and checksums.
"""

import hashlib
import json
import math
import pathlib
from typing import Any

from bertjax.files.atomic import checksum, sync_directory, sync_tree, write_atomic
from bertjax.files.small_files import read_json_or_none

FILE = 'seal.json'


def write_checksums(step_dir: pathlib.Path, cost: float | None) -> None:
    """Syncs all files of a step to disk, and then writes the seal.

    `cost` is the held-out loss or the negative dev score; None if it was not measured.
    """
    sync_tree(step_dir)
    sync_directory(step_dir.parent)
    files = {
        path.relative_to(step_dir).as_posix(): {'bytes': path.stat().st_size, 'sha256': checksum(path)}
        for path in sorted(step_dir.rglob('*'))
        if path.is_file() and path.name != FILE
    }
    finite_cost = cost if cost is not None and math.isfinite(cost) else None
    body = {'cost': finite_cost, 'files': files}
    write_atomic(step_dir / FILE, json.dumps({**body, 'sha256': _compute_digest(body)}, indent=1) + '\n')


def _compute_digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_seal(step_dir: pathlib.Path) -> dict[str, Any] | None:
    """Returns the content of the seal, or None if it is missing or does not match its own checksum."""
    return read_json_or_none(
        step_dir / FILE, lambda body: body if body.pop('sha256') == _compute_digest(body) else None
    )


def is_finished(step_dir: pathlib.Path) -> bool:
    """Returns whether the step was written completely. It may have been damaged later."""
    return (step_dir / FILE).is_file()


def read_cost(step_dir: pathlib.Path) -> float | None:
    """Returns the recorded cost. Returns None if no finite cost was measured, or the seal is missing or damaged."""
    body = _read_seal(step_dir)
    return body['cost'] if body else None


def find_damage(step_dir: pathlib.Path) -> str | None:
    """Compares the files of a finished step with its seal. Returns a description of the first damage, or None."""
    body = _read_seal(step_dir)
    if body is None:
        return f'its {FILE} is damaged or missing'
    for name, recorded in body['files'].items():
        path = step_dir / name
        if not path.is_file():
            return f'{name} is missing'
        if path.stat().st_size != recorded['bytes']:
            return f'{name} has {path.stat().st_size} bytes instead of {recorded["bytes"]}'
        if checksum(path) != recorded['sha256']:
            return f'{name} does not match its checksum'
    return None
