"""Several processes with a workdir in a bucket, each with its own cache, as on separate machines."""

import pathlib
import signal
import time

import pytest
from running import (
    GLUE,
    ONE_LENGTH,
    QUICK,
    RUN,
    SLOW_STEPS,
    SWEEP,
    WEIGHTS,
    Program,
    assert_one_line,
    assert_same_numbers,
    bucket_variables,
    results,
    rows,
    wait_for_exit,
)

from bertjax.workdir.lock import TRIALS

HERE = 's3://bucket/runs/one'
STEPS = 40  # so many that the run with SLOW_STEPS can be stopped three times
LONG = (*RUN, f'--config.steps={STEPS}', '--config.eval_every=20', '--config.log_every=1')


@pytest.fixture
def hosts(program: Program, bucket) -> Program:
    """The program with the environment variables of the bucket."""
    program.template.load('s3fs')
    return program.with_environment(bucket_variables())


def mirror(cache: pathlib.Path) -> pathlib.Path:
    """Returns the mirrored workdir of the first process."""
    (identity,) = cache.glob('workdirs/*/identity')
    return identity.parent / 'one'


def assert_as_alone(hosts: Program, objects: dict[str, bytes], alone: pathlib.Path, flags: tuple[str, ...]) -> None:
    """Checks that one process with a local workdir uses the same text and computes the same numbers, up to rounding."""
    hosts.spawn(f'--workdir={alone}', *flags)
    assert_same_numbers({path.split('/runs/one/')[1]: data for path, data in objects.items()}, alone)


@pytest.mark.slow
def test_machines_are_replaced_after_kills_and_a_stop(hosts: Program, bucket, tmp_path: pathlib.Path):
    """`kill -9` ends the second, then the first process, and two new machines continue; then the run is asked to stop.

    One of the stopped machines continues with another new one.
    """
    quick = hosts.with_startup(tmp_path / 'startup', QUICK + SLOW_STEPS)
    arguments = (f'--workdir={HERE}', *LONG, '--config.mesh.data=1', '--config.mesh.fsdp=2')
    step = 0
    for killed in (1, 0):
        caches = [tmp_path / f'{name}{killed}' for name in ('first', 'second')]
        processes = quick.start_together(2, *arguments, caches=caches)
        bucket.wait_for_step('bucket/runs/one', step + 1, *processes)
        processes[killed].kill()
        start = time.monotonic()
        end = wait_for_exit(processes[1 - killed], status=4)
        assert time.monotonic() - start < 90
        assert 'another process of this run is lost' in end.stderr.strip().splitlines()[-1]
        wait_for_exit(processes[killed], status=-signal.SIGKILL)
        step = bucket.wait_for_step('bucket/runs/one', step + 1)

    first, second, third = (tmp_path / name for name in ('first', 'second', 'third'))
    processes = quick.start_together(2, *arguments, caches=[first, second])
    bucket.wait_for_step('bucket/runs/one', step + 1, *processes)
    processes[1].send_signal(signal.SIGTERM)
    ended = [wait_for_exit(process, status=75) for process in processes]
    assert f'continuing at step {step} of' in ended[0].stdout
    stopped = rows(mirror(first) / 'ledger.jsonl')[-1]['step']
    assert step < stopped < STEPS and all(f'stopped at step {stopped} as asked' in end.stderr for end in ended)
    names = bucket.names('bucket/runs/one')
    assert f'checkpoints/{stopped}/seal.json' in names and '.lease.json' not in names

    resumed, joined = (wait_for_exit(process) for process in hosts.start_together(2, *arguments, caches=[first, third]))
    assert f'continuing at step {stopped} of {STEPS}' in resumed.stdout and 'continuing' not in joined.stdout
    assert_as_alone(hosts, bucket.contents('bucket/runs/one'), tmp_path / 'alone', LONG)
    alone = hosts.with_environment({'BERTJAX_CACHE': str(second)}).spawn(*arguments[:-1])
    assert f'all {STEPS} steps are done' in alone.stdout


@pytest.mark.slow
def test_a_missing_bucket_ends_both_processes(hosts: Program, tmp_path: pathlib.Path):
    caches = [tmp_path / name for name in ('first', 'second')]
    processes = hosts.start_together(2, '--workdir=s3://none/run', *RUN, caches=caches)
    first, second = (wait_for_exit(process, status=2) for process in processes)
    assert 'found no bucket s3://none' in assert_one_line(first)
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 2)'


