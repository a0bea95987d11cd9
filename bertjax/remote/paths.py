"""Paths as a user gives them, local or in a bucket."""

import os
from collections.abc import Sequence
from typing import BinaryIO

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import check_address, is_hidden, is_pattern, is_remote, name_matches, split_pattern
from bertjax.remote.cache import copy_object, copy_path
from bertjax.remote.object_store import RemoteFolder, RemoteObject


def user_path(path_or_address: epath.PathLike, where: str, beside: Sequence[str] = ()) -> epath.Path:
    """A path as a user gave it, with ~ expanded; of an address in a bucket, the path of a local copy.

    Args:
      path_or_address: local, or gs://… or s3://…
      where: the config key, or the path itself, for messages.
      beside: names of objects that are copied with a single object in a bucket, from the folder that it lies in.

    Raises:
      UserError: an address that cannot be read, such as http://…, or cannot be reached.
    """
    path = os.fspath(path_or_address)
    check_address(path, where)
    return epath.Path(copy_path(path, where, beside)) if is_remote(path) else epath.Path(path).expanduser()


def open_file(path: epath.PathLike) -> BinaryIO:
    """Opens a file for reading, local or in a bucket, from where it is fetched first."""
    return epath.Path(copy_object(os.fspath(path)) if is_remote(path) else path).open('rb')


def data_directory(data: str, expected: str, fix: str = 'check the path') -> epath.Path:
    """The directory that config.data names.

    Args:
      data: config.data.
      expected: what it should be, for the message: 'a folder with …'.
      fix: what to do when it is not.

    Raises:
      UserError: it is empty, or no such directory.
    """
    path = user_path(data, 'config.data')
    if not data or not path.is_dir():
        raise UserError('config.data', repr(data), expected, fix)
    return path


def find_objects(address: str, where: str) -> tuple[list[tuple[str, str, RemoteObject]], str]:
    """The objects of an address, a folder or a pattern, as files are found on a disk and in their order.

    In folders, and by `**`, names that begin with '.' or '_' are left out.

    Args:
      address: gs://… or s3://…
      where: the config key, for messages.

    Returns:
      For each object its address, its name in reports (that of a file in the same place), and its facts; then the kind
      of the address: 'object', 'folder' or 'pattern'.

    Raises:
      UserError: nothing is there; see `RemoteFolder` too.
    """
    fix = f'check it with: {"gcloud storage" if address.startswith("gs:") else "aws s3"} ls'
    top, pattern = split_pattern(address) if is_pattern(address) else (address, [])
    if top.endswith((':', '/')):
        raise UserError(where, repr(address), 'the name of a bucket before any wildcard', fix)
    folder = RemoteFolder(top, where)
    if not pattern and (single := folder.info()):
        return [(address, address.rpartition('/')[2], single)], 'object'
    objects = folder.find()
    names = sorted(name.split('/') for name in objects)  # as a walk through folders meets them
    names = ['/'.join(row) for row in names if (name_matches(row, pattern) if pattern else not is_hidden(row))]
    if not names:
        expected = 'an object, a folder of them, or a glob that matches some'
        raise UserError(where, f'nothing at {address!r}', expected, fix)
    prefix = '' if pattern else folder.url.rpartition('/')[2] + '/'
    rows = [(f'{folder}/{name}', prefix + name, objects[name]) for name in names]
    return rows, 'pattern' if pattern else 'folder'
