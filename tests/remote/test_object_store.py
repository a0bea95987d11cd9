"""Tests finding and fetching objects from a local S3 server, despite failed requests and damaged data."""

import errno
import fcntl
import os
import pathlib
import random
import sys
import time

import pytest

from bertjax.corpus.sources import resolve_sources
from bertjax.errors import UserError
from bertjax.remote import cache, object_store, retry
from bertjax.remote.object_store import RemoteFolder, content_checksum
from bertjax.remote.paths import user_path
from bertjax.remote.retry import UnreachableError
from bertjax.workdir.mirror import mirrored_workdir

NAMES = ('b.txt', 'a/c.txt', 'a.txt', '.hidden', 'a/_x/d.txt', 'a/e')
TEXTS = {f'text/{name}': name.encode() * 50_000 for name in NAMES}
URL = 's3://bucket/text'


@pytest.mark.parametrize('spec', ['', '/', '/*.txt', '/*', '/.h*', '/**', '/a/c.txt', '/**/c*', '/*/[!c]*'])
def test_texts_are_found_as_on_a_disk(spec, bucket, tmp_path):
    """The names and their order are the same, so that stores of the same text are equal."""
    bucket.put(TEXTS)
    for name, data in TEXTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    remote, local = resolve_sources(f'{URL}{spec}'), resolve_sources(f'{tmp_path}/text{spec}')
    assert local and [(s.name, s.size, s.single) for s in remote] == [(s.name, s.size, s.single) for s in local]


def test_the_copy_of_a_workdir_has_checkpoints_only_on_request(bucket):
    stores = ('store/manifest.json', 'heldout/a/manifest.json')
    names = ('config.json', 'export/hf/config.json', *stores, 'checkpoints/1/seal.json')
    bucket.put({f'run/{name}': b'{}' for name in names})
    copies = [cache.copy_path('s3://bucket/run', 'config.init', checkpoints=each) for each in (False, True)]
    assert [(copy / 'checkpoints/1/seal.json').exists() for copy in copies] == [False, True]
    assert all((copy / 'export').exists() for copy in copies)
    assert not any((copy / store).exists() for copy in copies for store in stores)


def test_a_cache_without_a_home_directory_is_an_error(monkeypatch):
    monkeypatch.setenv('BERTJAX_CACHE', '~no-such-user/cache')
    with pytest.raises(UserError, match='BERTJAX_CACHE: found no home directory'):
        cache.cache_folder()


def test_the_mirror_for_reading_has_the_seals_of_checkpoints(bucket):
    names = ('config.json', 'checkpoints/1/seal.json', 'checkpoints/1/state/array', 'checkpoints/damaged/2/seal.json')
    bucket.put({f'run/{name}': b'{}' for name in names})
    with mirrored_workdir('s3://bucket/run', 'look') as folder:
        found = {path.relative_to(folder).as_posix() for path in pathlib.Path(folder).rglob('*') if path.is_file()}
    assert found - {'.published.json'} == {'config.json', 'checkpoints/1/seal.json'}


@pytest.mark.parametrize('fault', ['refuse', 'cut', 'spoil'])
def test_a_failed_or_damaged_piece_is_requested_again(fault, bucket, monkeypatch):
    bucket.put(TEXTS)
    monkeypatch.setattr(cache, 'PIECE', 100_000)
    with bucket.failing(fault, 'GET', 'a/c.txt', after=1) as failed:
        (copy,) = [cache.copy_path(f'{URL}/a/c.txt', 'config.data')]
    assert len(failed) == 1 and copy.read_bytes() == TEXTS['text/a/c.txt']


@pytest.mark.slow
def test_a_download_continues_after_an_unreachable_server(bucket, monkeypatch):
    """The error is one line. The next call does not request the pieces again that have arrived."""
    bucket.put(TEXTS)
    monkeypatch.setattr(cache, 'PIECE', 100_000)
    with (
        bucket.failing('refuse', 'GET', 'a/c.txt', count=99, after=2),
        pytest.raises(UserError, match=r'config\.data: found s3://bucket/text/a.*for 0 s .*repeat the command, which'),
    ):
        cache.copy_path(f'{URL}/a/c.txt', 'config.data')
    bucket.requests.clear()
    assert cache.copy_path(f'{URL}/a/c.txt', 'config.data').read_bytes() == TEXTS['text/a/c.txt']
    assert bucket.requests.count(('GET', '/bucket/text/a/c.txt')) == 2  # 2 of 4 pieces.


