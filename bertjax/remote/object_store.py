"""Lists, reads and writes the objects below an address gs://BUCKET/PATH or s3://BUCKET/PATH.

gcsfs and s3fs implement the protocols, and retry each part of a large file for about half a minute. The module `retry`
repeats whole requests for longer.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import io
import os
import pathlib
import re
from typing import Any

import google_crc32c

from bertjax.errors import UserError
from bertjax.remote.retry import Requester, http_status

ONE_REQUEST = 32 << 20  # bytes; `upload` passes a larger file to `put_file`, which may divide it into parts
PART = 50 << 20  # bytes
PART_ATTEMPTS = 10  # attempts of s3fs per part, within half a minute; gcsfs makes 6
_ADDRESS = re.compile(r'(gs|s3)://([^/]+)/?(.*)', re.DOTALL)
_NO_FILE_NAME = re.compile(r'(^|/)\.{0,2}(/|$)')  # names that no local file can have: `a//b`, `../a`


def split_address(url: str) -> tuple[str, str, str]:
    """Returns ('gs' or 's3', the bucket, the path in the bucket without slashes at its ends)."""
    scheme, bucket, path = _ADDRESS.fullmatch(url).groups()
    return scheme, bucket, path.strip('/')


@dataclasses.dataclass(frozen=True)
class RemoteObject:
    """The metadata of an object."""

    name: str  # the name below the address; '' for the address itself
    size: int  # in bytes
    version: str  # the generation (gs) or the ETag (s3), which change with the content
    checksum: str  # the checksum of the content, 'crc32c:…' or 'md5:…'; '' if the bucket has none


def content_checksum(data: bytes | pathlib.Path, kind: str) -> str:
    """Returns the checksum of bytes or of a local file, as in `RemoteObject`. `kind` is 'crc32c' or 'md5'."""
    digest = google_crc32c.Checksum() if kind == 'crc32c' else hashlib.md5(usedforsecurity=False)
    with io.BytesIO(data) if isinstance(data, bytes) else data.open('rb') as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return f'{kind}:{digest.hexdigest() if kind == "md5" else base64.b64encode(digest.digest()).decode()}'


@functools.cache
def _connect(scheme: str, attempts: int = 1) -> Any:
    if scheme == 's3':
        from s3fs import S3FileSystem

        once = {'retries': {'total_max_attempts': 1}, 'connect_timeout': 10, 'read_timeout': 60}
        system = S3FileSystem(use_listings_cache=False, config_kwargs=once, skip_instance_cache=True)
        system.retries = attempts
        return system
    # fsspec's default for gs:// is not used, because its query for the type of each bucket needs more permissions.
    from gcsfs import core

    token = 'anon' if os.environ.get('STORAGE_EMULATOR_HOST') else None
    return core.GCSFileSystem(use_listings_cache=False, token=token)


class RemoteFolder(Requester):
    """The objects below an address.

    A request raises DeniedError if it is denied, and UnreachableError if the server does not answer in time. `find`,
    `upload` and `write` raise UserError if the bucket does not exist.

    Raises:
      UserError: The package for the protocol is not installed.
    """

    def __init__(self, url: str, where: str = ''):
        self._scheme, bucket, path = split_address(url)
        self._root = f'{bucket}/{path}'.rstrip('/')
        url = f'{self._scheme}://{self._root}'
        super().__init__(url, f'{self._scheme}://{bucket}', where or url)
        try:
            self._system = _connect(self._scheme)
        except ImportError as error:
            package = 's3fs' if self._scheme == 's3' else 'gcsfs'
            found = f'{self._scheme}:// without {package} ({error})'
            raise UserError(self._where, found, f'the package {package}', f'pip install {package}') from None

    def __str__(self) -> str:
        return self.url

    def _path(self, name: str) -> str:
        return f'{self._root}/{name}'.rstrip('/')

    def find(self) -> dict[str, RemoteObject]:
        """Returns {name: object} below the address. Names that no local file can have, such as `a//b`, are skipped."""
        try:
            listing = self.call(self._system.find, self._root, detail=True)
        except FileNotFoundError:
            raise self._no_bucket() from None
        below = {path.removeprefix(f'{self._root}/'): facts for path, facts in listing.items() if path != self._root}
        return {name: self._object(name, below[name]) for name in below if not _NO_FILE_NAME.search(name)}

    def info(self, name: str = '') -> RemoteObject | None:
        """Returns the metadata of an object; None if there is no such object."""
        path = self._path(name)
        if '/' not in path:
            return None
        try:
            facts = self.call(self._system.info, path)
        except FileNotFoundError:
            return None
        return self._object(name, facts) if facts['type'] == 'file' else None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Reads the bytes [begin, end) of an object.

        Raises:
          FileNotFoundError: There is no such object.
        """

        def read() -> bytes:
            data = self._system.cat_file(self._path(name), start=begin, end=end)
            if end is not None and len(data) != end - begin:
                raise EOFError(f'{len(data):,} of {end - begin:,} bytes arrived')
            return data

        return self.call(read)

    def write(self, name: str, data: bytes, *, replace: str | None = None) -> RemoteObject:
        """Writes an object atomically.

        Args:
          replace: The version to replace; '' if the object must not exist; None to replace any version. Some servers do
            not check the version.

        Raises:
          FileExistsError: The object does not have the version `replace`.
        """

        def write() -> RemoteObject:
            try:
                if replace:
                    self._replace(name, data, replace)
                else:
                    self._system.pipe_file(self._path(name), data, mode='overwrite' if replace is None else 'create')
            except FileNotFoundError:
                if replace:
                    raise FileExistsError(name) from None
                raise self._no_bucket() from None
            return self._written(name, len(data), data)

        return self.call(write)

    def _replace(self, name: str, data: bytes, version: str) -> None:
        path = self._path(name)
        if self._scheme == 's3':
            try:
                self._system.pipe_file(path, data, IfMatch=f'"{version}"')
            except OSError as error:
                raise FileExistsError(name) if http_status(error) == 412 else error from None
            return
        bucket, _, key = path.partition('/')
        url = f'{self._system.base.replace("/storage/", "/upload/storage/")}b/{bucket}/o'
        condition = {'ifGenerationMatch': version.rpartition(' ')[2]}
        self._system.call('POST', url, data=data, uploadType='media', name=key, **condition)

    def upload(self, name: str, file: pathlib.Path, *, grows: bool = False) -> RemoteObject:
        """Writes the current content of a local file atomically.

        With `grows`, data may be appended meanwhile, so the file is read into memory first. Any other large file is
        uploaded in parts, and a failed check (see `with_check`) stops the upload between two parts.

        Raises:
          FileNotFoundError: The local file does not exist.
        """
        size = file.stat().st_size
        if size <= ONE_REQUEST or grows:
            with file.open('rb') as opened:
                return self.write(name, opened.read(size))

        from fsspec.callbacks import Callback  # a dependency of s3fs and gcsfs

        def upload() -> RemoteObject:
            try:
                system = _connect(self._scheme, PART_ATTEMPTS)
                callback = Callback(hooks={'check': lambda size, value: self.check(False)})
                # One part at a time, because s3fs removes a failed upload while other parts may still be in transit.
                options = {'chunksize': PART, 'max_concurrency': 1, 'callback': callback}
                system.put_file(os.fspath(file), self._path(name), **options)
            except FileNotFoundError:
                # The bucket or the file does not exist, or the answer to a completed upload was lost.
                if file.exists() and self.info(name) is None:
                    raise self._no_bucket() from None
            return self._written(name, file.stat().st_size, file)

        return self.call(upload)

    def _written(self, name: str, size: int, content: bytes | pathlib.Path) -> RemoteObject:
        """Returns the metadata of a written object; raises EOFError if the content differs, so that `call` retries."""
        written = self.info(name)
        if written is None or written.size != size:
            raise EOFError(f'{written.size if written else 0:,} of {size:,} bytes are in the bucket after writing')
        if not self.has_content(written, content):
            raise EOFError('the bucket has other bytes than those written')
        return written

    def has_content(self, facts: RemoteObject, content: bytes | pathlib.Path) -> bool:
        """Returns whether the content matches the checksum of an object; True if the object has no usable checksum."""
        if not facts.checksum or content_checksum(content, facts.checksum.partition(':')[0]) == facts.checksum:
            return True
        # The ETag of an object that S3 encrypts with a key of the user looks like an MD5 checksum but is not one.
        bucket, _, key = self._path(facts.name).partition('/')
        s3 = self._scheme == 's3'
        head = self.call(self._system.call_s3, 'head_object', Bucket=bucket, Key=key) if s3 else {}
        return bool(head.get('SSEKMSKeyId') or head.get('SSECustomerAlgorithm'))

    def remove(self, name: str) -> None:
        """Removes an object, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.call(self._system.rm_file, self._path(name))

    def _object(self, name: str, facts: dict[str, Any]) -> RemoteObject:
        if self._scheme == 'gs':
            checksum = f'crc32c:{facts["crc32c"]}' if facts.get('crc32c') else ''
            return RemoteObject(name, int(facts['size']), f'generation {facts.get("generation", "")}', checksum)
        tag = str(facts.get('ETag', '')).strip('"')
        return RemoteObject(name, int(facts['size']), tag, f'md5:{tag}' if re.fullmatch('[0-9a-f]{32}', tag) else '')

    def _no_bucket(self) -> UserError:
        found = f'no bucket {self._bucket}'
        return UserError(self._where, found, 'a bucket that exists', fix='check its name, or create it')
