"""A model is trained and pushed to the hub, then pulled by name and used in another process."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hub_stand_in import TOKEN, Hub, serving
from running import SMALL, Program, assert_one_line, rows

import bertjax

SHORT = ('--config.steps=4', '--config.eval_every=0', '--config.checkpoint_every=4')
PUSH = '--config.push_to=us/tiny'
TEXT = {'recipe': 'configs/distilbert.py', 'small': False}


@pytest.fixture(scope='module')
def hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


def with_hub(program: Program, hub: Hub, home: pathlib.Path, token: str = '', **more: str) -> Program:
    """Returns a program that uses this hub and a separate cache; without a token, no user is logged in."""
    variables = {'HF_ENDPOINT': hub.address, 'HF_HOME': str(home), 'HF_HUB_DISABLE_PROGRESS_BARS': '1', **more}
    others = {name: value for name, value in program.environment.items() if name != 'HF_TOKEN'}
    return dataclasses.replace(program, environment=others | variables | ({'HF_TOKEN': token} if token else {}))


@pytest.mark.slow
def test_a_pushed_model_is_pulled_by_name(program: Program, hub: Hub, tmp_path: pathlib.Path):
    pusher, workdir = with_hub(program, hub, tmp_path / 'ours', TOKEN), tmp_path / 'one'
    card = ('--config.card.license=apache-2.0', '--config.card.language=en')
    train = (f'--workdir={workdir}', *SHORT, *card, PUSH)
    # If the hub is full, the training ends with an error, but nothing is lost.
    hub.full = True
    ended = pusher.spawn(*train, status=2)
    line = assert_one_line(ended)
    assert 'config.push_to: found us/tiny, and a failed upload (' in line
    assert f'the export is complete in {workdir / "export" / "hf"}' in line and '--config.run=export' in line
    assert (workdir / 'summary.json').exists() and 'workdir' in ended.stdout
    hub.full = False
    assert 'pushed to ' in pusher.spawn(*train, '--config.run=export').stdout
    files = {path.name: path.read_bytes() for path in (workdir / 'export' / 'hf').iterdir()}
    assert hub.files['us/tiny'] == files
    card_text = files['README.md'].decode()
    assert 'license: apache-2.0' in card_text and 'us/tiny' in card_text and '| steps | 4 |' in card_text

    puller = with_hub(program, hub, tmp_path / 'theirs')  # an empty cache and no token
    code = 'import bertjax, json; print(json.dumps(bertjax.load("us/tiny").fill("the [MASK] runs")))'
    call = [sys.executable, '-c', code]
    result = subprocess.run(call, env=puller.environment, cwd=program.repository, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert 'us/tiny: pulled from the hub' in result.stdout
    filled = [answer['token'] for answer in json.loads(result.stdout.splitlines()[-1])]
    assert filled == [answer['token'] for answer in bertjax.load(workdir).fill('the [MASK] runs')]
    trained = puller.spawn(f'--workdir={tmp_path / "two"}', *SHORT, '--config.init=us/tiny').stdout
    assert 'starting from ' in trained and 'us--tiny' in trained
    # The cached model works without the network.
    offline = with_hub(program, hub, tmp_path / 'theirs', HF_HUB_OFFLINE='1')
    sizes = [size for size in SMALL if '.vocab.' not in size]
    distill = (f'--config.corpus={program.corpus}', '--config.distill.teacher=us/tiny', *sizes, *SHORT)
    heads = (
        '--config.model.num_layers=1',
        '--config.model.num_heads=2',
        '--config.epochs=0',
        '--config.grad_accum_steps=1',
    )
    out = offline.spawn(f'--workdir={tmp_path / "student"}', *distill, *heads, **TEXT).stdout
    assert 'us/tiny: using the cached model, because HF_HUB_OFFLINE is set' in out
    assert len(rows(tmp_path / 'student' / 'ledger.jsonl')) == 4


@pytest.mark.slow
def test_a_run_does_not_start_without_the_network(program: Program, hub: Hub, tmp_path: pathlib.Path):
    """tests/convert/test_hub.py has the other errors of the hub."""
    offline = with_hub(program, hub, tmp_path / 'home', TOKEN, HF_HUB_OFFLINE='1')
    line = assert_one_line(offline.spawn(f'--workdir={tmp_path / "one"}', *SHORT, PUSH, status=2))
    assert 'config.push_to: found us/tiny, and HF_HUB_OFFLINE is set, expected a connection to the hub' in line
    assert not os.path.exists(tmp_path / 'one' / 'checkpoints')
