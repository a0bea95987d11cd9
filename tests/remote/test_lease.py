"""Tests the lease for writing in a workdir in a bucket."""

import shutil
import time

import pytest
from test_mirror import RULES, step, write_files

from bertjax.errors import UserError
from bertjax.remote import lease, object_store
from bertjax.remote.mirror import Mirror
from bertjax.remote.object_store import RemoteFolder


@pytest.mark.slow
@pytest.mark.parametrize('other', ['mirror', 'host'])  # several hosts may share a home directory
def test_two_runs_in_one_workdir_are_detected(bucket, monkeypatch, other: str):
    """A lease that is renewed cannot be taken. A lease that is not renewed expires, and its old owner gets an error."""
    monkeypatch.setattr(lease, 'RENEW_EVERY', 0.05)
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.4)
    lines: list[str] = []
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
    first.take(lines.append)
    if other == 'host':
        monkeypatch.setattr(lease.socket, 'gethostname', lambda: 'another-host')
    second = lease.Lease(RemoteFolder('s3://bucket/run'), 'two' if other == 'mirror' else 'one')
    with pytest.raises(UserError, match='another process that works in this workdir'):
        second.take(lines.append)
    assert lines
    bucket.put({'run/.lease.json': b'{"token": "of a third that took over while this one was out of reach"}'})
    time.sleep(0.5)
    with pytest.raises(lease.LostLeaseError, match='another process works in s3://bucket/run now'):
        first.check()
    second.take(lines.append)  # The third process does not renew its lease.
    second.release()
    assert not bucket.names('bucket/run')


def test_a_large_upload_ends_between_two_parts_if_the_lease_is_lost(bucket, monkeypatch, tmp_path):
    """A process is suspended in the middle of a file and continues after another process took the lease."""
    monkeypatch.setattr(object_store, 'ONE_REQUEST', 1 << 20)
    monkeypatch.setattr(object_store, 'PART', 5 << 20)
    other = {'run/.lease.json': b'{"token": "of another"}', 'run/large': b'of another'}
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
    first.take(print)

    def take_over(method: str, path: str) -> None:
        if method == 'PUT' and path.endswith('large'):
            bucket.fault = lambda method, path: None
            bucket.put_behind(other)
            monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)

    bucket.fault = take_over
    (tmp_path / 'large').write_bytes(bytes(11 << 20))
    with pytest.raises(lease.LostLeaseError):
        RemoteFolder('s3://bucket/run').with_check(first.check).upload('large', tmp_path / 'large')
    assert bucket.contents('bucket/run') == {f'bucket/{name}': data for name, data in other.items()}
    assert not bucket.system.call_s3('list_multipart_uploads', Bucket='bucket').get('Uploads')


def test_a_lease_replaces_only_the_lease_that_was_read(bucket, monkeypatch):
    """A lease that another process writes between the read and the write is not overwritten."""
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)
    other = {'run/.lease.json': b'{"token": "of another"}'}

    def take_over(method: str, path: str) -> None:
        if method == 'PUT' and path.endswith('.lease.json'):
            bucket.fault = lambda method, path: None
            bucket.put_behind(other)

    bucket.put({'run/.lease.json': b'{"token": "of one that is gone"}'})
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
    bucket.fault = take_over
    with pytest.raises(UserError, match='another process that took this workdir just now'):
        first.take(print)
    assert bucket.system.cat_file('bucket/run/.lease.json') == other['run/.lease.json']
    bucket.clear()
    first.take(print)
    bucket.fault = take_over
    with pytest.raises(lease.LostLeaseError):
        first.check()
    assert bucket.system.cat_file('bucket/run/.lease.json') == other['run/.lease.json']


def test_a_process_that_was_suspended_checks_its_lease_before_it_writes(bucket, monkeypatch, tmp_path):
    """While a process was suspended for longer than its lease lasts, another process may have taken the lease."""
    monkeypatch.setattr(lease, 'RENEW_EVERY', 3600.0)  # As if the thread that renews were suspended.
    first = lease.Lease(RemoteFolder('s3://bucket/run'), 'one')
    first.take(print)
    folder = write_files(tmp_path / 'one', step(4))
    mirror = Mirror(folder, RemoteFolder('s3://bucket/run').with_check(first.check), RULES)
    bucket.requests.clear()
    mirror.publish()
    assert not [path for _, path in bucket.requests if 'lease' in path]  # The lease is new.
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.0)
    write_files(mirror.folder, {'ledger.jsonl': '4'})
    mirror.publish()  # The lease expired, but no other process took it.
    second = {
        'run/.lease.json': b'{"token": "of another"}',
        'run/ledger.jsonl': b'of another',
        'run/checkpoints/4/a': b'x',
    }
    bucket.put(second)
    write_files(mirror.folder, {'ledger.jsonl': '4, 8'})
    with pytest.raises(lease.LostLeaseError, match='another process works in s3://bucket/run now'):
        mirror.publish()
    shutil.rmtree(mirror.folder / 'checkpoints/4')
    with pytest.raises(lease.LostLeaseError):
        mirror.publish()
    assert {f'run/{name}' for name in bucket.names('bucket/run')} == {*second, *(f'run/{name}' for name in step(4))}
    assert {name: bucket.system.cat_file(f'bucket/{name}') for name in second} == second
