"""Runs with text, stores and workdirs in the bucket of a local S3 server, and failures of the bucket."""

import os
import pathlib
import signal
import time

import pytest
from running import QUICK, RUN12, SLOW_STEPS, WEIGHTS, bucket_variables, wait_for_exit

from bertjax.remote import lease
from bertjax.workdir import mirror

HERE = 's3://bucket/runs/one'
# Startup code for a run that publishes only at its end, even on a slow machine.
AT_END = """
    from bertjax.workdir import mirror

    mirror.PUBLISH_EVERY = 3600.0
"""


@pytest.fixture
def texts(bucket, corpus: pathlib.Path) -> str:
    bucket.put({'texts/documents.txt': corpus.read_bytes(), 'texts/_about.md': b'not of the text'})
    return '--config.corpus=s3://bucket/texts'


def another_machine(monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path) -> None:
    """Replaces the cache with an empty one, as on a machine that never saw the bucket."""
    monkeypatch.setenv('BERTJAX_CACHE', str(cache))


def test_mistakes_with_buckets_are_one_line_errors(program, bucket):
    assert "the address 'http://a/b'" in program.error('--workdir=http://a/b')
    assert 'found no bucket s3://none' in program.error('--workdir=s3://none/run')
    with bucket.failing('deny', 'GET', '', count=99):
        assert 'access denied' in program.error(f'--workdir={HERE}')
    assert not bucket.names('bucket')


@pytest.mark.slow
def test_a_run_that_loses_access_can_be_finished_elsewhere(program, bucket, texts, short_run, monkeypatch, tmp_path):
    """It stops and names the bucket; partial checkpoints do not count; another machine gets the same bits."""
    monkeypatch.setattr(mirror, 'PUBLISH_EVERY', 0.1)
    with bucket.failing('deny', 'PUT', r'checkpoints/(8|12)/(seal|state/manifest)', count=999):
        stopped = program.run(f'--workdir={HERE}', texts, *RUN12, status=1)
    assert 'stopped: not all of the run is in s3://bucket/runs/one' in stopped.stderr, stopped.stderr
    names = bucket.names('bucket/runs/one')
    assert any(name.startswith('checkpoints/') for name in names) and 'config.json' in names
    assert not [name for name in names if name.endswith('seal.json') and name != 'checkpoints/4/seal.json']
    assert '.lease.json' not in names
    another_machine(monkeypatch, tmp_path / 'other')
    done = program.run(f'--workdir={HERE}', texts, *RUN12)
    assert 'published to s3://bucket/runs/one' in done.stdout
    assert '--workdir=s3://bucket/runs/one --config.run=report' in done.stdout
    assert bucket.system.cat_file(f'bucket/runs/one/{WEIGHTS}') == (short_run / WEIGHTS).read_bytes()
    steps = {name.split('/')[1] for name in bucket.names('bucket/runs/one') if name.startswith('checkpoints/')}
    assert steps == {'8', '12'}  # old checkpoints are removed in the bucket too
    # A third machine can show the run and start another run from it.
    another_machine(monkeypatch, tmp_path / 'third')
    assert 'differs from the run' in program.run(f'--workdir={HERE}', '--config.run=show').stdout
    program.run(f'--workdir={HERE}', '--config.run=plot')
    assert 'learning_curve.png' in bucket.names('bucket/runs/one')
    warm_start = (f'--config.data={HERE}/store', f'--config.tokenizer={HERE}/tokenizer', f'--config.init={HERE}')
    program.run('--workdir=s3://bucket/runs/two', *warm_start, '--config.steps=2', '--config.eval_every=0')
    assert WEIGHTS in bucket.names('bucket/runs/two')


