"""Objects of a real server that speaks S3: found and fetched as files are, whatever happens on the way."""

import errno
import os
import random
import shutil
import sys
import time

import pytest

from bertjax.corpus.sources import resolve
from bertjax.errors import UserError
from bertjax.files.buckets import cache, lease, objects, parts, patience
from bertjax.files.buckets.failures import UnreachableError
from bertjax.files.buckets.mirror import Mirror, Wholes
from bertjax.files.buckets.objects import Bucket, content_sum
from bertjax.files.paths import user_path

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
    there, here = resolve(f'{URL}{spec}'), resolve(f'{tmp_path}/text{spec}')
    assert here and [(s.name, s.size, s.single) for s in there] == [(s.name, s.size, s.single) for s in here]


@pytest.mark.parametrize('fault', ['refuse', 'cut', 'spoil'])
def test_what_fails_on_the_way_is_asked_for_again(fault, bucket, monkeypatch):
    bucket.put(TEXTS)
    monkeypatch.setattr(cache, 'PIECE', 100_000)
    with bucket.failing(fault, 'GET', 'a/c.txt', after=1) as failed:
        (copy,) = [cache.local_copy(f'{URL}/a/c.txt', 'config.data')]
    assert len(failed) == 1 and copy.read_bytes() == TEXTS['text/a/c.txt']


@pytest.mark.slow
def test_a_cut_connection_is_told_and_continued(bucket, monkeypatch):
    """In one line; and what has come is not asked for again."""
    bucket.put(TEXTS)
    monkeypatch.setattr(cache, 'PIECE', 100_000)
    with (
        bucket.failing('refuse', 'GET', 'a/c.txt', count=99, after=2),
        pytest.raises(UserError, match=r'config\.data: found s3://bucket/text/a.*for 0 s .*.*same command goes on'),
    ):
        cache.local_copy(f'{URL}/a/c.txt', 'config.data')
    bucket.asked.clear()
    assert cache.local_copy(f'{URL}/a/c.txt', 'config.data').read_bytes() == TEXTS['text/a/c.txt']
    assert bucket.asked.count(('GET', '/bucket/text/a/c.txt')) == 2  # of 4 pieces


@pytest.mark.slow
def test_a_broken_copy_is_fetched_again_and_a_whole_one_is_not(bucket):
    bucket.put(TEXTS)
    copy = cache.local_copy(URL, 'config.data')
    bucket.asked.clear()
    assert cache.local_copy(URL, 'config.data') == copy
    assert not [path for method, path in bucket.asked if method == 'GET' and path != '/bucket']
    data = bytearray((copy / 'b.txt').read_bytes())
    data[7] ^= 1
    (copy / 'b.txt').write_bytes(data)
    assert (cache.local_copy(URL, 'config.data') / 'b.txt').read_bytes() == TEXTS['text/b.txt']
    bucket.put({'text/b.txt': b'other'})
    assert (cache.local_copy(URL, 'config.data') / 'b.txt').read_bytes() == b'other'


def test_bytes_that_are_others_each_time_never_count(bucket, tmp_path):
    bucket.put(TEXTS)
    with bucket.failing('spoil', 'GET', 'b.txt', count=99), pytest.raises(UserError, match='than its sum md5:'):
        cache.local_copy(f'{URL}/b.txt', 'config.data')
    assert not list(tmp_path.rglob('b.txt'))


def test_what_cannot_be_had_is_told_at_once(bucket, monkeypatch):
    with pytest.raises(UserError, match=r'^config\.corpus: found no bucket s3://none, expected a bucket that exists'):
        resolve('s3://none/text')
    with pytest.raises(UserError, match=r"found nothing at 's3://bucket/text', expected an object"):
        resolve(URL)
    with pytest.raises(UserError, match='the name of a bucket before any wildcard'):
        resolve('s3://b*/text')
    with bucket.failing('deny', 'HEAD', '', count=9), pytest.raises(UserError, match=r'denied.*aws configure'):
        resolve(URL)
    monkeypatch.setitem(sys.modules, 'gcsfs', None)
    objects._file_system.cache_clear()
    with pytest.raises(UserError, match=r'^config\.init: found gs:// without gcsfs .*pip install gcsfs'):
        user_path('gs://bucket/model', 'config.init')


def test_a_full_disk(bucket, monkeypatch):
    """Nothing that is half there counts, and the error knows the place and how much was wanted."""

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bucket.put(TEXTS)
    with monkeypatch.context() as patched, pytest.raises(OSError) as error:
        patched.setattr(cache.os, 'fsync', full)
        cache.local_copy(f'{URL}/b.txt', 'config.data')
    assert error.value.filename.endswith('b.txt') and error.value.wanted == len(TEXTS['text/b.txt'])
    assert cache.local_copy(f'{URL}/b.txt', 'config.data').read_bytes() == TEXTS['text/b.txt']


