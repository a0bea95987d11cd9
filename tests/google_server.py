"""A local server for the protocol of Google Cloud Storage (gcp-storage-emulator)."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

from gcp_storage_emulator import server as emulator
from gcsfs.core import GCSFileSystem

from bertjax.remote import object_store

# gcsfs puts a line feed after the content of an upload. The emulator uses Python's mail parser, which also removes a
# carriage return before that line feed, so about one binary file in 256 arrives one byte short. RFC 2046 ends a part
# with a carriage return and a line feed; the parser removes only these two.
_END, _RFC_2046_END = b'\n--==0==--', b'\r\n--==0==--'
_decode = emulator._decode_raw_data


def _decode_upload(data: bytes, handler: Any) -> bytes | None:
    content = _decode(data, handler)
    return content.removesuffix(_END) + _RFC_2046_END if content and content.endswith(_END) else content


@contextlib.contextmanager
def started() -> Iterator[GCSFileSystem]:
    """Serves the empty bucket `bucket` to this process and its child processes; yields a separate client."""
    server = emulator.create_server('127.0.0.1', 0, in_memory=True, default_bucket='bucket')
    server.start()
    address = f'http://127.0.0.1:{server._api._httpd.server_address[1]}'
    try:
        with (
            mock.patch.dict(os.environ, {'STORAGE_EMULATOR_HOST': address}),
            mock.patch.object(emulator, '_decode_raw_data', _decode_upload),
        ):
            object_store._connect.cache_clear()  # drops the clients of an earlier server
            yield GCSFileSystem(use_listings_cache=False, token='anon', skip_instance_cache=True)
    finally:
        object_store._connect.cache_clear()
        server.stop()
