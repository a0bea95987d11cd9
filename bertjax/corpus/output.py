"""Files of a unit: they appear whole or not at all."""

import hashlib
import os
import pathlib

import numpy as np


def checksum(path: os.PathLike) -> str:
    """BLAKE2b of a file, 128 bits in hex."""
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


class Output:
    """A file that appears whole under its name, or not at all."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self._temporary = path.with_name(f'.{path.name}.tmp-{os.getpid()}')
        self.file = open(self._temporary, 'w+b')  # noqa: SIM115  Closed by close().

    def write(self, values: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(values).data)

    def close(self) -> int:
        self.file.flush()
        os.fsync(self.file.fileno())
        size = self.file.tell()
        self.file.close()
        self._temporary.replace(self.path)
        return size