WHOLES = Wholes({r'checkpoints/\d+/': 'seal.json'}, r'(^|/)partial/')


def written(folder, files: dict[str, str]):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def step(number: int, text: str = 'x') -> dict[str, str]:
    return {f'checkpoints/{number}/{name}': text for name in ('a', 'b', 'seal.json')}


def held(folder) -> list[str]:
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file())
    return sorted(path for path in paths if not path.startswith('.'))


@pytest.mark.slow
def test_half_a_checkpoint_never_counts(bucket, tmp_path):
    """Whatever write fails, the other machine sees whole steps alone; and the one before is removed after them."""
    here = written(tmp_path / 'here', {'ledger.jsonl': '4', **step(4), 'partial/x': ''})
    mirror = Mirror(here, Bucket('s3://bucket/run'), WHOLES)
    mirror.publish()
    written(here, {'ledger.jsonl': '8', **step(8), 'checkpoints/12/a': 'no seal yet'})
    for name in ('a', 'b', 'seal.json'):
        (here / 'checkpoints/4' / name).unlink()
    (here / 'checkpoints/4').rmdir()
    for number, after in enumerate((0, 1, 1, 1)):  # what was written before is not written again
        with bucket.failing('deny', 'PUT', '', count=9, after=after), pytest.raises(UserError, match='denied'):
            Mirror(here, Bucket('s3://bucket/run'), WHOLES).publish()
        there = tmp_path / f'there{number}'
        there.mkdir()
        Mirror(there, Bucket('s3://bucket/run'), WHOLES).reconcile()
        assert held(there) == ['checkpoints/4/a', 'checkpoints/4/b', 'checkpoints/4/seal.json', 'ledger.jsonl']
    Mirror(here, Bucket('s3://bucket/run'), WHOLES).publish()
    names = ['checkpoints/8/a', 'checkpoints/8/b', 'checkpoints/8/seal.json', 'ledger.jsonl']
    assert list(bucket.names('bucket/run')) == names
    # And what was never finished is removed by whoever comes next.
    bucket.put({'run/checkpoints/12/a': b'half', 'run/checkpoints/8/other': b'of another save'})
    there = tmp_path / 'there'
    there.mkdir()
    other = Mirror(there, Bucket('s3://bucket/run'), WHOLES)
    other.reconcile()
    assert held(there) == sorted([*names, 'checkpoints/8/other'])
    other.publish()
    assert list(bucket.names('bucket/run')) == sorted([*names, 'checkpoints/8/other'])


@pytest.mark.slow
def test_the_side_with_the_later_step_wins(bucket, tmp_path):
    one, two = (Mirror(tmp_path / name, Bucket('s3://bucket/run'), WHOLES) for name in ('one', 'two'))
    written(one.folder, {'ledger.jsonl': '4', **step(4)})
    one.publish()
    two.folder.mkdir()
    two.reconcile()
    written(two.folder, {'ledger.jsonl': '4, 8 of two', **step(8)})
    two.publish()
    # Never published: this machine was out of reach, and is further.
    written(one.folder, {'ledger.jsonl': '4, 8, 12 of one', **step(12)})
    one.reconcile()
    assert (one.folder / 'ledger.jsonl').read_text() == '4, 8, 12 of one'
    assert {path.name for path in (one.folder / 'checkpoints').iterdir()} == {'4', '8', '12'}
    one.publish()
    written(two.folder, {'ledger.jsonl': '4, 8, and what a kill left'})
    two.reconcile()
    assert (two.folder / 'ledger.jsonl').read_text() == '4, 8, 12 of one' and (two.folder / 'checkpoints/12/a').exists()
    # What a person removes from the bucket is gone.
    for path in bucket.system.find('bucket/run'):
        bucket.system.rm_file(path)
    two.reconcile()
    assert not held(two.folder)


@pytest.mark.slow
def test_two_runs_in_one_workdir_are_noticed(bucket, monkeypatch):
    """One that renews its lease is left alone; one that does not for a while is gone, and learns of it if it is not."""
    monkeypatch.setattr(lease, 'EVERY', 0.05)
    monkeypatch.setattr(lease, 'GONE', 0.4)
    said: list[str] = []
    first, second = (lease.Lease(Bucket('s3://bucket/run'), mirror) for mirror in ('one', 'two'))
    first.take(said.append)
    with pytest.raises(UserError, match='another process that works in this workdir'):
        second.take(said.append)
    assert said
    bucket.put({'run/.lease.json': b'{"token": "of a third that took over while this one was out of reach"}'})
    time.sleep(0.5)
    with pytest.raises(lease.LostLeaseError, match='another process works in s3://bucket/run now'):
        first.check()
    second.take(said.append)  # the third does not renew it
    second.give_back()
    assert not bucket.names('bucket/run')


