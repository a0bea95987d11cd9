"""A whole run whose text and workdir are in a bucket that Google's protocol reaches."""

import dataclasses
import os
import pathlib
import signal
import time

import pytest
from running import RUN, Program, finished

HERE = 'gs://bucket/runs/one'
WEIGHTS = 'export/hf/model.safetensors'


@pytest.fixture
def machine(program: Program, google, tmp_path: pathlib.Path):
    """machine(name) -> the program on a machine with a cache of its own."""

    def made(name: str) -> Program:
        seen = {'BERTJAX_CACHE': str(tmp_path / name), 'STORAGE_EMULATOR_HOST': os.environ['STORAGE_EMULATOR_HOST']}
        return dataclasses.replace(program, environment=program.environment | seen)

    return made


@pytest.mark.slow
def test_a_run_goes_on_on_another_machine(machine, google, corpus, trained, tmp_path):
    """Stopped after a checkpoint, it ends elsewhere with the bits of a run on a disk that nothing stopped."""
    google.pipe_file('bucket/texts/documents.txt', corpus.read_bytes())
    ask = (f'--workdir={HERE}', '--config.corpus=gs://bucket/texts', *RUN)
    process = machine('first').start(*ask)
    deadline = time.monotonic() + 300
    while process.poll() is None and not list((tmp_path / 'first').glob('workdirs/*/one/checkpoints/4/seal.json')):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    finished(process, 75)

    left = list(google.find('bucket/runs/one'))
    step = max(int(path.split('/')[-2]) for path in left if path.endswith('/seal.json'))
    assert 4 <= step < 24 and not [path for path in left if path.endswith(('.lease.json', WEIGHTS))]
    assert f'continuing at step {step}' in machine('second').spawn(*ask).stdout
    assert google.cat_file(f'bucket/runs/one/{WEIGHTS}') == (trained / WEIGHTS).read_bytes()
    assert not google.exists('bucket/runs/one/.lease.json')