@pytest.mark.slow
def test_only_a_damaged_or_outdated_copy_is_fetched_again(bucket):
    bucket.put(TEXTS)
    copy = cache.copy_path(URL, 'config.data')
    bucket.requests.clear()
    assert cache.copy_path(URL, 'config.data') == copy
    assert not [path for method, path in bucket.requests if method == 'GET' and path != '/bucket']
    data = bytearray((copy / 'b.txt').read_bytes())
    data[7] ^= 1
    (copy / 'b.txt').write_bytes(data)
    assert (cache.copy_path(URL, 'config.data') / 'b.txt').read_bytes() == TEXTS['text/b.txt']
    bucket.put({'text/b.txt': b'other'})
    assert (cache.copy_path(URL, 'config.data') / 'b.txt').read_bytes() == b'other'


def test_a_copy_that_another_process_has_completed_stays(bucket, monkeypatch, tmp_path):
    """While this process waits, another completes the copy, and a third opens a new partial file."""
    bucket.put(TEXTS)

    def complete(handle) -> bool:
        (part,) = tmp_path.glob('.b.txt.part-*')
        part.write_bytes(TEXTS['text/b.txt'])
        part.rename(tmp_path / 'b.txt')
        part.touch()
        return True

    monkeypatch.setattr(cache, 'lock_file', complete)
    folder = RemoteFolder(URL)
    cache.fetch(folder, folder.info('b.txt'), tmp_path / 'b.txt')
    assert (tmp_path / 'b.txt').read_bytes() == TEXTS['text/b.txt']


def test_a_cache_on_a_file_system_without_locks_works(bucket, monkeypatch):
    """Another process writes to the partial file that all processes would share."""
    bucket.put(TEXTS)

    def refuse(handle, operation):
        os.write(handle, b'other')
        raise OSError(errno.ENOSYS, 'Function not implemented')

    monkeypatch.setattr(fcntl, 'flock', refuse)
    copy = cache.copy_path(f'{URL}/a/c.txt', 'config.data')
    assert copy.read_bytes() == TEXTS['text/a/c.txt'] and not [*copy.parent.glob('.c.txt.part-*')]


def test_a_download_that_is_always_damaged_is_an_error(bucket, tmp_path):
    bucket.put(TEXTS)
    with bucket.failing('spoil', 'GET', 'b.txt', count=99), pytest.raises(UserError, match='match its checksum md5:'):
        cache.copy_path(f'{URL}/b.txt', 'config.data')
    assert not list(tmp_path.rglob('b.txt'))


def test_permanent_errors_are_reported_without_retries(bucket, monkeypatch):
    with pytest.raises(UserError, match=r'^config\.corpus: found no bucket s3://none, expected a bucket that exists'):
        resolve_sources('s3://none/text')
    with pytest.raises(UserError, match=r"found nothing at 's3://bucket/text', expected an object"):
        resolve_sources(URL)
    with pytest.raises(UserError, match='the name of a bucket before any wildcard'):
        resolve_sources('s3://b*/text')
    with bucket.failing('deny', 'HEAD', '', count=9), pytest.raises(UserError, match=r'denied.*aws configure'):
        resolve_sources(URL)
    monkeypatch.setitem(sys.modules, 'gcsfs', None)
    with pytest.raises(UserError, match=r'^config\.init: found gs:// without gcsfs .*pip install gcsfs'):
        user_path('gs://bucket/model', 'config.init')


def test_a_full_disk_leaves_no_incomplete_copy(bucket, monkeypatch):
    """The error has the path and the size of the file."""

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bucket.put(TEXTS)
    with monkeypatch.context() as patched, pytest.raises(OSError) as error:
        patched.setattr(cache.os, 'fsync', full)
        cache.copy_path(f'{URL}/b.txt', 'config.data')
    assert error.value.filename.endswith('b.txt') and error.value.write_size == len(TEXTS['text/b.txt'])
    assert cache.copy_path(f'{URL}/b.txt', 'config.data').read_bytes() == TEXTS['text/b.txt']


@pytest.mark.slow
def test_a_large_upload_continues_at_the_part_that_failed(bucket, monkeypatch, tmp_path):
    """If the upload fails for good, no parts remain in the bucket."""
    monkeypatch.setattr(object_store, 'ONE_REQUEST', 1 << 20)
    monkeypatch.setattr(object_store, 'PART', 5 << 20)
    monkeypatch.setattr(object_store, 'PART_ATTEMPTS', 5)
    large = tmp_path / 'large'
    large.write_bytes(random.Random(1).randbytes(17 << 20))
    folder = RemoteFolder('s3://bucket/run')
    with bucket.failing('refuse', 'PUT', 'large', count=3) as failed:
        folder.upload('large', large)
    assert bucket.system.cat_file('bucket/run/large') == large.read_bytes()
    assert len(failed) == 3 and bucket.requests.count(('PUT', '/bucket/run/large')) == 4 + 3
    with bucket.failing('cut', 'POST', 'large', after=1):  # The response to the completion is lost.
        folder.upload('large', large)
    with bucket.failing('refuse', 'PUT', 'large', count=999, after=2), pytest.raises(UnreachableError):
        folder.upload('other-large', large)
    assert not bucket.system.call_s3('list_multipart_uploads', Bucket='bucket').get('Uploads')
    assert 'other-large' not in bucket.names('bucket/run')
    with pytest.raises(UserError, match='no bucket s3://none'):
        RemoteFolder('s3://none/run').upload('large', large)


