"""A server that speaks the protocol of Google Cloud Storage (gcp-storage-emulator), on this machine."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

from gcp_storage_emulator import server as emulator
from gcsfs.core import GCSFileSystem

from bertjax.remote import object_store

# gcsfs ends the content of an upload with a line feed. The emulator reads the upload with Python's mail parser, which
# removes a carriage return before that line feed, too: about one binary file in 256 arrives a byte short. RFC 2046 ends
# a part with both characters; then the parser removes only these two.
_END, _RFC_2046_END = b'\n--==0==--', b'\r\n--==0==--'
_decode = emulator._decode_raw_data


def _decode_upload(data: bytes, handler: Any) -> bytes | None:
    content = _decode(data, handler)
    return content.removesuffix(_END) + _RFC_2046_END if content and content.endswith(_END) else content


@contextlib.contextmanager
def started() -> Iterator[GCSFileSystem]:
    """Serves the empty bucket `bucket`, to this process and those that it starts; yields a client of its own."""
    server = emulator.create_server('127.0.0.1', 0, in_memory=True, default_bucket='bucket')
    server.start()
    address = f'http://127.0.0.1:{server._api._httpd.server_address[1]}'
    try:
        with (
            mock.patch.dict(os.environ, {'STORAGE_EMULATOR_HOST': address}),
            mock.patch.object(emulator, '_decode_raw_data', _decode_upload),
        ):
            object_store._connect.cache_clear()  # clients of an earlier server
            yield GCSFileSystem(use_listings_cache=False, token='anon', skip_instance_cache=True)
    finally:
        object_store._connect.cache_clear()
        server.stop()
