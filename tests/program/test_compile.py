"""run=compile: the real step, compiled by the TPU compiler without a TPU."""

import dataclasses
import json
import pathlib

import pytest
from running import Program

KEYS = {'fits', 'hbm_bytes_per_chip', 'parameters_bytes', 'optimizer_bytes', 'temporary_bytes', 'flops', 'collectives'}
KEYS |= {'estimated_step_s', 'mfu_estimate', 'modelled_share'}
NARROW = ('--config.model.width=128', '--config.model.mlp_dim=512', '--config.model.num_heads=2')
# The TPU compiler takes its time with large shapes: two phases of few short rows.
SHORT = (
    '--config.model.num_layers=2',
    '--config.vocab.size=1000',
    '--config.batch_size=32',
    '--config.phases[0].seq_len=32',
    '--config.phases[0].max_predictions=5',
    '--config.phases[1].seq_len=64',
    '--config.phases[1].max_predictions=10',
)


@pytest.fixture(autouse=True)
def libtpu():
    pytest.importorskip('libtpu', reason="needs the TPU compiler, of the extras 'tpu' and 'test'")


def _compile(program: Program, workdir: pathlib.Path, *changes: str, recipe: str = 'pretrain_base') -> dict:
    """compile.json, by a process: a crash of the TPU compiler must not take pytest along; without the CPU flags."""
    plain = {name: value for name, value in program.environment.items() if name != 'XLA_FLAGS'}
    program = dataclasses.replace(program, environment=plain)
    changes = (f'--workdir={workdir}', '--config.run=compile', *changes)
    program.spawn(*changes, recipe=f'configs/{recipe}.py', small=False)
    return json.loads((workdir / 'compile.json').read_text(encoding='utf-8'))


@pytest.mark.slow
def test_narrow_step_for_16_chips(program: Program, tmp_path: pathlib.Path):
    report = _compile(program, tmp_path, '--config.topology=v5e:4x4', *NARROW, *SHORT, '--config.mesh.fsdp=4')
    assert set(report) >= KEYS
    assert report['fits'] and report['chips'] == 16 and len(report['phases']) == 2
    assert 0 < report['parameters_bytes'] < report['hbm_bytes_per_chip'] < report['hbm_bytes_available']
    assert report['optimizer_bytes'] == pytest.approx(2 * report['parameters_bytes'], rel=0.01)
    assert report['collectives'].get('all-gather', 0) > 0  # the weights, which fsdp splits


def test_what_does_not_fit_is_said(program: Program, tmp_path: pathlib.Path):
    huge = ('--config.topology=v5e:2x2', '--config.batch_size=65536', *NARROW)
    report = _compile(program, tmp_path, *huge)
    assert report['fits'] is False
    assert report['hbm_bytes_per_chip'] > report['hbm_bytes_available']


@pytest.mark.slow
@pytest.mark.parametrize('recipe', ['pretrain_base', 'pretrain_large'])
def test_published_recipes_fit_16_chips(program: Program, tmp_path: pathlib.Path, recipe: str):
    report = _compile(program, tmp_path, '--config.topology=v5e:4x4', recipe=recipe)
    assert report['fits'], report