@pytest.mark.slow
def test_text_in_google_cloud_storage_is_found_and_copied(google):
    bucket = RemoteFolder('gs://bucket/text')
    for name in NAMES:
        bucket.write(name, TEXTS[f'text/{name}'])
    found = resolve_sources('gs://bucket/text/**')
    assert [source.name for source in found] == ['a/c.txt', 'a/e', 'a.txt', 'b.txt']
    assert cache.copy_object(found[0].path).read_bytes() == TEXTS['text/a/c.txt']
    assert bucket.info('b.txt').checksum == content_checksum(TEXTS['text/b.txt'], 'crc32c')
    assert bucket.info('nothing') is None and not RemoteFolder('gs://bucket/nothing').find()
    for data in (b'\r', b'\n', b'\r\n', b'one\r', b'\x00\r\n\r', bytes(range(256))):
        bucket.write('binary', data)
        assert bucket.read('binary') == data
    with pytest.raises(UserError, match='no bucket gs://none'):
        resolve_sources('gs://none/text')


@pytest.mark.slow
def test_retries_end_after_a_time_without_an_answer(bucket, monkeypatch, caplog):
    """Retries last longer if the server has answered before. Each piece that arrives restarts the time."""
    monkeypatch.setattr(retry, 'PATIENCE', 3.0)
    monkeypatch.setattr(retry, 'WARN_EVERY', 0)
    bucket.put(TEXTS)
    folder = RemoteFolder(URL, 'config.data')
    assert folder.info('b.txt')
    with bucket.failing('refuse', 'GET', 'b.txt', count=15):  # For longer than FIRST_CONTACT.
        assert folder.read('b.txt') == TEXTS['text/b.txt']
    assert 'no complete answer from s3://bucket/text' in caplog.text and 'retrying for up to 3 s' in caplog.text
    monkeypatch.setattr(retry, 'PATIENCE', 1.0)
    start = time.monotonic()
    with (
        bucket.failing('refuse', 'GET', 'b.txt', count=9999) as failed,
        pytest.raises(UnreachableError, match='for 1 s'),
    ):
        folder.read('b.txt')
    assert 1 <= time.monotonic() - start < 4 and len(failed) > 3
    monkeypatch.setattr(retry, '_answered', set())
    with bucket.failing('refuse', 'GET', 'b.txt', count=9999), pytest.raises(UnreachableError, match='for 0 s'):
        folder.read('b.txt')
    attempts = iter(range(10**9))
    monkeypatch.setattr(retry, 'PATIENCE', 2.0)
    monkeypatch.setattr(retry, 'PAUSES', (0.05,))
    monkeypatch.setattr(cache, 'PIECE', 50_000)
    monkeypatch.setattr(
        bucket, 'fault', lambda method, path: 'refuse' if method == 'GET' and next(attempts) % 5 else None
    )
    start = time.monotonic()  # Each of five pieces needs five attempts.
    assert cache.copy_path(f'{URL}/b.txt', 'config.data').read_bytes() == TEXTS['text/b.txt']
    assert time.monotonic() - start > 2


def test_an_absent_object_is_an_answer(bucket, monkeypatch):
    monkeypatch.setattr(retry, '_answered', set())
    folder = RemoteFolder(URL, 'config.data')
    assert folder.info('none.txt') is None
    bucket.put(TEXTS)
    monkeypatch.setattr(retry, 'PATIENCE', 60.0)
    with bucket.failing('refuse', 'GET', 'b.txt', count=15):
        assert folder.read('b.txt') == TEXTS['text/b.txt']


def test_a_permanent_error_of_one_object_ends_the_retries_of_others(bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(retry, 'PATIENCE', 60.0)
    bucket.put(TEXTS)
    folder = RemoteFolder(URL, 'config.data')
    objects = folder.find()
    faults = {'b.txt': 'refuse', 'a.txt': 'deny'}
    monkeypatch.setattr(bucket, 'fault', lambda method, path: method == 'GET' and faults.get(path.rpartition('/')[2]))
    start = time.monotonic()
    with pytest.raises(UserError, match='denied'):
        cache.fetch_all(folder, {objects[name]: tmp_path / name for name in ('b.txt', 'a.txt')})
    assert time.monotonic() - start < 10