def test_who_was_stopped_looks_before_it_writes(bucket, monkeypatch, tmp_path):
    """A process that did not run for longer than its lease lasts has not noticed that another one took over."""
    monkeypatch.setattr(lease, 'EVERY', 3600.0)  # as where the thread that renews is stopped
    first = lease.Lease(Bucket('s3://bucket/run'), 'one')
    first.take(print)
    mirror = Mirror(written(tmp_path / 'one', step(4)), Bucket('s3://bucket/run').guarded(first.check), WHOLES)
    bucket.asked.clear()
    mirror.publish()
    assert not [path for _, path in bucket.asked if 'lease' in path]  # renewed just now
    monkeypatch.setattr(lease, 'GONE', 0.0)
    written(mirror.folder, {'ledger.jsonl': '4'})
    mirror.publish()  # nobody has it
    second = {
        'run/.lease.json': b'{"token": "of another"}',
        'run/ledger.jsonl': b'of another',
        'run/checkpoints/4/a': b'x',
    }
    bucket.put(second)
    written(mirror.folder, {'ledger.jsonl': '4, 8'})
    with pytest.raises(lease.LostLeaseError, match='another process works in s3://bucket/run now'):
        mirror.publish()
    shutil.rmtree(mirror.folder / 'checkpoints/4')
    with pytest.raises(lease.LostLeaseError):
        mirror.publish()
    assert {f'run/{name}' for name in bucket.names('bucket/run')} == {*second, *(f'run/{name}' for name in step(4))}
    assert {name: bucket.system.cat_file(f'bucket/{name}') for name in second} == second


def test_a_lease_replaces_only_the_one_that_was_read(bucket, monkeypatch):
    """What comes between reading and writing is another's, and stays; the same answer to the same request is none."""
    monkeypatch.setattr(lease, 'GONE', 0.0)
    other = {'run/.lease.json': b'{"token": "of another"}'}

    def between(method: str, path: str) -> None:
        if method == 'PUT' and path.endswith('.lease.json'):
            bucket.fault = lambda method, path: None
            bucket.put_behind(other)

    bucket.put({'run/.lease.json': b'{"token": "of one that is gone"}'})
    first = lease.Lease(Bucket('s3://bucket/run'), 'one')
    bucket.fault = between
    with pytest.raises(UserError, match='another process that took this workdir just now'):
        first.take(print)
    assert bucket.system.cat_file('bucket/run/.lease.json') == other['run/.lease.json']
    bucket.clear()
    first.take(print)
    bucket.fault = between
    with pytest.raises(lease.LostLeaseError):
        first.check()
    assert bucket.system.cat_file('bucket/run/.lease.json') == other['run/.lease.json']


@pytest.mark.slow
def test_a_large_file_goes_on_at_the_part_that_failed(bucket, monkeypatch, tmp_path):
    """And, where nothing more can be sent, leaves no parts of it."""
    monkeypatch.setattr(objects, '_WHOLE', 1 << 20)
    monkeypatch.setattr(parts, 'PART', 5 << 20)
    large = tmp_path / 'large'
    large.write_bytes(random.Random(1).randbytes(17 << 20))
    there = Bucket('s3://bucket/run')
    with bucket.failing('refuse', 'PUT', 'large', count=3) as failed:
        there.upload('large', large)
    assert bucket.system.cat_file('bucket/run/large') == large.read_bytes()
    assert len(failed) == 3 and bucket.asked.count(('PUT', '/bucket/run/large')) == 4 + 3
    with bucket.failing('cut', 'POST', 'large', after=1):  # the answer that all is there
        there.upload('large', large)
    with bucket.failing('refuse', 'PUT', 'large', count=999, after=2), pytest.raises(UnreachableError):
        there.upload('other-large', large)
    assert not bucket.system.call_s3('list_multipart_uploads', Bucket='bucket').get('Uploads')
    assert 'other-large' not in bucket.names('bucket/run')
    with pytest.raises(UserError, match='no bucket s3://none'):
        Bucket('s3://none/run').upload('large', large)


