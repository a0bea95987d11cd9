"""The hub through the whole program: trained and pushed, pulled by name in another process, and used."""

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


def beside(program: Program, hub: Hub, home: pathlib.Path, token: str = '', **more: str) -> Program:
    """The program in processes that know this hub, with a cache of their own; without more, nobody is logged in."""
    own = {'HF_ENDPOINT': hub.address, 'HF_HOME': str(home), 'HF_HUB_DISABLE_PROGRESS_BARS': '1', **more}
    others = {name: value for name, value in program.environment.items() if name != 'HF_TOKEN'}
    return dataclasses.replace(program, environment=others | own | ({'HF_TOKEN': token} if token else {}))


def refused(program: Program, *changes: str, **options) -> str:
    return assert_one_line(program.spawn(*changes, status=2, **options))


@pytest.mark.slow
def test_what_is_pushed_at_the_end_is_pulled_by_name(program: Program, hub: Hub, tmp_path: pathlib.Path):
    ours, workdir = beside(program, hub, tmp_path / 'ours', TOKEN), tmp_path / 'one'
    card = ('--config.card.license=apache-2.0', '--config.card.language=en')
    train = (f'--workdir={workdir}', *SHORT, *card, PUSH)
    # A hub that is full says so at the end of the training, of which nothing is lost.
    hub.full = True
    ended = ours.spawn(*train, status=2)
    line = assert_one_line(ended)
    assert 'config.push_to: found us/tiny, and a failed upload (' in line
    assert f'the export is complete in {workdir / "export" / "hf"}' in line and '--config.run=export' in line
    assert (workdir / 'summary.json').exists() and 'workdir' in ended.stdout
    hub.full = False
    assert 'pushed to ' in ours.spawn(*train, '--config.run=export').stdout
    files = {path.name: path.read_bytes() for path in (workdir / 'export' / 'hf').iterdir()}
    assert hub.files['us/tiny'] == files
    shown = files['README.md'].decode()
    assert 'license: apache-2.0' in shown and 'us/tiny' in shown and '| steps | 4 |' in shown

    theirs = beside(program, hub, tmp_path / 'theirs')  # an empty cache, and nobody logged in
    fill = ('--config.init=us/tiny', '--config.fill.text=the [MASK] runs')
    plain = {'recipe': 'configs/fill.py', 'small': False}
    assert 'us/tiny: pulled from the hub' in theirs.spawn(f'--workdir={tmp_path / "fill"}', *fill, **plain).stdout
    ask = 'import bertjax, json; print(json.dumps(bertjax.load("us/tiny").fill("the [MASK] runs")))'
    call = [sys.executable, '-c', ask]
    asked = subprocess.run(call, env=theirs.environment, cwd=program.repository, capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    filled = [answer['token'] for answer in json.loads(asked.stdout.splitlines()[-1])]
    assert filled == [answer['token'] for answer in bertjax.load(workdir).fill('the [MASK] runs')]
    trained = theirs.spawn(f'--workdir={tmp_path / "two"}', *SHORT, '--config.init=us/tiny').stdout
    assert 'starting from ' in trained and 'us--tiny' in trained
    # What was pulled is there without the network.
    offline = beside(program, hub, tmp_path / 'theirs', HF_HUB_OFFLINE='1')
    sizes = [size for size in SMALL if '.vocab.' not in size]
    distill = (f'--config.corpus={program.corpus}', '--config.distill.teacher=us/tiny', *sizes, *SHORT)
    heads = (
        '--config.model.num_layers=1',
        '--config.model.num_heads=2',
        '--config.epochs=0',
        '--config.grad_accum_steps=1',
    )
    told = offline.spawn(f'--workdir={tmp_path / "student"}', *distill, *heads, **TEXT).stdout
    assert 'us/tiny: using the cached model, because HF_HUB_OFFLINE is set' in told
    assert len(rows(tmp_path / 'student' / 'ledger.jsonl')) == 4


@pytest.mark.slow
def test_without_the_network_nothing_begins(program: Program, hub: Hub, tmp_path: pathlib.Path):
    offline = beside(program, hub, tmp_path / 'home', TOKEN, HF_HUB_OFFLINE='1')
    line = refused(offline, f'--workdir={tmp_path / "one"}', *SHORT, PUSH)
    assert 'config.push_to: found us/tiny, and HF_HUB_OFFLINE is set, expected the network' in line
    nobody = beside(program, hub, tmp_path / 'home')
    line = refused(nobody, f'--workdir={tmp_path / "one"}', *SHORT, PUSH)
    assert 'us/tiny, and no token of the hub' in line and 'hf auth login' in line
    gone = beside(program, hub, tmp_path / 'home', HF_ENDPOINT='http://127.0.0.1:9')
    line = refused(gone, f'--workdir={tmp_path / "one"}', *SHORT, '--config.init=us/other')
    assert 'config.init: found us/other, which is not a local path, and on the hub is not available' in line
    line = refused(gone, f'--workdir={tmp_path / "one"}', '--config.distill.teacher=us/other', **TEXT)
    assert 'config.distill.teacher: found us/other' in line
    assert not os.path.exists(tmp_path / 'one' / 'checkpoints')
