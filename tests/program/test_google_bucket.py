"""Runs whose text and workdir are in a bucket of Google Cloud Storage."""

import os
import pathlib
import signal
import time

import pytest
from running import RUN, WEIGHTS, Program, assert_same_numbers, wait_for_exit

HERE = 'gs://bucket/runs/one'


@pytest.fixture
def machine(program: Program, google, tmp_path: pathlib.Path):
    """machine(name) -> the program with its own cache, as on a separate machine."""

    def make(name: str) -> Program:
        variables = {
            'BERTJAX_CACHE': str(tmp_path / name),
            'STORAGE_EMULATOR_HOST': os.environ['STORAGE_EMULATOR_HOST'],
        }
        return program.with_environment(variables)

    return make


@pytest.mark.slow
def test_a_stopped_run_is_finished_on_another_machine(machine, google, corpus, trained, tmp_path):
    """The weights have the same bits as those of an uninterrupted run with a local workdir."""
    google.pipe_file('bucket/texts/documents.txt', corpus.read_bytes())
    arguments = (f'--workdir={HERE}', '--config.corpus=gs://bucket/texts', *RUN)
    process = machine('first').start(*arguments)
    deadline = time.monotonic() + 300
    while process.poll() is None and not list((tmp_path / 'first').glob('workdirs/*/one/checkpoints/4/seal.json')):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    wait_for_exit(process, 75)

    left = list(google.find('bucket/runs/one'))
    step = max(int(path.split('/')[-2]) for path in left if path.endswith('/seal.json'))
    assert 4 <= step < 24 and not [path for path in left if path.endswith(('.lease.json', WEIGHTS))]
    assert f'continuing at step {step}' in machine('second').spawn(*arguments).stdout
    assert google.cat_file(f'bucket/runs/one/{WEIGHTS}') == (trained / WEIGHTS).read_bytes()
    assert not google.exists('bucket/runs/one/.lease.json')


@pytest.mark.slow
def test_two_machines_compute_one_run(machine, google, trained, tmp_path):
    """The results are those of one process with a local workdir."""
    caches = [tmp_path / name for name in ('first', 'second')]
    arguments = (f'--workdir={HERE}', *RUN, '--config.mesh.data=1', '--config.mesh.fsdp=2')
    for process in machine('none').start_together(2, *arguments, caches=caches):
        wait_for_exit(process)
    assert not google.exists('bucket/runs/one/.lease.json')
    names = ('ledger.jsonl', 'metrics.jsonl', WEIGHTS)
    assert_same_numbers({name: google.cat_file(f'bucket/runs/one/{name}') for name in names}, trained)
