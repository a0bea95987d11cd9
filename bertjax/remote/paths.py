"""Resolves the paths that users give: local paths and addresses in a bucket."""

import os
from collections.abc import Sequence
from typing import BinaryIO

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import check_address, is_hidden, is_pattern, is_remote, name_matches, split_pattern
from bertjax.remote.cache import copy_object, copy_path
from bertjax.remote.object_store import RemoteFolder, RemoteObject


def user_path(
    path_or_address: epath.PathLike, where: str, beside: Sequence[str] = (), checkpoints: bool = False
) -> epath.Path:
    """Returns a local path: the user's path with ~ expanded, or the local copy of an object or folder in a bucket.

    For `beside` and `checkpoints`, see `cache.copy_path`. `where` is the config key, for messages.

    Raises:
      UserError: The kind of address, such as http://…, is not supported, or the address cannot be reached.
    """
    path = os.fspath(path_or_address)
    check_address(path, where)
    return epath.Path(copy_path(path, where, beside, checkpoints)) if is_remote(path) else epath.Path(path).expanduser()


def open_file(path: epath.PathLike) -> BinaryIO:
    """Opens a file for reading. A file in a bucket is fetched first."""
    return epath.Path(copy_object(os.fspath(path)) if is_remote(path) else path).open('rb')


def data_directory(data: str, expected: str) -> epath.Path:
    """Returns the local directory of `data`, the value of config.data. `expected` is for messages.

    Raises:
      UserError: The value is empty, or the directory does not exist.
    """
    path = user_path(data, 'config.data')
    if not data or not path.is_dir():
        raise UserError('config.data', repr(data), expected, 'check the path')
    return path


def find_objects(address: str, where: str) -> tuple[list[tuple[str, str, RemoteObject]], str]:
    """Finds the objects at an address gs://… or s3://…, with the same rules and in the same order as local files.

    The address may be an object, a folder or a pattern. In a folder, and with `**` in a pattern, names that begin with
    '.' or '_' are skipped. `where` is the config key, for messages.

    Returns:
      A list of (address, name for reports, metadata), one for each object, and the kind of `address`: 'object',
      'folder' or 'pattern'.

    Raises:
      UserError: There is no object; see also `RemoteFolder`.
    """
    fix = f'check it with: {"gcloud storage" if address.startswith("gs:") else "aws s3"} ls'
    top, pattern = split_pattern(address) if is_pattern(address) else (address.rstrip('/'), [])
    if top.endswith((':', '/')):
        raise UserError(where, repr(address), 'the name of a bucket before any wildcard', fix)
    folder = RemoteFolder(top, where)
    if not pattern and (single := folder.info()):
        return [(top, top.rpartition('/')[2], single)], 'object'
    objects = folder.find()
    names = sorted(name.split('/') for name in objects)  # in the order of `walk_files`
    names = ['/'.join(row) for row in names if (name_matches(row, pattern) if pattern else not is_hidden(row))]
    if not names:
        expected = 'an object, a folder of objects, or a pattern that matches objects'
        raise UserError(where, f'nothing at {address!r}', expected, fix)
    prefix = '' if pattern else folder.url.rpartition('/')[2] + '/'
    rows = [(f'{folder}/{name}', prefix + name, objects[name]) for name in names]
    return rows, 'pattern' if pattern else 'folder'
