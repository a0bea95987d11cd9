"""Hooks every file operation of this process in order to kill the process there, to fail there, or to record it.

    with watch(note, folder): ...           calls note('replace', path) before each operation on a path below `folder`
    with kill_at(7, folder): ...            ends the process at the 7th operation
    for number in kill_at_each(work, folder): ...   runs `work` in forks: killed at operation 1, 2, … until one ends

Operations are: create, open for writing, rename, remove, truncate and sync. Operations of native code (the threads of
tensorstore) are not hooked. Operations of several threads are counted together.

From a shell, for a separate process:

    python tests/program/killing.py NUMBER FOLDER -m bertjax.main --config=… --workdir=FOLDER

With the number 0 the process is not killed, and the last line is the number of operations.
"""

import builtins
import contextlib
import io
import itertools
import os
import pathlib
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from unittest import mock

KILLED = 137  # the exit status that a shell reports after SIGKILL

# {function of os: index of the argument with the path that is created, changed or removed}
_PATHS = {'mkdir': 0, 'rmdir': 0, 'unlink': 0, 'remove': 0, 'truncate': 0, 'rename': 1, 'replace': 1, 'link': 1}
_HANDLES = ('fsync', 'ftruncate')
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

Note = Callable[[str, str], object]


@contextlib.contextmanager
def watch(note: Note, below: str | os.PathLike) -> Iterator[None]:
    """Calls note(name, path) before each operation on a path below a folder; if `note` raises, nothing is done."""
    folder = os.path.realpath(below)
    inside = threading.local()  # set during a hook, which ignores os.open() inside open() and operations of `note`

    def hook(name: str, real: Callable, path_of: Callable[..., str | None]) -> Callable:
        def call(*args, **options):
            if not getattr(inside, 'hook', False):
                inside.hook = True
                try:
                    path = path_of(*args, **options)
                    if path is not None and (path + os.sep).startswith(folder + os.sep):
                        note(name, path)
                finally:
                    inside.hook = False
            return real(*args, **options)

        return call

    def path_of_open(path, mode='r', *args, **options):
        writes = isinstance(path, str | os.PathLike) and set(mode) & set('wax+')
        return _absolute(path) if writes else None

    def path_of_os_open(path, flags, *args, dir_fd=None, **options):
        return _absolute(path, dir_fd) if flags & _WRITES else None

    with contextlib.ExitStack() as patches:
        for name, at in _PATHS.items():
            path_of = lambda *args, at=at, dir_fd=None, dst_dir_fd=None, **_: _absolute(args[at], dir_fd or dst_dir_fd)  # noqa: E731
            patches.enter_context(mock.patch.object(os, name, hook(name, getattr(os, name), path_of)))
        for name in _HANDLES:
            path_of = lambda handle, *_: os.readlink(f'/proc/self/fd/{_number(handle)}')  # noqa: E731
            patches.enter_context(mock.patch.object(os, name, hook(name, getattr(os, name), path_of)))
        patches.enter_context(mock.patch.object(os, 'open', hook('open', os.open, path_of_os_open)))
        real = io.open
        for module in (builtins, io):
            patches.enter_context(mock.patch.object(module, 'open', hook('open', real, path_of_open)))
        yield


def _absolute(path: str | bytes | os.PathLike, directory: int | None = None) -> str:
    """Returns the absolute path without links in its parent; `path` may be relative to an open directory."""
    path = os.fsdecode(path)
    if directory is not None:
        path = os.path.join(os.readlink(f'/proc/self/fd/{directory}'), path)
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(parent), name)


def _number(handle) -> int:
    return handle if isinstance(handle, int) else handle.fileno()


@contextlib.contextmanager
def kill_at(number: int, below: str | os.PathLike) -> Iterator[None]:
    """Ends the process, as kill -9 does, before the operation with this number (from 1) on a path below a folder."""
    counter = itertools.count(1)

    def count(name: str, path: str) -> None:
        del name, path
        if next(counter) == number:
            os._exit(KILLED)

    with watch(count, below):
        yield


def in_fork(work: Callable[[], object]) -> int:
    """Runs `work` in a fork, which has none of the other threads; returns its exit status, 1 if `work` raises."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kill_at_each(work: Callable[[], object], below: str | os.PathLike, stride: int = 1) -> Iterator[int]:
    """Runs `work` in forks that are killed at operations 1, 1 + stride, …; yields the number after each kill.

    Ends when a fork finishes `work` before its kill. The caller must restore the folder after each kill.
    """

    def work_until_kill() -> None:
        with kill_at(number, below):
            work()

    for number in itertools.count(1, stride):
        status = in_fork(work_until_kill)
        if status == 0:
            return
        assert status == KILLED, f'operation {number}: the work ended with status {status}'
        yield number


def main(number: int, folder: pathlib.Path, module: str) -> None:
    """Runs a module as a program and kills it at operation `number`; 0 prints the number of operations at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    if number:
        with kill_at(number, folder):
            runpy.run_module(module, run_name='__main__', alter_sys=True)
        return
    seen: list[str] = []
    try:
        with watch(lambda name, path: seen.append(name), folder):
            runpy.run_module(module, run_name='__main__', alter_sys=True)
    finally:
        print(f'{len(seen)} file operations')


if __name__ == '__main__':
    assert sys.argv[3] == '-m', __doc__
    arguments = sys.argv[1:5]
    sys.argv[1:5] = []
    main(int(arguments[0]), pathlib.Path(arguments[1]), arguments[3])
