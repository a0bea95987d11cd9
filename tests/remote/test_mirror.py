"""A folder and its like in a bucket: what counts there, which side wins, and who may write."""

import shutil
import time

import pytest

from bertjax.errors import UserError
from bertjax.remote import lease, object_store
from bertjax.remote.mirror import Mirror, MirrorRules
from bertjax.remote.object_store import RemoteFolder

RULES = MirrorRules({r'checkpoints/\d+/': 'seal.json'}, r'(^|/)partial/')


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
    mirror = Mirror(here, RemoteFolder('s3://bucket/run'), RULES)
    mirror.publish()
    written(here, {'ledger.jsonl': '8', **step(8), 'checkpoints/12/a': 'no seal yet'})
    for name in ('a', 'b', 'seal.json'):
        (here / 'checkpoints/4' / name).unlink()
    (here / 'checkpoints/4').rmdir()
    for number, after in enumerate((0, 1, 1, 1)):  # what was written before is not written again
        with bucket.failing('deny', 'PUT', '', count=9, after=after), pytest.raises(UserError, match='denied'):
            Mirror(here, RemoteFolder('s3://bucket/run'), RULES).publish()
        there = tmp_path / f'there{number}'
        there.mkdir()
        Mirror(there, RemoteFolder('s3://bucket/run'), RULES).pull()
        assert held(there) == ['checkpoints/4/a', 'checkpoints/4/b', 'checkpoints/4/seal.json', 'ledger.jsonl']
    Mirror(here, RemoteFolder('s3://bucket/run'), RULES).publish()
    names = ['checkpoints/8/a', 'checkpoints/8/b', 'checkpoints/8/seal.json', 'ledger.jsonl']
    assert list(bucket.names('bucket/run')) == names
    # And what was never finished is removed by whoever comes next.
    bucket.put({'run/checkpoints/12/a': b'half', 'run/checkpoints/8/other': b'of another save'})
    there = tmp_path / 'there'
    there.mkdir()
    other = Mirror(there, RemoteFolder('s3://bucket/run'), RULES)
    other.pull()
    assert held(there) == sorted([*names, 'checkpoints/8/other'])
    other.publish()
    assert list(bucket.names('bucket/run')) == sorted([*names, 'checkpoints/8/other'])


@pytest.mark.slow
def test_the_side_with_the_later_step_wins(bucket, tmp_path):
    one, two = (Mirror(tmp_path / name, RemoteFolder('s3://bucket/run'), RULES) for name in ('one', 'two'))
    written(one.folder, {'ledger.jsonl': '4', **step(4)})
    one.publish()
    two.folder.mkdir()
    two.pull()
    written(two.folder, {'ledger.jsonl': '4, 8 of two', **step(8)})
    two.publish()
    # Never published: this machine was out of reach, and is further.
    written(one.folder, {'ledger.jsonl': '4, 8, 12 of one', **step(12)})
    one.pull()
    assert (one.folder / 'ledger.jsonl').read_text() == '4, 8, 12 of one'
    assert {path.name for path in (one.folder / 'checkpoints').iterdir()} == {'4', '8', '12'}
    one.publish()
    written(two.folder, {'ledger.jsonl': '4, 8, and what a kill left'})
    two.pull()
    assert (two.folder / 'ledger.jsonl').read_text() == '4, 8, 12 of one' and (two.folder / 'checkpoints/12/a').exists()
    # What a person removes from the bucket is gone.
    for path in bucket.system.find('bucket/run'):
        bucket.system.rm_file(path)
    two.pull()
    assert not held(two.folder)


@pytest.mark.slow
def test_two_runs_in_one_workdir_are_noticed(bucket, monkeypatch):
    """One that renews its lease is left alone; one that does not for a while is gone, and learns of it if it is not."""
    monkeypatch.setattr(lease, 'RENEW_EVERY', 0.05)
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.4)
    said: list[str] = []
    first, second = (lease.Lease(RemoteFolder('s3://bucket/run'), mirror) for mirror in ('one', 'two'))
    first.take(said.append)
    with pytest.raises(UserError, match='another process that works in this workdir'):
        second.take(said.append)
    assert said
    bucket.put({'run/.lease.json': b'{"token": "of a third that took over while this one was out of reach"}'})
    time.sleep(0.5)
    with pytest.raises(lease.LostLeaseError, match='another process works in s3://bucket/run now'):
        first.check()
    second.take(said.append)  # the third does not renew it
    second.release()
    assert not bucket.names('bucket/run')


def test_who_was_stopped_looks_before_it_writes(bucket, monkeypatch, tmp_path):
    """A process that did not run for longer than its lease lasts has not noticed that another one took over."""
    monkeypatch.setattr(lease, 'RENEW_EVERY', 3600.0)  # as where the thread that renews is stopped
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
    first.take(print)
    mirror = Mirror(written(tmp_path / 'one', step(4)), RemoteFolder('s3://bucket/run').with_check(first.check), RULES)
    bucket.requests.clear()
    mirror.publish()
    assert not [path for _, path in bucket.requests if 'lease' in path]  # renewed just now
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)
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


def test_a_large_upload_ends_between_two_parts(bucket, monkeypatch, tmp_path):
    """As in a process that was stopped in the middle of a file, and wakes when another one has taken over."""
    monkeypatch.setattr(object_store, 'ONE_REQUEST', 1 << 20)
    monkeypatch.setattr(object_store, 'PART', 5 << 20)
    other = {'run/.lease.json': b'{"token": "of another"}', 'run/large': b'of another'}
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
    first.take(print)

    def wake(method: str, path: str) -> None:
        if method == 'PUT' and path.endswith('large'):
            bucket.fault = lambda method, path: None
            bucket.put_behind(other)
            monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)

    bucket.fault = wake
    (tmp_path / 'large').write_bytes(bytes(11 << 20))
    with pytest.raises(lease.LostLeaseError):
        RemoteFolder('s3://bucket/run').with_check(first.check).upload('large', tmp_path / 'large')
    assert bucket.contents('bucket/run') == {f'bucket/{name}': data for name, data in other.items()}
    assert not bucket.system.call_s3('list_multipart_uploads', Bucket='bucket').get('Uploads')


def test_a_lease_replaces_only_the_one_that_was_read(bucket, monkeypatch):
    """What comes between reading and writing is another's, and stays; the same answer to the same request is none."""
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)
    other = {'run/.lease.json': b'{"token": "of another"}'}

    def between(method: str, path: str) -> None:
        if method == 'PUT' and path.endswith('.lease.json'):
            bucket.fault = lambda method, path: None
            bucket.put_behind(other)

    bucket.put({'run/.lease.json': b'{"token": "of one that is gone"}'})
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
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
def test_the_same_of_google(google, monkeypatch, tmp_path):
    """A mirror and its lease over Google's protocol; the stand-in knows no preconditions."""
    here, there = (Mirror(tmp_path / name, RemoteFolder('gs://bucket/run'), RULES) for name in ('here', 'there'))
    holder = lease.Lease(here.remote, 'here')
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
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)
    generation = here.remote.info('.lease.json').version
    holder.check()
    assert generation == f'generation {next(filter(None, asked))}' != here.remote.info('.lease.json').version
    there.folder.mkdir()
    there.pull()
    assert held(there.folder) == ['checkpoints/8/a', 'checkpoints/8/b', 'checkpoints/8/seal.json', 'ledger.jsonl']
    holder.release()
    assert '.lease.json' not in here.remote.find()
