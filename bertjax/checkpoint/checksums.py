"""Sizes and checksums of a checkpoint's files, written last, into a file of its own.

Orbax marks a step as committed, but restores arrays with flipped bits without a word. A step counts here as finished
when this file exists, and as whole when every other file still has the size and the checksum recorded in it.
"""

import hashlib
import json
import math
import pathlib
from typing import Any

from bertjax.files.atomic import checksum, sync_directory, sync_tree, write_atomic
from bertjax.files.small_files import read_json_or_none

FILE = 'seal.json'  # as in every workdir there is: under another name old checkpoints would count as unfinished


def _files(step_dir: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in step_dir.rglob('*') if path.is_file() and path.name != FILE)


def write_checksums(step_dir: pathlib.Path, cost: float | None) -> None:
    """Marks a step as finished; `cost` (the held-out loss, or minus the dev score) is what the best one goes by.

    All of it is on disk before it counts as finished, and the name of its folder too.
    """
    sync_tree(step_dir)
    sync_directory(step_dir.parent)
    files = {
        path.relative_to(step_dir).as_posix(): {'bytes': path.stat().st_size, 'sha256': checksum(path)}
        for path in _files(step_dir)
    }
    known = cost if cost is not None and math.isfinite(cost) else None
    body = {'cost': known, 'files': files}
    write_atomic(step_dir / FILE, json.dumps({**body, 'sha256': _own_digest(body)}, indent=1) + '\n')


def _own_digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read(step_dir: pathlib.Path) -> dict[str, Any] | None:
    """What was recorded, None where it is not as it was written: the file has a checksum of itself, too."""
    return read_json_or_none(step_dir / FILE, lambda body: body if body.pop('sha256') == _own_digest(body) else None)


def is_finished(step_dir: pathlib.Path) -> bool:
    """Whether the step was written to its end (not whether it is still whole)."""
    return (step_dir / FILE).is_file()


def cost(step_dir: pathlib.Path) -> float | None:
    """The recorded cost, None where none was measured, where it was not finite, or where the record is damaged."""
    body = _read(step_dir)
    return body['cost'] if body else None


def damage(step_dir: pathlib.Path) -> str | None:
    """What is wrong with a finished step, None when it is whole. Reads every byte."""
    body = _read(step_dir)
    if body is None:
        return f'its {FILE} is not as it was written'
    for name, facts in body['files'].items():
        path = step_dir / name
        if not path.is_file():
            return f'{name} is missing'
        if path.stat().st_size != facts['bytes']:
            return f'{name} has {path.stat().st_size} bytes instead of {facts["bytes"]}'
        if checksum(path) != facts['sha256']:
            return f'{name} has another checksum than when it was written'
    return None
