"""The bucket that a workdir is in: what these credentials may do there, and who is at work."""

import contextlib
import secrets
from collections.abc import Iterator

from bertjax.doctor.check import FAIL, OK, WARN, Check
from bertjax.errors import UserError
from bertjax.remote.lease import lease_holder
from bertjax.remote.object_store import RemoteFolder, split_address
from bertjax.remote.retry import DeniedError

# What Amazon and Google call them.
_RIGHTS = {
    's3': {'list': 's3:ListBucket', 'read': 's3:GetObject', 'write': 's3:PutObject', 'delete': 's3:DeleteObject'},
    'gs': {
        'list': 'storage.objects.list',
        'read': 'storage.objects.get',
        'write': 'storage.objects.create',
        'delete': 'storage.objects.delete',
    },
}


def rights(url: str) -> Iterator[Check]:
    """Whether its objects may be listed, read, written and deleted: tried with one that is removed again.

    Args:
      url: of the workdir, gs://… or s3://…
    """
    folder, probe = RemoteFolder(url, '--workdir'), f'.doctor-{secrets.token_hex(8)}'
    tried = {
        'list': folder.find,
        'read': lambda: folder.read(probe),  # which is not there: who may not read is not told so
        'write': lambda: folder.write(probe, b'run=doctor'),
        'delete': lambda: folder.remove(probe),
    }
    written = False
    for right, act in tried.items():
        try:
            with contextlib.suppress(FileNotFoundError):
                act()
        except DeniedError as error:
            stays = f'; {probe} stays there' if right == 'delete' and written else ''
            fix = f'give these credentials {_RIGHTS[split_address(url)[0]][right]}, or use others: {error.fix}'
            yield Check(right, FAIL, f'{error.found}{stays}', fix)
        except UserError as error:  # no such bucket, no answer: of all rights the same
            yield Check('bucket', FAIL, error.found, error.fix)
            return
        else:
            written |= right == 'write'
            yield Check(right, OK, f'allowed in {folder}')


def at_work(url: str) -> Iterator[Check]:
    """Who holds the workdir, where somebody does."""
    with contextlib.suppress(UserError):  # told by `rights`
        if who := lease_holder(RemoteFolder(url)):
            yield Check('lease', WARN, f'{who} works in {url}, or was killed there', 'wait for it, or end it')