@pytest.mark.slow
def test_the_same_of_google(google, monkeypatch, tmp_path):
    """Text, copies, a mirror and its lease over Google's protocol; the stand-in knows no preconditions."""
    bucket = Bucket('gs://bucket/text')
    for name in NAMES:
        bucket.write(name, TEXTS[f'text/{name}'])
    found = resolve('gs://bucket/text/**')
    assert [source.name for source in found] == ['a/c.txt', 'a/e', 'a.txt', 'b.txt']
    assert cache.local_file(found[0].path).read_bytes() == TEXTS['text/a/c.txt']
    assert bucket.about('b.txt').sum == content_sum(TEXTS['text/b.txt'], 'crc32c')
    assert bucket.about('nothing') is None and not Bucket('gs://bucket/nothing').objects()
    here, there = (Mirror(tmp_path / name, Bucket('gs://bucket/run'), WHOLES) for name in ('here', 'there'))
    holder = lease.Lease(here.bucket, 'here')
    holder.take(print)
    written(here.folder, {'ledger.jsonl': '4', **step(4), **step(8)})
    assert here.publish() == (7, 7)
    shutil.rmtree(here.folder / 'checkpoints/4')
    (here.folder / 'ledger.jsonl').write_text('4, 8')
    assert here.publish() == (1, 4)
    asked, request = [], type(google)._request

    def noted(self, *args, **parameters):
        asked.append(parameters.get('ifGenerationMatch'))
        return request(self, *args, **parameters)

    monkeypatch.setattr(type(google), '_request', noted)
    monkeypatch.setattr(lease, 'GONE', 0.0)
    generation = here.bucket.about('.lease.json').tag
    holder.check()
    assert generation == f'generation {next(filter(None, asked))}' != here.bucket.about('.lease.json').tag
    there.folder.mkdir()
    there.reconcile()
    assert held(there.folder) == ['checkpoints/8/a', 'checkpoints/8/b', 'checkpoints/8/seal.json', 'ledger.jsonl']
    holder.give_back()
    assert '.lease.json' not in here.bucket.objects()
    with pytest.raises(UserError, match='no bucket gs://none'):
        resolve('gs://none/text')


@pytest.mark.slow
def test_patience_ends_with_the_time_without_an_answer(bucket, monkeypatch, caplog):
    """A server that has answered is waited for longer than one that never has, or than what it refuses for good; each
    piece that comes gives the rest its time anew."""
    monkeypatch.setattr(patience, 'PATIENCE', 3.0)
    monkeypatch.setattr(patience, '_told', -1e9)
    bucket.put(TEXTS)
    asked = Bucket(URL, 'config.data')
    assert asked.about('b.txt')
    with bucket.failing('refuse', 'GET', 'b.txt', count=15):  # for longer than MEETING
        assert asked.read('b.txt') == TEXTS['text/b.txt']
    assert 'no answer, or half of one, from s3://bucket/text' in caplog.text and 'for 3 s' in caplog.text
    monkeypatch.setattr(patience, 'PATIENCE', 1.0)
    began = time.monotonic()
    with (
        bucket.failing('refuse', 'GET', 'b.txt', count=9999) as failed,
        pytest.raises(UnreachableError, match='for 1 s'),
    ):
        asked.read('b.txt')
    assert 1 <= time.monotonic() - began < 4 and len(failed) > 3
    monkeypatch.setattr(objects, '_met', set())
    with bucket.failing('refuse', 'GET', 'b.txt', count=9999), pytest.raises(UnreachableError, match='for 0 s'):
        asked.read('b.txt')
    slow = iter(range(10**9))
    monkeypatch.setattr(patience, 'PATIENCE', 2.0)
    monkeypatch.setattr(patience, 'PAUSES', (0.05,))
    monkeypatch.setattr(cache, 'PIECE', 50_000)
    monkeypatch.setattr(bucket, 'fault', lambda method, path: 'refuse' if method == 'GET' and next(slow) % 5 else None)
    began = time.monotonic()  # each of five pieces takes five attempts
    assert cache.local_copy(f'{URL}/b.txt', 'config.data').read_bytes() == TEXTS['text/b.txt']
    assert time.monotonic() - began > 2


def test_where_one_fails_the_others_are_not_waited_for(bucket, monkeypatch, tmp_path):
    monkeypatch.setattr(patience, 'PATIENCE', 60.0)
    bucket.put(TEXTS)
    there = Bucket(URL, 'config.data')
    found = there.objects()
    fate = {'b.txt': 'refuse', 'a.txt': 'deny'}
    monkeypatch.setattr(bucket, 'fault', lambda method, path: method == 'GET' and fate.get(path.rpartition('/')[2]))
    began = time.monotonic()
    with pytest.raises(UserError, match='denied'):
        cache.fetch_all(there, {found[name]: tmp_path / name for name in ('b.txt', 'a.txt')})
    assert time.monotonic() - began < 10
