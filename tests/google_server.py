"""A server that speaks the protocol of Google Cloud Storage (gcp-storage-emulator), on this machine."""

import contextlib
import os
from collections.abc import Iterator
from unittest import mock

from gcp_storage_emulator.server import create_server
from gcsfs.core import GCSFileSystem

from bertjax.remote import object_store


@contextlib.contextmanager
def started() -> Iterator[GCSFileSystem]:
    """Serves the empty bucket `bucket`, to this process and those that it starts; yields a client of its own."""
    server = create_server('127.0.0.1', 0, in_memory=True, default_bucket='bucket')
    server.start()
    address = f'http://127.0.0.1:{server._api._httpd.server_address[1]}'
    try:
        with mock.patch.dict(os.environ, {'STORAGE_EMULATOR_HOST': address}):
            object_store._connect.cache_clear()  # clients of an earlier server
            yield GCSFileSystem(use_listings_cache=False, token='anon', skip_instance_cache=True)
    finally:
        object_store._connect.cache_clear()
        server.stop()
