"""Files that appear whole or not at all."""

import os

from etils import epath


def write_atomic(path: epath.PathLike, data: bytes | str) -> None:
    """Writes `data` (text as UTF-8) to `path` through a neighbouring temporary file, flushed to disk, then renamed."""
    path = epath.Path(path)
    data = data.encode('utf-8') if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f'.{path.name}.tmp-{os.getpid()}'
    with temporary.open('wb') as file:
        file.write(data)
        file.flush()
        if hasattr(file, 'fileno'):
            os.fsync(file.fileno())
    temporary.replace(path)
