"""Tests the lines of `bertjax doctor` about the permissions of a bucket."""

import pathlib

import pytest

from bertjax.doctor.check import FAIL, OK, Check, print_checks
from bertjax.doctor.machine import bucket_lease, bucket_rights
from bertjax.files.paths import display_text
from bertjax.terminal import Console
from bertjax.workdir.mirror import mirrored_workdir

WORKDIR = 's3://bucket/run'


def test_all_permissions_are_checked_without_leaving_files(bucket):
    checks = list(bucket_rights(WORKDIR))
    assert [(check.about, check.status) for check in checks] == [
        (right, OK) for right in ('list', 'read', 'write', 'delete')
    ]
    assert not bucket.names('bucket')


@pytest.mark.parametrize(
    ('method', 'path', 'right'),
    [('GET', r'bucket/?$', 'list'), ('GET', 'doctor', 'read'), ('PUT', '', 'write'), ('DELETE', '', 'delete')],
)
def test_a_missing_permission_is_reported_with_a_fix(bucket, method: str, path: str, right: str):
    with bucket.failing('deny', method, path, count=99):
        checks = {check.about: check for check in bucket_rights(WORKDIR)}
    assert [about for about, check in checks.items() if check.status == FAIL] == [right]
    assert 'access denied' in checks[right].message and 's3:' in checks[right].fix
    assert ('remains' in checks[right].message) == (right == 'delete')


def test_a_missing_bucket_and_the_process_that_holds_the_lease_are_reported(bucket):
    assert [(check.about, check.status) for check in bucket_rights('s3://none/run')] == [('bucket', FAIL)]
    assert not list(bucket_lease(WORKDIR))
    bucket.put({'run/.lease.json': b'{"host": "one", "pid": 7}'})
    (check,) = bucket_lease(WORKDIR)
    assert 'one, process 7' in check.message


def test_the_tokens_of_a_store_are_not_downloaded(bucket):
    files = {'manifest.json': b'{}', 'train-00000.tokens': b'1234', 'train.sentences': b'12', 'train.documents': b'1'}
    files['train.segments'] = b'123'
    bucket.put({f'run/store/{name}': data for name, data in files.items()})
    bucket.requests.clear()
    with mirrored_workdir(WORKDIR, 'inspect') as folder:
        mirrored = {path.name: path.read_bytes() for path in pathlib.Path(folder, 'store').iterdir()}
    assert mirrored == files | {'train-00000.tokens': bytes(4), 'train.sentences': bytes(2), 'train.segments': bytes(3)}
    assert not [
        path
        for method, path in bucket.requests
        if method == 'GET' and path.endswith(('tokens', 'sentences', 'segments'))
    ]


def test_messages_name_the_bucket_instead_of_its_mirror(bucket, capsys):
    with mirrored_workdir(WORKDIR, 'inspect') as folder:
        print_checks(Console(width=200), 'the run', [Check('store', FAIL, f'no manifest in {folder}/store')])
        assert f'no manifest in {WORKDIR}/store\n' in capsys.readouterr().out
        text = "nothing in '{0}', {1}-2, {1}2, {1}.old or {0}."
        assert display_text(text.format(folder, folder)) == text.format(WORKDIR, folder)
