"""Several real processes whose workdir is in a bucket, each as if it were on a machine of its own."""

import json
import os
import pathlib
import signal
import time

import numpy as np
import pytest
from running import GLUE, QUICK, RUN, SWEEP, Program, assert_one_line, finished, results, rows, wait_for_step
from safetensors.numpy import load, load_file

from bertjax.workdir.lock import TRIALS

HERE = 's3://bucket/runs/one'
WEIGHTS = 'export/hf/model.safetensors'
# Long enough to be asked to stop; the state lies on both processes.
LONG = (*RUN, '--config.steps=64', '--config.checkpoint_every=32', '--config.eval_every=32', '--config.mesh.data=1')


@pytest.fixture
def hosts(program: Program, bucket) -> Program:
    """The program, which finds the bucket."""
    return program.with_environment({name: os.environ[name] for name in os.environ if name.startswith('AWS_')})


def mirror(cache: pathlib.Path) -> pathlib.Path:
    """The folder of the first process."""
    (identity,) = cache.glob('workdirs/*/identity')
    return identity.parent / 'one'


def assert_as_alone(hosts: Program, there: dict[str, bytes], alone: pathlib.Path, asked: tuple[str, ...]) -> None:
    """What is published is what one process computes on a disk: the rows of text exactly, figures as they are split."""
    hosts.spawn(f'--workdir={alone}', *asked)
    there = {path.split('/runs/one/')[1]: data for path, data in there.items()}
    assert there['ledger.jsonl'] == (alone / 'ledger.jsonl').read_bytes()
    published = [json.loads(line) for line in there['metrics.jsonl'].splitlines()]
    losses = [[row['loss'] for row in some if row.get('loss')] for some in (published, rows(alone / 'metrics.jsonl'))]
    assert losses[0][-10:] == pytest.approx(losses[1][-10:], rel=1e-5)
    together, expected = load(there[WEIGHTS]), load_file(alone / WEIGHTS)
    assert together.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(together[name], values, atol=1e-5)


@pytest.mark.slow
def test_stopped_and_gone_on_with_by_another_machine(hosts: Program, bucket, tmp_path: pathlib.Path):
    """One of two is asked to stop; a machine that never saw the run joins. All is as one process has it."""
    first, second, third = (tmp_path / name for name in ('first', 'second', 'third'))
    asked = (f'--workdir={HERE}', *LONG, '--config.mesh.fsdp=2')
    processes = hosts.start_together(2, *asked, caches=[first, second])
    while not list(first.glob('workdirs/*/identity')):
        assert processes[0].poll() is None, finished(processes[0])
    wait_for_step(processes[0], mirror(first), 8)
    processes[1].send_signal(signal.SIGTERM)
    ends = [finished(process, status=75) for process in processes]
    stopped = rows(mirror(first) / 'ledger.jsonl')[-1]['step']
    assert 8 <= stopped < 64 and all(f'stopped at step {stopped} as asked' in end.stderr for end in ends)
    names = bucket.names('bucket/runs/one')
    assert f'checkpoints/{stopped}/seal.json' in names and '.lease.json' not in names

    begun, joined = (finished(process) for process in hosts.start_together(2, *asked, caches=[first, third]))
    assert f'continuing at step {stopped} of 64' in begun.stdout and 'continuing' not in joined.stdout
    assert_as_alone(hosts, bucket.contents('bucket/runs/one'), tmp_path / 'alone', LONG)

    assert 'all 64 steps are done' in hosts.with_environment({'BERTJAX_CACHE': str(second)}).spawn(*asked[:-1]).stdout


@pytest.mark.slow
def test_each_is_killed_in_turn(hosts: Program, bucket, tmp_path: pathlib.Path):
    """`kill -9` of the second, then of the first; each time two machines that never saw the run go on. All is as one
    process has it that nobody killed."""
    quick = hosts.with_startup(tmp_path / 'startup', QUICK)
    asked = (f'--workdir={HERE}', *LONG, '--config.checkpoint_every=12', '--config.eval_every=4')
    step = 0
    for killed in (1, 0):
        caches = [tmp_path / f'{name}{killed}' for name in ('first', 'second')]
        processes = quick.start_together(2, *asked, '--config.mesh.fsdp=2', caches=caches)
        bucket.wait_for_step('bucket/runs/one', step + 1, *processes)
        processes[killed].kill()
        began = time.monotonic()
        end = finished(processes[1 - killed], status=4)
        assert time.monotonic() - began < 90
        assert 'another process of this run is lost' in end.stderr.strip().splitlines()[-1]
        finished(processes[killed], status=-signal.SIGKILL)
        step = bucket.wait_for_step('bucket/runs/one', step + 1)
    caches = [tmp_path / name for name in ('first', 'second')]
    ends = [finished(process) for process in quick.start_together(2, *asked, '--config.mesh.fsdp=2', caches=caches)]
    assert f'continuing at step {step}' in ends[0].stdout
    assert_as_alone(hosts, bucket.contents('bucket/runs/one'), tmp_path / 'alone', asked[1:])


