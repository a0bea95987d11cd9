"""Directories that appear whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from etils import epath


@contextlib.contextmanager
def whole_directory(target: epath.Path, last: str) -> Iterator[str]:
    """A local directory to fill; when the body ends well it takes the place of `target`, else nothing has changed.

    `last` is the file without which the directory counts as empty; it is copied last where nothing can be renamed.
    """
    remote = '://' in os.fspath(target)
    if remote:
        with tempfile.TemporaryDirectory() as staging:
            yield staging
            target.mkdir(parents=True, exist_ok=True)
            # A store of objects cannot rename a directory: the file that makes it loadable goes last.
            for name in sorted(os.listdir(staging), key=lambda name: (name == last, name)):
                epath.Path(staging, name).copy(target / name, overwrite=True)
        return
    path = os.path.abspath(os.fspath(target))
    parent, name = os.path.split(path)
    os.makedirs(parent, exist_ok=True)
    fresh, old = os.path.join(parent, f'.{name}.new'), os.path.join(parent, f'.{name}.old')
    if os.path.isdir(old) and not os.path.isdir(path):
        os.rename(old, path)  # a process died between the two renames below
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    os.mkdir(fresh)
    try:
        yield fresh
        for entry in os.listdir(fresh):
            with open(os.path.join(fresh, entry), 'rb') as file:
                os.fsync(file.fileno())
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if os.path.isdir(path):
        os.rename(path, old)
    os.rename(fresh, path)
    shutil.rmtree(old, ignore_errors=True)
