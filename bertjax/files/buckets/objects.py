"""The objects below an address, gs://BUCKET/PATH or s3://BUCKET/PATH: listed, read, written, with patience.

gcsfs and s3fs speak the protocols, and find credentials and endpoints as Google's and Amazon's own tools do.
"""

import base64
import contextlib
import copy
import dataclasses
import functools
import hashlib
import importlib
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, TypeVar

import google_crc32c

from bertjax.errors import StoppedError, UserError
from bertjax.files.buckets import patience
from bertjax.files.buckets.addresses import parts_of
from bertjax.files.buckets.failures import DeniedError, UnreachableError, is_denied, one_line, status_of
from bertjax.files.buckets.parts import upload_in_parts
from bertjax.files.buckets.patience import Attempts, in_words

PACKAGES = {'gs': 'gcsfs', 's3': 's3fs'}
PIECE = 16 << 20  # bytes that are read at once
_WHOLE = 32 << 20  # bytes up to which an object is written in one request
_IN_NAME = re.compile(r'(^|/)\.{0,2}(/|$)')  # what a path on a disk cannot have: `a//b`, `../a`
_met: set[str] = set()  # buckets that have answered
Value = TypeVar('Value')


@dataclasses.dataclass(frozen=True)
class Object:
    """What a bucket says of an object.

    Attributes:
      name: below the address; '' is the address itself.
      size: bytes.
      tag: another one for any other content: the generation, or the ETag.
      sum: 'crc32c:…' or 'md5:…' of its content, '' where the bucket knows none.
    """

    name: str
    size: int
    tag: str
    sum: str


def content_sum(data: bytes | pathlib.Path, kind: str) -> str:
    """The sum of bytes or of a local file, as `Object.sum` has it; `kind` is 'crc32c' or 'md5'."""
    digest = google_crc32c.Checksum() if kind == 'crc32c' else hashlib.md5(usedforsecurity=False)
    if isinstance(data, bytes):
        digest.update(data)
    else:
        with data.open('rb') as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return f'{kind}:{digest.hexdigest() if kind == "md5" else base64.b64encode(digest.digest()).decode()}'


@functools.cache
def _file_system(scheme: str, where: str) -> Any:
    try:
        importlib.import_module(PACKAGES[scheme])
    except ImportError as error:
        found, package = f'{scheme}:// without {PACKAGES[scheme]} ({error})', PACKAGES[scheme]
        raise UserError(where, found, 'that package', f'pip install {package}') from None
    # Ours are the retries: theirs would multiply them.
    if scheme == 's3':
        from s3fs import S3FileSystem

        once = {'retries': {'total_max_attempts': 1}, 'connect_timeout': 10, 'read_timeout': 60}
        system = S3FileSystem(use_listings_cache=False, config_kwargs=once)
        system.retries = 1
        return system
    # Not fsspec's choice for gs://, which asks each bucket over gRPC what it is and needs rights of its own for that.
    from gcsfs.core import GCSFileSystem

    token = 'anon' if os.environ.get('STORAGE_EMULATOR_HOST') else None
    return GCSFileSystem(use_listings_cache=False, token=token)


