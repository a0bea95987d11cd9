"""What the doctor says of a bucket: each right in a line, with what to do where it is missing."""

import pytest

from bertjax.doctor.bucket import lease, rights
from bertjax.doctor.check import FAIL, OK

HERE = 's3://bucket/run'


def test_all_that_a_run_needs(bucket):
    checks = list(rights(HERE))
    assert [(check.about, check.status) for check in checks] == [
        (right, OK) for right in ('list', 'read', 'write', 'delete')
    ]
    assert not bucket.names('bucket')


@pytest.mark.parametrize(
    ('method', 'path', 'right'),
    [('GET', r'bucket/?$', 'list'), ('GET', 'doctor', 'read'), ('PUT', '', 'write'), ('DELETE', '', 'delete')],
)
def test_what_is_denied(bucket, method: str, path: str, right: str):
    with bucket.failing('deny', method, path, count=99):
        checks = {check.about: check for check in rights(HERE)}
    assert [about for about, check in checks.items() if check.status == FAIL] == [right]
    assert 'access denied' in checks[right].message and 's3:' in checks[right].fix
    assert ('stays there' in checks[right].message) == (right == 'delete')


def test_no_bucket_and_who_is_at_work(bucket):
    assert [(check.about, check.status) for check in rights('s3://none/run')] == [('bucket', FAIL)]
    assert not list(lease(HERE))
    bucket.put({'run/.lease.json': b'{"host": "one", "pid": 7}'})
    (check,) = lease(HERE)
    assert 'one, process 7' in check.message
