"""killing.py hooks every file operation and kills a process there."""

import errno
import os
import pathlib
import shutil

import pytest
from killing import in_fork, kill_at_each, watch

from bertjax.files.atomic import write_atomic


def work(folder: pathlib.Path) -> None:
    """Does each kind of operation with the usual functions of Python."""
    (folder / 'a').mkdir()
    os.makedirs(folder / 'b' / 'c')
    (folder / 'a' / 'x').write_text('1')
    with open(folder / 'a' / 'y', 'w') as file:
        os.fsync(file.fileno())
    os.close(os.open(folder / 'a' / 'z', os.O_CREAT | os.O_WRONLY))
    os.replace(folder / 'a' / 'y', folder / 'b' / 'y')
    os.truncate(folder / 'a' / 'x', 0)
    (folder / 'a' / 'x').read_text()
    shutil.rmtree(folder / 'a')


OPERATIONS = [
    'mkdir a', 'mkdir b', 'mkdir b/c', 'open a/x', 'open a/y', 'fsync a/y', 'open a/z', 'replace b/y', 'truncate a/x',
    'unlink a/x', 'unlink a/z', 'rmdir a',
]  # fmt: skip


def test_every_operation_is_noted(tmp_path: pathlib.Path):
    noted = []
    with watch(lambda name, path: noted.append(f'{name} {os.path.relpath(path, tmp_path)}'), tmp_path):
        work(tmp_path)
        (tmp_path.parent / f'{tmp_path.name}.beside').touch()
    noted[-3:-1] = sorted(noted[-3:-1])  # files are removed in the order of the directory
    assert noted == OPERATIONS


def test_kills_leave_an_atomic_file_complete_or_absent(tmp_path: pathlib.Path):
    """After a kill, the file is complete or does not exist."""
    seen = []
    for number in kill_at_each(lambda: write_atomic(tmp_path / 'run' / 'a', 'whole'), tmp_path):
        path = tmp_path / 'run' / 'a'
        seen.append((number, path.read_text() if path.exists() else None))
        shutil.rmtree(tmp_path / 'run', ignore_errors=True)
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1)) and len(seen) >= 4
    assert {text for _, text in seen} <= {None, 'whole'} and seen[0][1] is None


def test_an_operation_can_fail(tmp_path: pathlib.Path):
    def refuse(name: str, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    with watch(refuse, tmp_path), pytest.raises(OSError, match='No space left'):
        (tmp_path / 'a').write_text('')
    assert in_fork(lambda: 1 / 0) == 1
