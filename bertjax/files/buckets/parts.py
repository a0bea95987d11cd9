"""A large file as an object of S3: in parts, each of which is sent again by itself."""

import contextlib
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bertjax.files.buckets.patience import at_once

if TYPE_CHECKING:
    from bertjax.files.buckets.objects import Bucket

PART = 50 << 20  # bytes
_MOST = 10_000  # parts, as S3 allows


def upload_in_parts(bucket: 'Bucket', request: Callable[..., Any], file: pathlib.Path, size: int) -> None:
    """Writes `size` bytes of a file, whole or not at all.

    Args:
      bucket: where to, for its patience.
      request: (bucket, name of the request, its arguments) -> the answer of S3, about the object that is written.
      file: local.
      size: of it that are written.

    Raises:
      FileNotFoundError: no such bucket, or the file is gone.
      EOFError: somebody has removed the parts.
    """
    length = max(PART, -(-size // _MOST))
    begun = {'UploadId': request(bucket, 'create_multipart_upload')['UploadId']}

    def send(asked: 'Bucket', number: int) -> dict[str, Any]:
        begin = (number - 1) * length
        with file.open('rb') as opened:
            data = os.pread(opened.fileno(), min(length, size - begin), begin)
        sent = request(asked, 'upload_part', PartNumber=number, Body=data, **begun)
        return {'PartNumber': number, 'ETag': sent['ETag']}

    try:
        parts = at_once(bucket, send, range(1, -(-size // length) + 1))
        with contextlib.suppress(FileNotFoundError):  # a repetition of what was done already; the object is looked at
            request(bucket, 'complete_multipart_upload', MultipartUpload={'Parts': parts}, **begun)
    except BaseException as error:
        with contextlib.suppress(Exception):  # parts that stay are paid for
            request(bucket.impatient(), 'abort_multipart_upload', **begun)
        if isinstance(error, FileNotFoundError) and file.exists():
            raise EOFError('the upload was ended by another') from None
        raise
