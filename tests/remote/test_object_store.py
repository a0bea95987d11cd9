"""Objects of a real server that speaks S3: found and fetched as files are, whatever happens on the way."""

import errno
import os
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

NAMES = ('b.txt', 'a/c.txt', 'a.txt', '.hidden', 'a/_x/d.txt', 'a/e')
TEXTS = {f'text/{name}': name.encode() * 50_000 for name in NAMES}
URL = 's3://bucket/text'


@pytest.mark.parametrize('spec', ['', '/*.txt', '/**', '/a/c.txt', '/**/c*', '/*/[!c]*'])
def test_texts_are_found_as_on_a_disk(spec, bucket, tmp_path):
    """The same names in the same order, so that stores of the same text are equal."""
    bucket.put(TEXTS)
    for name, data in TEXTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    there, here = resolve_sources(f'{URL}{spec}'), resolve_sources(f'{tmp_path}/text{spec}')
    assert here and [(s.name, s.size, s.single) for s in there] == [(s.name, s.size, s.single) for s in here]


@pytest.mark.parametrize('fault', ['refuse', 'cut', 'spoil'])
def test_what_fails_on_the_way_is_asked_for_again(fault, bucket, monkeypatch):
    bucket.put(TEXTS)
    monkeypatch.setattr(cache, 'PIECE', 100_000)
    with bucket.failing(fault, 'GET', 'a/c.txt', after=1) as failed:
        (copy,) = [cache.copy_path(f'{URL}/a/c.txt', 'config.data')]
    assert len(failed) == 1 and copy.read_bytes() == TEXTS['text/a/c.txt']


@pytest.mark.slow
def test_a_cut_connection_is_told_and_continued(bucket, monkeypatch):
    """In one line; and what has come is not asked for again."""
    bucket.put(TEXTS)
    monkeypatch.setattr(cache, 'PIECE', 100_000)
    with (
        bucket.failing('refuse', 'GET', 'a/c.txt', count=99, after=2),
        pytest.raises(UserError, match=r'config\.data: found s3://bucket/text/a.*for 0 s .*.*same command continues'),
    ):
        cache.copy_path(f'{URL}/a/c.txt', 'config.data')
    bucket.requests.clear()
    assert cache.copy_path(f'{URL}/a/c.txt', 'config.data').read_bytes() == TEXTS['text/a/c.txt']
    assert bucket.requests.count(('GET', '/bucket/text/a/c.txt')) == 2  # of 4 pieces


@pytest.mark.slow
def test_a_broken_copy_is_fetched_again_and_a_whole_one_is_not(bucket):
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


def test_bytes_that_are_others_each_time_never_count(bucket, tmp_path):
    bucket.put(TEXTS)
    with bucket.failing('spoil', 'GET', 'b.txt', count=99), pytest.raises(UserError, match='match its checksum md5:'):
        cache.copy_path(f'{URL}/b.txt', 'config.data')
    assert not list(tmp_path.rglob('b.txt'))


def test_what_cannot_be_had_is_told_at_once(bucket, monkeypatch):
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


def test_a_full_disk(bucket, monkeypatch):
    """Nothing that is half there counts, and the error knows the place and how much was wanted."""

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bucket.put(TEXTS)
    with monkeypatch.context() as patched, pytest.raises(OSError) as error:
        patched.setattr(cache.os, 'fsync', full)
        cache.copy_path(f'{URL}/b.txt', 'config.data')
    assert error.value.filename.endswith('b.txt') and error.value.write_size == len(TEXTS['text/b.txt'])
    assert cache.copy_path(f'{URL}/b.txt', 'config.data').read_bytes() == TEXTS['text/b.txt']