@pytest.mark.slow
def test_the_second_process_reads_the_best_checkpoint(
    hosts: Program, bucket, tmp_path: pathlib.Path, tune: tuple[str, ...]
):
    """Only the first process saves; the second one fetches the checkpoints."""
    caches = [tmp_path / name for name in ('first', 'second')]
    mesh = ('--config.mesh.data=1', '--config.mesh.fsdp=2')
    steps = ('--config.epochs=2', '--config.eval_every=6', '--config.checkpoint_every=6')
    arguments = (f'--workdir={HERE}', *tune, ONE_LENGTH, *mesh, *steps, '--config.use_checkpoint=best')
    for process in hosts.start_together(2, *arguments, caches=caches, **GLUE):
        wait_for_exit(process)
    (fetched,) = caches[1].glob('workdirs/*/process1/one/checkpoints')
    assert {path.name for path in fetched.iterdir()} == {'6', '12'}
    assert not list(caches[1].glob('workdirs/*/process1/one/export'))
    assert {'results.json', WEIGHTS} <= bucket.names('bucket/runs/one').keys()


@pytest.mark.slow
def test_a_sweep_publishes_its_best_model(hosts: Program, bucket, tmp_path: pathlib.Path, tune: tuple[str, ...]):
    """The bucket has the best export and the summary, and no unfinished files of the trials."""
    caches, alone = [tmp_path / name for name in ('first', 'second')], tmp_path / 'alone'
    arguments = (*tune, '--config.epochs=2', SWEEP[0], SWEEP[2], '--config.sweep.seeds=(1,)')
    for process in hosts.start_together(2, f'--workdir={HERE}', *arguments, caches=caches, **GLUE):
        wait_for_exit(process)
    hosts.spawn(f'--workdir={alone}', *arguments, **GLUE)
    trials = list(mirror(caches[0]).glob(f'{TRIALS}/*'))
    assert len(trials) == 2
    for trial in trials:
        assert results(trial)['splits'] == results(alone / TRIALS / trial.name)['splits']
    names = bucket.names('bucket/runs/one')
    assert 'sweep.json' in names and WEIGHTS in names and not [name for name in names if '.unfinished' in name]


@pytest.mark.slow
def test_both_processes_end_when_another_run_takes_the_workdir(hosts: Program, bucket, tmp_path: pathlib.Path):
    """After the first process can see the new lease, nothing in the bucket changes."""
    caches = [tmp_path / name for name in ('first', 'second')]
    quick = hosts.with_startup(tmp_path / 'startup', QUICK + SLOW_STEPS)
    endless = ('--config.steps=100000', '--config.checkpoint_every=10', '--config.eval_every=0')
    mesh = ('--config.mesh.data=1', '--config.mesh.fsdp=2')
    processes = quick.start_together(2, f'--workdir={HERE}', *RUN, *mesh, *endless, caches=caches)
    bucket.wait_for_step('bucket/runs/one', 1, *processes)
    bucket.put({'runs/one/.lease.json': b'{"token": "of another"}'})
    time.sleep(2)  # the lease is renewed every 0.3 s
    bucket.put({'runs/one/ledger.jsonl': b'of another', 'runs/one/config.json': b'of another'})
    taken = bucket.contents('bucket/runs/one')
    first, second = (wait_for_exit(process, status=1) for process in processes)
    assert 'stopped: another process works in s3://bucket/runs/one now' in first.stderr.splitlines()[-1]
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 1)'
    assert bucket.contents('bucket/runs/one') == taken


@pytest.mark.slow
def test_a_failed_upload_ends_both_processes(hosts: Program, bucket, tmp_path: pathlib.Path):
    """The mirror of the first process has all files."""
    caches = [tmp_path / name for name in ('first', 'second')]
    with bucket.failing('deny', 'PUT', 'export/', count=999):
        processes = hosts.start_together(2, f'--workdir={HERE}', *RUN, '--config.steps=8', caches=caches)
        first, second = (wait_for_exit(process, status=1) for process in processes)
    assert 'stopped: not all of the run is in s3://bucket/runs/one' in first.stderr.splitlines()[-1]
    assert second.stderr.strip().splitlines()[-1] == 'stopped: see the message of the first process (status 1)'
    assert (mirror(caches[0]) / WEIGHTS).exists()