class Bucket:
    """The objects below an address. Every method raises DeniedError for what is denied, UserError where there is no
    such bucket, and UnreachableError where the server does not answer, however long it is asked.

    Args:
      url: gs://BUCKET/PATH or s3://BUCKET/PATH.
      where: the config key, for messages.

    Raises:
      UserError: the package that speaks the protocol is not installed.
    """

    def __init__(self, url: str, where: str = ''):
        self._scheme, self._bucket, path = parts_of(url)
        self.url, self._root = f'{self._scheme}://{self._bucket}/{path}'.rstrip('/'), f'{self._bucket}/{path}'
        self._where = where or self.url
        self._system = _file_system(self._scheme, self._where)
        self._checks: tuple[Callable[[], None], ...] = ()
        self._patient = True

    def __str__(self) -> str:
        return self.url

    def guarded(self, check: Callable[[], None]) -> 'Bucket':
        """The same; `check` is called before each attempt at a request, which what it raises ends; of OSError the
        attempt alone."""
        other = copy.copy(self)
        other._checks = (*self._checks, check)
        return other

    def impatient(self) -> 'Bucket':
        """The same, which asks once."""
        other = copy.copy(self)
        other._patient = False
        return other

    def _path(self, name: str) -> str:
        return f'{self._root.rstrip("/")}/{name}'.rstrip('/')

    def objects(self, *, beginning: bool = False) -> dict[str, Object]:
        """Those below the address, by name; with `beginning` also those whose path only begins like it.

        What no file can be called, such as `a//b`, is left out.
        """
        top = self._root.rpartition('/')[0] if beginning else self._root
        prefix = {'prefix': self._root.rpartition('/')[2]} if beginning else {}
        try:
            found = self._call(lambda: self._system.find(top, detail=True, withdirs=False, **prefix))
        except FileNotFoundError:
            raise self._absent() from None
        cut = len(self._root) if beginning else len(self._path('')) + 1
        objects = (self._object(path[cut:], facts) for path, facts in found.items() if path != self._root)
        return {o.name: o for o in objects if beginning or not _IN_NAME.search(o.name)}

    def about(self, name: str = '') -> Object | None:
        """What is known of an object; None where there is none."""
        path = self._path(name)
        if '/' not in path:
            return None
        try:
            facts = self._call(lambda: self._system.info(path))
        except FileNotFoundError:
            return None
        return self._object(name, facts) if facts['type'] == 'file' else None

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Its bytes [begin, end).

        Raises:
          FileNotFoundError: no such object.
        """

        def read() -> bytes:
            data = self._system.cat_file(self._path(name), start=begin, end=end)
            if end is not None and len(data) != end - begin:
                raise EOFError(f'{len(data):,} of {end - begin:,} bytes came')
            return data

        return self._call(read)

    def write(self, name: str, data: bytes, *, over: str | None = None) -> Object:
        """Writes an object whole, or not at all.

        Args:
          name: of it.
          data: its content.
          over: only in place of the object with this tag, '' for none; as far as the server knows such conditions.

        Raises:
          FileExistsError: that is not what is there.
        """

        def write() -> Object:
            try:
                if over:
                    self._replace(name, data, over)
                else:
                    self._system.pipe_file(self._path(name), data, mode='overwrite' if over is None else 'create')
            except FileNotFoundError:
                if over:
                    raise FileExistsError(name) from None
                raise self._absent() from None
            return self._written(name, len(data), lambda kind: content_sum(data, kind))

        return self._call(write)

    def _replace(self, name: str, data: bytes, tag: str) -> None:
        path = self._path(name)
        if self._scheme == 's3':
            try:
                self._system.pipe_file(path, data, IfMatch=f'"{tag}"')
            except OSError as error:
                raise FileExistsError(name) if status_of(error) == 412 else error from None
            return
        bucket, _, key = path.partition('/')
        url = f'{self._system.base.replace("/storage/", "/upload/storage/")}b/{bucket}/o'
        asked = {'uploadType': 'media', 'name': key, 'ifGenerationMatch': tag.rpartition(' ')[2]}
        self._system.call('POST', url, data=data, **asked)

    def upload(self, name: str, file: pathlib.Path) -> Object:
        """Writes a local file as it is now, whole or not at all.

        Raises:
          FileNotFoundError: the file is gone.
        """
        size = file.stat().st_size
        if size <= _WHOLE:
            with file.open('rb') as opened:
                return self.write(name, opened.read(size))  # not what is appended meanwhile

        def request(asked: Bucket, method: str, **arguments: Any) -> dict[str, Any]:
            bucket, _, key = asked._path(name).partition('/')
            return asked._call(lambda: asked._system.call_s3(method, Bucket=bucket, Key=key, **arguments))

        def upload() -> Object:
            try:
                if self._scheme == 's3':
                    upload_in_parts(self, request, file, size)
                else:
                    self._system.put_file(os.fspath(file), self._path(name))
            except FileNotFoundError:
                if file.exists():
                    raise self._absent() from None
                raise
            there = size if self._scheme == 's3' else file.stat().st_size
            return self._written(name, there, lambda kind: content_sum(file, kind))

        return self._call(upload)

    def _written(self, name: str, size: int, summed: Callable[[str], str]) -> Object:
        """What the bucket has now; EOFError, upon which it is written again, where that is not what was sent."""
        there = self.about(name)
        if there is None or there.size != size:
            raise EOFError(f'{there.size if there else 0:,} of {size:,} bytes are there after writing')
        if there.sum and there.sum != summed(there.sum.partition(':')[0]) and self.keeps_sum(name):
            raise EOFError('other bytes are there after writing')
        return there

    def remove(self, name: str) -> None:
        """Removes an object, which may be gone."""
        with contextlib.suppress(FileNotFoundError):
            self._call(lambda: self._system.rm_file(self._path(name)))

    def keeps_sum(self, name: str) -> bool:
        """Whether `Object.sum` is of the content: the ETag of what S3 encrypts with a key of the user's is none."""
        if self._scheme != 's3':
            return True
        bucket, _, key = self._path(name).partition('/')
        facts = self._call(lambda: self._system.call_s3('head_object', Bucket=bucket, Key=key))
        return not (facts.get('SSEKMSKeyId') or facts.get('SSECustomerAlgorithm'))

    def _object(self, name: str, facts: dict[str, Any]) -> Object:
        if self._scheme == 'gs':
            sum = f'crc32c:{facts["crc32c"]}' if facts.get('crc32c') else ''
            return Object(name, int(facts['size']), f'generation {facts.get("generation", "")}', sum)
        tag = str(facts.get('ETag', '')).strip('"')
        return Object(name, int(facts['size']), tag, f'md5:{tag}' if re.fullmatch('[0-9a-f]{32}', tag) else '')

    def _call(self, request: Callable[[], Value]) -> Value:
        known = f'{self._scheme}://{self._bucket}'
        seconds = patience.PATIENCE if known in _met else patience.MEETING
        attempts = Attempts(seconds if self._patient else 0, self.url)
        while True:
            try:
                for check in self._checks:
                    check()
                value = request()
                _met.add(known)
                return value
            except (FileNotFoundError, FileExistsError, UserError, StoppedError):
                raise
            except Exception as error:  # of each library its own: of the network, of the protocol, of credentials
                if is_denied(error):
                    raise self._denied(error) from None
                if not attempts.again(error):
                    failing = in_words(attempts.failing())
                    found = self._about(f'no answer, or half of one, for {failing} ({one_line(error)})')
                    fix = 'check the network; the same command goes on with what is whole'
                    raise UnreachableError(self._where, found, 'an answer', fix) from None

    def _about(self, what: str) -> str:
        return what if self._where == self.url else f'{self.url}: {what}'

    def _absent(self) -> UserError:
        found, fix = f'no bucket {self._scheme}://{self._bucket}', 'check its name, or create it'
        return UserError(self._where, found, 'a bucket that exists', fix)

    def _denied(self, error: Exception) -> DeniedError:
        fix = {'gs': 'gcloud auth application-default login', 's3': 'aws configure'}[self._scheme]
        expected = 'credentials that may list, read and write there'
        return DeniedError(
            self._where, self._about(f'access denied ({one_line(error)})'), expected, f'give them, as with: {fix}'
        )
