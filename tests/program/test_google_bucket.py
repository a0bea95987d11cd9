"""A whole run whose text and workdir are in a bucket that Google's protocol reaches."""

import json
import os
import pathlib
import signal
import time

import numpy as np
import pytest
from running import RUN, Program, finished, rows
from safetensors.numpy import load, load_file

HERE = 'gs://bucket/runs/one'
WEIGHTS = 'export/hf/model.safetensors'


@pytest.fixture
def machine(program: Program, google, tmp_path: pathlib.Path):
    """machine(name) -> the program on a machine with a cache of its own."""

    def made(name: str) -> Program:
        seen = {'BERTJAX_CACHE': str(tmp_path / name), 'STORAGE_EMULATOR_HOST': os.environ['STORAGE_EMULATOR_HOST']}
        return program.with_environment(seen)

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


@pytest.mark.slow
def test_two_machines(machine, google, trained, tmp_path):
    """Two processes, a machine each; two others find all done. What is published is what one process has on a disk."""
    for number in (0, 1):
        caches = [tmp_path / f'{name}{number}' for name in ('first', 'second')]
        asked = (f'--workdir={HERE}', *RUN, '--config.mesh.data=1', '--config.mesh.fsdp=2')
        ends = [finished(process) for process in machine('none').start_together(2, *asked, caches=caches)]
    assert 'all 24 steps are done' in ends[0].stdout and not google.exists('bucket/runs/one/.lease.json')
    assert google.cat_file('bucket/runs/one/ledger.jsonl') == (trained / 'ledger.jsonl').read_bytes()
    published = map(json.loads, google.cat_file('bucket/runs/one/metrics.jsonl').splitlines())
    losses = [[row['loss'] for row in some if row.get('loss')] for some in (published, rows(trained / 'metrics.jsonl'))]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    together, expected = load(google.cat_file(f'bucket/runs/one/{WEIGHTS}')), load_file(trained / WEIGHTS)
    assert together.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(together[name], values, atol=1e-5)