@pytest.mark.slow
def test_a_large_file_goes_on_at_the_part_that_failed(bucket, monkeypatch, tmp_path):
    """And, where nothing more can be sent, leaves no parts of it."""
    monkeypatch.setattr(object_store, 'ONE_REQUEST', 1 << 20)
    monkeypatch.setattr(object_store, 'PART', 5 << 20)
    monkeypatch.setattr(object_store, 'PART_ATTEMPTS', 5)
    large = tmp_path / 'large'
    large.write_bytes(random.Random(1).randbytes(17 << 20))
    there = RemoteFolder('s3://bucket/run')
    with bucket.failing('refuse', 'PUT', 'large', count=3) as failed:
        there.upload('large', large)
    assert bucket.system.cat_file('bucket/run/large') == large.read_bytes()
    assert len(failed) == 3 and bucket.requests.count(('PUT', '/bucket/run/large')) == 4 + 3
    with bucket.failing('cut', 'POST', 'large', after=1):  # the answer that all is there
        there.upload('large', large)
    with bucket.failing('refuse', 'PUT', 'large', count=999, after=2), pytest.raises(UnreachableError):
        there.upload('other-large', large)
    assert not bucket.system.call_s3('list_multipart_uploads', Bucket='bucket').get('Uploads')
    assert 'other-large' not in bucket.names('bucket/run')
    with pytest.raises(UserError, match='no bucket s3://none'):
        RemoteFolder('s3://none/run').upload('large', large)


@pytest.mark.slow
def test_the_same_of_google(google):
    """Text and its copies over Google's protocol."""
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
def test_patience_ends_with_the_time_without_an_answer(bucket, monkeypatch, caplog):
    """A server that has answered is waited for longer than one that never has, or than what it refuses for good; each
    piece that comes gives the rest its time anew."""
    monkeypatch.setattr(retry, 'PATIENCE', 3.0)
    monkeypatch.setattr(retry, 'WARN_EVERY', 0)
    bucket.put(TEXTS)
    asked = RemoteFolder(URL, 'config.data')
    assert asked.info('b.txt')
    with bucket.failing('refuse', 'GET', 'b.txt', count=15):  # for longer than FIRST_CONTACT
        assert asked.read('b.txt') == TEXTS['text/b.txt']
    assert 'no complete answer from s3://bucket/text' in caplog.text and 'for 3 s' in caplog.text
    monkeypatch.setattr(retry, 'PATIENCE', 1.0)
    began = time.monotonic()
    with (
        bucket.failing('refuse', 'GET', 'b.txt', count=9999) as failed,
        pytest.raises(UnreachableError, match='for 1 s'),
    ):
        asked.read('b.txt')
    assert 1 <= time.monotonic() - began < 4 and len(failed) > 3
    monkeypatch.setattr(retry, '_answered', set())
    with bucket.failing('refuse', 'GET', 'b.txt', count=9999), pytest.raises(UnreachableError, match='for 0 s'):
        asked.read('b.txt')
    slow = iter(range(10**9))
    monkeypatch.setattr(retry, 'PATIENCE', 2.0)
    monkeypatch.setattr(retry, 'PAUSES', (0.05,))
    monkeypatch.setattr(cache, 'PIECE', 50_000)
    monkeypatch.setattr(bucket, 'fault', lambda method, path: 'refuse' if method == 'GET' and next(slow) % 5 else None)
    began = time.monotonic()  # each of five pieces takes five attempts
    assert cache.copy_path(f'{URL}/b.txt', 'config.data').read_bytes() == TEXTS['text/b.txt']
    assert time.monotonic() - began > 2


def test_where_one_fails_the_others_are_not_waited_for(bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(retry, 'PATIENCE', 60.0)
    bucket.put(TEXTS)
    there = RemoteFolder(URL, 'config.data')
    found = there.find()
    fate = {'b.txt': 'refuse', 'a.txt': 'deny'}
    monkeypatch.setattr(bucket, 'fault', lambda method, path: method == 'GET' and fate.get(path.rpartition('/')[2]))
    began = time.monotonic()
    with pytest.raises(UserError, match='denied'):
        cache.fetch_all(there, {found[name]: tmp_path / name for name in ('b.txt', 'a.txt')})
    assert time.monotonic() - began < 10
