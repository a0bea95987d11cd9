"""Several real processes that compute one run: as one process does, whoever of them is killed or asked to stop."""

import dataclasses
import pathlib
import signal
import time

import numpy as np
import pytest
from running import GLUE, RUN, TUNE, Program, assert_one_line, copied, finished, results, rows, wait_for_step

import bertjax

NEVER = ('--config.eval_every=0', '--config.checkpoint_every=0')


@pytest.fixture(scope='module')
def one(once, program: Program) -> pathlib.Path:
    """The workdir of a run of 24 steps in one process with two devices."""
    two_devices = program.environment['XLA_FLAGS'] + ' --xla_force_host_platform_device_count=2'
    wide = dataclasses.replace(program, environment=program.environment | {'XLA_FLAGS': two_devices})
    return once('one_of_two', lambda folder: wide.spawn(f'--workdir={folder}', *RUN))


@pytest.fixture(scope='module')
def two(once, program: Program) -> pathlib.Path:
    """... and of the same run in two processes; what they print."""

    def fill(folder: pathlib.Path) -> None:
        ends = [finished(process) for process in program.start_together(2, f'--workdir={folder}', *RUN)]
        for number, end in enumerate(ends):
            (folder / f'{number}.out').write_text(end.stdout)

    return once('two_processes', fill)


def _losses(workdir: pathlib.Path) -> list[float]:
    return [row['loss'] for row in rows(workdir / 'metrics.jsonl') if row.get('loss') is not None]


@pytest.mark.slow
def test_two_processes_train_as_one_does(one: pathlib.Path, two: pathlib.Path):
    assert _losses(two) == pytest.approx(_losses(one), rel=1e-5)
    assert (two / 'ledger.jsonl').read_bytes() == (one / 'ledger.jsonl').read_bytes()
    assert (two / 'store' / 'manifest.json').read_bytes() == (one / 'store' / 'manifest.json').read_bytes()
    text = ['the river runs']
    assert np.array_equal(*(bertjax.load(two / 'export' / name).encode(text) for name in ('hf', 'orbax')))
    # The first one prints, the other one does not.
    assert 'heldout at step 24' in (two / '0.out').read_text()
    assert not [line for line in (two / '1.out').read_text().splitlines() if line and not line.startswith('[Gloo]')]


@pytest.mark.slow
def test_one_is_killed_and_fewer_go_on(program: Program, tmp_path: pathlib.Path, one: pathlib.Path):
    processes = program.start_together(2, f'--workdir={tmp_path}', *RUN)
    wait_for_step(processes[0], tmp_path, 10)
    processes[1].kill()
    killed = time.monotonic()
    end = finished(processes[0], status=4)
    assert time.monotonic() - killed < 60
    assert 'another process of this run is lost' in end.stderr.strip().splitlines()[-1]
    finished(processes[1], status=-signal.SIGKILL)
    # Another number of processes and another mesh: the same examples.
    program.spawn(f'--workdir={tmp_path}', *RUN)
    assert (tmp_path / 'ledger.jsonl').read_bytes() == (one / 'ledger.jsonl').read_bytes()
    assert _losses(tmp_path)[-1] == pytest.approx(_losses(one)[-1], rel=1e-5)


@pytest.mark.slow
def test_all_stop_where_one_is_asked_to(program: Program, tmp_path: pathlib.Path, trained: pathlib.Path):
    """One process has begun the run, two go on with it, and the one that does not write is asked to stop."""
    work = copied(trained, tmp_path / 'run')
    more = (*RUN, '--config.steps=400', '--config.batch_size=8', *NEVER)
    processes = program.start_together(2, f'--workdir={work}', *more)
    wait_for_step(processes[0], work, 30)
    processes[1].send_signal(signal.SIGTERM)
    ends = [finished(process, status=75) for process in processes]
    last = rows(work / 'ledger.jsonl')[-1]['step']
    assert 30 <= last < 400 and (work / 'checkpoints' / str(last) / 'seal.json').exists()
    assert all(f'stopped at step {last} as asked' in end.stderr for end in ends)
    assert [row['first'] for row in rows(work / 'ledger.jsonl')] == list(range(0, 8 * last, 8))


@pytest.mark.slow
def test_two_processes_tune_as_one_does(
    program: Program, tmp_path: pathlib.Path, trained: pathlib.Path, rte: pathlib.Path
):
    given = (f'--config.init={trained}', f'--config.data={rte}', *TUNE, '--config.epochs=2')
    for process in program.start_together(2, f'--workdir={tmp_path / "two"}', *given, **GLUE):
        finished(process)
    program.spawn(f'--workdir={tmp_path / "one"}', *given, **GLUE)
    assert _losses(tmp_path / 'two') == pytest.approx(_losses(tmp_path / 'one'), rel=1e-4)
    assert results(tmp_path / 'two')['splits'] == results(tmp_path / 'one')['splits']


@pytest.mark.slow
def test_a_mistake_ends_all_of_them_alike(program: Program, tmp_path: pathlib.Path):
    empty = tmp_path / 'empty.txt'
    empty.write_text('')
    processes = program.start_together(2, f'--workdir={tmp_path / "run"}', f'--config.corpus={empty}')
    began = time.monotonic()
    first, second = (finished(process, status=2) for process in processes)
    assert time.monotonic() - began < 120
    assert str(empty) in assert_one_line(first)
    assert 'stopped with the first process' in second.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (('--num_processes=2',), '--num_processes: found no --coordinator_address and no --process_id'),
        (('--coordinator_address=a:1', '--num_processes=2', '--process_id=2'), '--process_id: found 2'),
        (('--coordinator_address=a', '--num_processes=2', '--process_id=1'), '--coordinator_address: found a'),
        (
            ('--coordinator_address=a:1', '--num_processes=2', '--process_id=1', '--config.run=corpus'),
            '--config.run=corpus: found several processes',
        ),
    ],
)
def test_what_the_command_line_says_of_the_processes(
    program: Program, tmp_path: pathlib.Path, flags: tuple[str, ...], words: str
):
    assert words in program.error(f'--workdir={tmp_path / "run"}', *flags)
    assert not (tmp_path / 'run').exists()
