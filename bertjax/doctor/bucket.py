"""Checks the bucket of a workdir: the permissions of the credentials, and the holder of the lease."""

import contextlib
import secrets
from collections.abc import Iterator

from bertjax.doctor.check import FAIL, OK, WARN, Check
from bertjax.errors import UserError
from bertjax.remote.lease import lease_holder
from bertjax.remote.object_store import RemoteFolder, split_address
from bertjax.remote.retry import DeniedError

# {scheme: {right: the name that Amazon or Google gives to the permission}}.
_RIGHTS = {
    's3': {'list': 's3:ListBucket', 'read': 's3:GetObject', 'write': 's3:PutObject', 'delete': 's3:DeleteObject'},
    'gs': {right: f'storage.objects.{name}' for right, name in
           (('list', 'list'), ('read', 'get'), ('write', 'create'), ('delete', 'delete'))},
}  # fmt: skip


def rights(url: str) -> Iterator[Check]:
    """Checks the rights to list, read, write and delete objects in the workdir gs://… or s3://…"""
    folder, probe = RemoteFolder(url, '--workdir'), f'.doctor-{secrets.token_hex(8)}'
    actions = {
        'list': folder.find,
        'read': lambda: folder.read(probe),  # no such object: 404 with the rights to list and read, else 403
        'write': lambda: folder.write(probe, b'run=doctor'),
        'delete': lambda: folder.remove(probe),
    }
    is_written = False
    for right, act in actions.items():
        try:
            with contextlib.suppress(FileNotFoundError):
                act()
        except DeniedError as error:
            remains = f'; the object {probe} remains' if right == 'delete' and is_written else ''
            fix = f'give these credentials {_RIGHTS[split_address(url)[0]][right]}, or use others: {error.fix}'
            yield Check(right, FAIL, f'{error.found}{remains}', fix)
        except UserError as error:  # the bucket is missing or unreachable, so the other checks would fail too
            yield Check('bucket', FAIL, error.found, error.fix)
            return
        else:
            is_written |= right == 'write'
            yield Check(right, OK, f'allowed in {folder}')


def lease(url: str) -> Iterator[Check]:
    """Yields a warning with the holder of the workdir's lease, if there is one."""
    with contextlib.suppress(UserError):  # `rights` reports the error
        if owner := lease_holder(RemoteFolder(url)):
            yield Check('lease', WARN, f'{owner} works in {url}, or was killed there', 'wait for it, or end it')