@pytest.mark.slow
def test_a_run_that_its_bucket_stopped_reports_the_reason(program, bucket, texts, monkeypatch):
    """The message does not change if writing is allowed again at the end: no signal stopped the run."""
    monkeypatch.setattr(mirror, 'PUBLISH_EVERY', 0.1)
    with bucket.failing('deny', 'PUT', 'checkpoints/4/'):
        stopped = program.run(f'--workdir={HERE}', texts, *RUN12, '--config.steps=400', status=1)
    assert stopped.stderr.splitlines()[-1].startswith('stopped: not all of the run is in s3://bucket/runs/one')
    assert 'access denied' in stopped.stderr.splitlines()[-1]


@pytest.mark.slow
def test_a_run_is_killed_while_it_publishes(program, bucket, texts, short_run, monkeypatch, tmp_path):
    """`kill -9` comes between two writes: another machine waits for the lease and ignores partial results."""
    process = (
        program.with_environment(bucket_variables())
        .with_startup(tmp_path / 'startup', AT_END)
        .start(f'--workdir={HERE}', texts, *RUN12)
    )

    def kill(method: str, path: str) -> None:
        if method == 'PUT' and path.endswith('summary.json'):
            os.kill(process.pid, signal.SIGKILL)

    with monkeypatch.context() as patched:
        patched.setattr(bucket, 'fault', kill)
        assert wait_for_exit(process, None).returncode == -signal.SIGKILL
    names = bucket.names('bucket/runs/one')
    assert '.lease.json' in names and 'checkpoints/12/state/manifest.ocdbt' in names
    assert not [name for name in names if name.endswith(('seal.json', 'export/hf/config.json', 'manifest.json'))]
    another_machine(monkeypatch, tmp_path / 'other')
    monkeypatch.setattr(lease, 'EXPIRES_AFTER', 0.5)
    done = program.run(f'--workdir={HERE}', texts, *RUN12)
    assert 's3://bucket/runs/one was left by' in done.stdout and 'continuing at step' not in done.stdout
    assert bucket.system.cat_file(f'bucket/runs/one/{WEIGHTS}') == (short_run / WEIGHTS).read_bytes()


@pytest.mark.slow
def test_a_suspended_run_does_not_touch_the_bucket_of_its_successor(program, bucket, texts, tmp_path):
    """While the process is suspended, another run takes over; it wakes up and changes nothing."""
    code = QUICK + '    mirror.PUBLISH_EVERY = 2.0  # so that no request is in progress for a long time\n' + SLOW_STEPS
    quick = program.with_environment(bucket_variables()).with_startup(tmp_path / 'startup', code)
    endless = ('--config.steps=100000', '--config.checkpoint_every=10', '--config.eval_every=0')
    process = quick.start(f'--workdir={HERE}', texts, *RUN12, *endless)
    try:
        bucket.wait_for_step('bucket/runs/one', 1, process)
        count = -1
        while count != len(bucket.requests):  # wait until no request is in progress
            count = len(bucket.requests)
            time.sleep(0.1)
        process.send_signal(signal.SIGSTOP)
        bucket.put({'runs/one/.lease.json': b'{"token": "of another"}', 'runs/one/ledger.jsonl': b'of another'})
        before = bucket.contents('bucket/runs/one')
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        end = wait_for_exit(process, status=1)
    finally:
        process.kill()
    assert 'stopped: another process works in s3://bucket/runs/one now' in end.stderr.splitlines()[-1]
    assert bucket.contents('bucket/runs/one') == before


@pytest.mark.slow
def test_the_doctor_changes_nothing_in_the_bucket(program, bucket, texts):
    """It takes no lease, names the missing permission and leaves no object."""
    before = bucket.names('bucket')
    with bucket.failing('deny', 'PUT', '', count=99) as denied:
        result = program.run(f'--workdir={HERE}', texts, *RUN12, '--config.run=doctor', status=2)
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert [line.split()[0] for line in lines if line.split()[1:2] == ['write']] == ['FAIL']
    assert 'give these credentials s3:PutObject' in result.stdout.replace('\n', ' ')
    assert not [path for path in denied if 'lease' in path] and bucket.names('bucket') == before