@pytest.mark.slow
def test_a_bucket_that_is_missing_ends_both(hosts: Program, tmp_path: pathlib.Path):
    caches = [tmp_path / name for name in ('first', 'second')]
    processes = hosts.start_together(2, '--workdir=s3://none/run', *RUN, caches=caches)
    first, second = (finished(process, status=2) for process in processes)
    assert 'found no bucket s3://none' in assert_one_line(first)
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 2)'


@pytest.mark.slow
def test_the_best_of_what_the_first_saved(hosts: Program, bucket, tmp_path: pathlib.Path, tune: tuple[str, ...]):
    """The second, which has saved nothing, has it to read."""
    caches = [tmp_path / name for name in ('first', 'second')]
    asked = (f'--workdir={HERE}', *tune, '--config.mesh.data=1', '--config.mesh.fsdp=2', '--config.use_checkpoint=best')
    for process in hosts.start_together(
        2, *asked, '--config.epochs=4', '--config.eval_every=12', caches=caches, **GLUE
    ):
        finished(process)
    (fetched,) = caches[1].glob('workdirs/*/process1/one/checkpoints')
    assert {path.name for path in fetched.iterdir()} == {'12', '24'}
    assert not list(caches[1].glob('workdirs/*/process1/one/export'))
    assert {'results.json', WEIGHTS} <= bucket.names('bucket/runs/one').keys()


@pytest.mark.slow
def test_a_sweep(hosts: Program, bucket, tmp_path: pathlib.Path, tune: tuple[str, ...], swept: pathlib.Path):
    """Each trial is saved, judged and gone again, in the bucket too."""
    caches = [tmp_path / name for name in ('first', 'second')]
    asked = (f'--workdir={HERE}', *tune, SWEEP[0], SWEEP[2], '--config.sweep.seeds=(1,)')
    for process in hosts.start_together(2, *asked, caches=caches, **GLUE):
        finished(process)
    trials = list(mirror(caches[0]).glob(f'{TRIALS}/*'))
    assert len(trials) == 2
    for trial in trials:
        assert results(trial)['splits'] == results(swept / TRIALS / trial.name)['splits']
    names = bucket.names('bucket/runs/one')
    assert 'sweep.json' in names and WEIGHTS in names and not [name for name in names if '.unfinished' in name]


@pytest.mark.slow
def test_another_run_takes_the_workdir(hosts: Program, bucket, tmp_path: pathlib.Path):
    """Both end, and nothing of the other's is touched from the moment that the first can know of it."""
    caches = [tmp_path / name for name in ('first', 'second')]
    quick = hosts.with_startup(tmp_path / 'startup', QUICK)
    endless = ('--config.mesh.fsdp=2', '--config.steps=100000', '--config.checkpoint_every=100')
    processes = quick.start_together(2, f'--workdir={HERE}', *LONG, *endless, caches=caches)
    bucket.wait_for_step('bucket/runs/one', 1, *processes)
    bucket.put({'runs/one/.lease.json': b'{"token": "of another"}'})
    time.sleep(2)  # of the lease every third of a second
    bucket.put({'runs/one/ledger.jsonl': b'of another', 'runs/one/config.json': b'of another'})
    taken = bucket.contents('bucket/runs/one')
    first, second = (finished(process, status=1) for process in processes)
    assert 'stopped: another process works in s3://bucket/runs/one now' in first.stderr.splitlines()[-1]
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 1)'
    assert bucket.contents('bucket/runs/one') == taken


@pytest.mark.slow
def test_what_cannot_be_published_ends_both(hosts: Program, bucket, tmp_path: pathlib.Path):
    """The mirror of the first has all of it."""
    caches = [tmp_path / name for name in ('first', 'second')]
    with bucket.failing('deny', 'PUT', 'export/', count=999):
        processes = hosts.start_together(2, f'--workdir={HERE}', *RUN, caches=caches)
        first, second = (finished(process, status=1) for process in processes)
    assert 'stopped: not all of the run is in s3://bucket/runs/one' in first.stderr.splitlines()[-1]
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 1)'
    assert (mirror(caches[0]) / WEIGHTS).exists()
