"""A seal on each checkpoint: sizes and checksums of its files, written last.

Orbax marks a step as committed, but restores arrays with flipped bits without a word. A step counts here as finished
when its seal exists, and as whole when every file still has the size and the checksum that the seal names.
"""

import hashlib
import json
import math
import pathlib
from typing import Any

from bertjax.files.atomic import checksum, write_atomic

SEAL = 'seal.json'


def _files(step_dir: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in step_dir.rglob('*') if path.is_file() and path.name != SEAL)


def write_seal(step_dir: pathlib.Path, cost: float | None) -> None:
    """Seals a finished step; `cost` is what the best checkpoint goes by, the held-out loss or minus the dev score."""
    files = {
        path.relative_to(step_dir).as_posix(): {'bytes': path.stat().st_size, 'sha256': checksum(path)}
        for path in _files(step_dir)
    }
    known = cost if cost is not None and math.isfinite(cost) else None
    body = {'cost': known, 'files': files}
    write_atomic(step_dir / SEAL, json.dumps({**body, 'sha256': _own_digest(body)}, indent=1) + '\n')


def _own_digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _read_seal(step_dir: pathlib.Path) -> dict[str, Any] | None:
    """The seal, None where it is not as it was written: it has a checksum of its own."""
    try:
        seal = json.loads((step_dir / SEAL).read_text(encoding='utf-8'))
        return seal if seal.pop('sha256') == _own_digest(seal) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_sealed(step_dir: pathlib.Path) -> bool:
    """Whether the step was finished (not whether it is still whole)."""
    return (step_dir / SEAL).is_file()


def cost(step_dir: pathlib.Path) -> float | None:
    """The cost that the seal carries, None where none was measured (or not finite) or the seal is damaged."""
    seal = _read_seal(step_dir)
    return seal['cost'] if seal else None


def damage(step_dir: pathlib.Path) -> str | None:
    """What is wrong with a sealed step, None when it is whole. Reads every byte."""
    seal = _read_seal(step_dir)
    if seal is None:
        return f'its {SEAL} is not as it was written'
    for name, facts in seal['files'].items():
        path = step_dir / name
        if not path.is_file():
            return f'{name} is missing'
        if path.stat().st_size != facts['bytes']:
            return f'{name} has {path.stat().st_size} bytes instead of {facts["bytes"]}'
        if checksum(path) != facts['sha256']:
            return f'{name} has another checksum than when it was written'
    return None
