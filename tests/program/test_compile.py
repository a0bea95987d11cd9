"""run=compile: the TPU compiler compiles the training step without a TPU; a search finds settings that fit."""

import dataclasses
import json
import pathlib
import re
from unittest import mock

import jax
import pytest
from running import Program, assert_one_line

from bertjax.cost import memory_search
from bertjax.parallel.mesh import row_shards
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.training.setup import Setup

KEYS = {'fits', 'hbm_bytes_per_chip', 'parameters_bytes', 'optimizer_bytes', 'temporary_bytes', 'flops', 'collectives'}
KEYS |= {'grad_accum_steps', 'estimated_step_s', 'mfu_estimate', 'modelled_share'}
KEYS |= {'estimate', 'groups', 'sent'}
NARROW = ('--config.model.width=128', '--config.model.mlp_dim=512', '--config.model.num_heads=2')
# A phase with few short rows, because the TPU compiler is slow with large shapes.
SHORT = (
    '--config.model.num_layers=2',
    '--config.vocab.size=1000',
    '--config.batch_size=32',
    '--config.phases=()',
    '--config.seq_len=64',
    '--config.max_predictions=10',
)


def _compile(program: Program, workdir: pathlib.Path, *changes: str, status: int = 0) -> tuple[dict, str]:
    """Runs run=compile without the XLA flags for the CPU and with few optimizations.

    Returns the contents of compile.json and the error message. The program runs in a separate process, so that a crash
    of the TPU compiler does not end pytest.
    """
    pytest.importorskip('libtpu', reason="needs the TPU compiler of the extras 'tpu' and 'test'")
    environment = {name: value for name, value in program.environment.items() if name != 'XLA_FLAGS'}
    program = dataclasses.replace(program, environment=environment | {'JAX_OPTIMIZATION_LEVEL': 'O0'})
    changes = (f'--workdir={workdir}', '--config.run=compile', *changes)
    result = program.spawn(*changes, recipe='configs/pretrain_base.py', small=False, status=status)
    return json.loads((workdir / 'compile.json').read_text(encoding='utf-8')), assert_one_line(result) if status else ''


@pytest.mark.slow
def test_narrow_step_for_16_chips(program: Program, tmp_path: pathlib.Path):
    """A network connects two slices: weights are gathered within a slice, gradients are summed between the slices."""
    report, _ = _compile(program, tmp_path, '--config.topology=2*v5e:2x4', *NARROW, *SHORT, '--config.mesh.fsdp=4')
    assert set(report) >= KEYS
    assert report['fits'] and report['chips'] == 16
    assert 0 < report['parameters_bytes'] < report['hbm_bytes_per_chip'] < report['hbm_bytes_available']
    assert report['optimizer_bytes'] == pytest.approx(2 * report['parameters_bytes'], rel=0.01)
    assert report['collectives'].get('all-gather', 0) > 0  # of the weights, which fsdp shards
    assert 0 < report['estimated_step_s'] < 0.1 and 0 < report['modelled_share'] < 1
    assert report['groups'] and not report['estimate']['unknown_loops']
    assert {row['kind'] for row in report['sent'] if row['network']} == {'all-reduce'}
    assert all(row['chips'] == 2 and row['seconds'] > 0 for row in report['sent'] if row['network'])


@pytest.mark.slow
def test_a_step_that_does_not_fit_is_an_error_with_settings_that_fit(program: Program, tmp_path: pathlib.Path):
    """The token embedding is too large for one chip; the compiler confirms that the suggested sharding fits."""
    few = ('--config.batch_size=4', '--config.phases=()', '--config.seq_len=16', '--config.max_predictions=3')
    one = (*NARROW, *few, '--config.model.num_layers=1', '--config.vocab.size=10000000', '--config.model.remat=full')
    one += ('--config.zero1=off',)  # with zero1, the optimizer state would be small enough
    report, line = _compile(program, tmp_path, *one, '--config.topology=v5e:2x2', status=2)
    assert report['fits'] is False
    # The compiler reserves a part of the 16 GiB.
    assert 15 * 2**30 < report['hbm_bytes_available'] < 16 * 2**30 < report['hbm_bytes_per_chip']
    fits = [tried for tried in report['tried'] if tried['fits']]
    assert fits and all(tried['hbm_bytes_per_chip'] <= report['hbm_bytes_available'] for tried in fits)
    assert all(tried['flags'] in line for tried in fits) and '--config.mesh.fsdp=' in line


@pytest.mark.parametrize(
    ('message', 'needed', 'available'),
    [
        ('Ran out of memory in memory space hbm. Used 67.50G of 15.75G hbm. Exceeded by 51.75G.', 67.5, 15.75),
        ('total size required for HLO temporaries (1.50T) exceeds available HBM (15.75G)', 1536, 15.75),
        ('Used 67.50G of the memory', 67.5, None),
        ('no figure at all', None, None),
    ],
)
def test_out_of_memory_messages_of_the_compiler_are_parsed(monkeypatch, message, needed, available):
    lowered = mock.Mock()
    lowered.compile.side_effect = jax.errors.JaxRuntimeError(f'RESOURCE_EXHAUSTED: {message}')
    monkeypatch.setattr(memory_search, 'StepLowering', lambda *_: mock.Mock(step=lambda batch: lowered))
    setup, phase = mock.MagicMock(), mock.MagicMock()
    setup.mesh.devices.flat = [mock.Mock(platform='tpu')]
    found = memory_search.compile_step(setup, phase)
    assert not found['fits'] and found['hbm_bytes_per_chip'] == (needed and needed * 2**30)
    assert found.get('hbm_bytes_available') == (available and available * 2**30)


@dataclasses.dataclass
class Compiler:
    """Replaces the TPU compiler: a chip needs `fixed` bytes for weights and `row` bytes per row of a microbatch."""

    fixed: int
    row: int
    count: int = 0

    def __call__(self, setup: Setup, phase: PretrainingPhase) -> dict:
        self.count += 1
        rows = phase.batch_size // phase.grad_accum_steps // row_shards(setup.mesh)
        divisor = {'auto': 1, 'none': 1, 'elementwise': 1, 'dots': 2, 'full': 8}[setup.module.config.remat]
        needed = self.fixed // setup.mesh.shape['fsdp'] + rows * self.row // divisor
        return {
            'fits': needed <= 16 << 30, 'hbm_bytes_per_chip': needed, 'temporary_bytes': None,
        }  # fmt: skip


@pytest.fixture(scope='module')
def setups() -> dict:
    """Training setups that tests share, {(model, mesh shape): setup}."""
    return {}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, setups: dict):
    """compiler(fixed, row), in GiB -> a Compiler that run=compile uses from then on, with CPU devices as the slice."""
    build = memory_search.build_pretraining_setup

    def build_once(settings, model, mesh) -> Setup:
        key = (model, *mesh.shape.values())
        if key not in setups:
            setups[key] = build(settings, model, mesh)
        return setups[key]

    def use(fixed: float, row: float) -> Compiler:
        fake = Compiler(int(fixed * 2**30), int(row * 2**30))
        monkeypatch.setattr(memory_search, 'topology_devices', lambda name: jax.local_devices()[:4])
        monkeypatch.setattr(memory_search, 'compile_step', fake)
        monkeypatch.setattr(memory_search, 'build_pretraining_setup', build_once)
        monkeypatch.setattr(memory_search, '_fixed_bytes', lambda result: fake.fixed)
        return fake

    return use


def _compile_64_rows(program: Program, workdir: pathlib.Path, *changes: str, status: int = 2):
    """Runs run=compile for a batch of 64 rows on four chips of 16 GiB."""
    size = ('--config.batch_size=64', '--config.topology=v5e:2x2', '--config.run=compile', f'--workdir={workdir}')
    result = program.run(*size, *changes, status=status)
    return result, json.loads((workdir / 'compile.json').read_text(encoding='utf-8'))


def test_the_parts_and_the_recomputing_that_fit(program: Program, tmp_path: pathlib.Path, compiler):
    fake = compiler(fixed=2, row=3)  # 50 GiB; 14 GiB with four microbatches; remat=dots 26 GiB, remat=full 8 GiB
    result, report = _compile_64_rows(program, tmp_path)
    line = assert_one_line(result)
    assert (
        'config.topology=v5e:2x2: found phase 0 with batch 64 x 32, which needs 50.00 GiB per chip, expected at most 16'
        in line
    )
    assert line.endswith('fit: --config.grad_accum_steps=4 (14.00 GiB); or --config.model.remat=full (8.00 GiB)')
    assert [(tried['flags'], tried['fits']) for tried in report['tried']] == [
        ('--config.grad_accum_steps=2', False), ('--config.grad_accum_steps=4', True),
        ('--config.model.remat=elementwise', False), ('--config.model.remat=dots', False),
        ('--config.model.remat=full', True),
    ]  # fmt: skip
    assert fake.count == 6 and not report['fits']
    assert 'with --config.grad_accum_steps=2: DOES NOT FIT, 26.00 GiB per chip' in result.stdout


TEXT = """HloModule jit_step, is_scheduled=true

ENTRY %main (a: f32[200000]) -> f32[200000] {
  %a = f32[200000]{0} parameter(0)
  %s = f32[200000]{0} all-reduce(%a), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %x = f32[200000]{0} negate(%s), metadata={op_name="jit(step)/jvp(Bert)/encoder/layers/mlp/neg"}, CYCLES
  ROOT %y = f32[200000]{0} negate(%x), metadata={op_name="jit(step)/neg"}, CYCLES
}
""".replace('CYCLES', 'backend_config={"window_config":{"estimated_cycles":"15000000"}}')


def test_the_estimated_time_is_marked_as_an_estimate(
    program: Program, tmp_path: pathlib.Path, compiler, monkeypatch: pytest.MonkeyPatch
):
    """The program has two operations of 10 ms at 1.5 GHz, and a collective that sends 1.2 MB at 100 GB/s."""
    fake = compiler(fixed=1, row=0.01)
    monkeypatch.setattr(memory_search, 'compile_step', lambda setup, phase: {**fake(setup, phase), 'text': TEXT})
    monkeypatch.setattr(memory_search, 'peak_flops', lambda kind: 197e12)
    result, report = _compile_64_rows(program, tmp_path, status=0)
    assert report['estimated_step_s'] == pytest.approx(0.02 + 1.2e-5)
    assert report['modelled_share'] == pytest.approx(6e-4, rel=1e-2)
    assert report['mfu_estimate'] == pytest.approx(report['flops'] / 197e12 / report['estimated_step_s'])
    assert {row['group']: round(row['seconds'], 4) for row in report['groups']} == {
        'mlp': 0.01, 'optimizer': 0.01, 'collectives': 0,
    }  # fmt: skip
    assert report['collectives'] == {'all-reduce': 1}
    assert 'estimated, not measured: 20.0 ms per step' in result.stdout
    for words in ('where the time goes', 'between the chips'):
        assert words in result.stdout
    assert 'text' not in report and 'text' not in report['phases'][0]


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('; ModuleID', 'could not be parsed'),
        (TEXT.replace('estimated_cycles', 'cycles'), 'the compiler does not report cycles'),
    ],
)
def test_the_report_works_without_a_time_estimate(
    program: Program, tmp_path: pathlib.Path, compiler, monkeypatch: pytest.MonkeyPatch, text: str, words: str
):
    fake = compiler(fixed=1, row=0.01)
    monkeypatch.setattr(memory_search, 'compile_step', lambda setup, phase: {**fake(setup, phase), 'text': text})
    monkeypatch.setattr(memory_search, 'peak_flops', lambda kind: 197e12)
    result, report = _compile_64_rows(program, tmp_path, status=0)
    assert words in result.stdout and report['fits'] and report['estimated_step_s'] is None


def test_large_weights_are_sharded(program: Program, tmp_path: pathlib.Path, compiler):
    compiler(fixed=20, row=0.25)
    result, report = _compile_64_rows(program, tmp_path)
    assert assert_one_line(result).endswith('and fit: --config.mesh.fsdp=2 (14.00 GiB)')
    assert sum(tried['fits'] for tried in report['tried']) == 1


def test_all_settings_are_combined_if_none_is_enough(program: Program, tmp_path: pathlib.Path, compiler):
    fake = compiler(fixed=40, row=40)
    result, _ = _compile_64_rows(program, tmp_path, '--config.mesh.data=4')
    everything = '--config.grad_accum_steps=16 --config.model.remat=full --config.mesh.fsdp=4 --config.mesh.data=1'
    assert assert_one_line(result).endswith(f'and fit: {everything} (15.00 GiB)')
    assert fake.count <= 1 + 3 * memory_search.TRIES
    compiler(fixed=400, row=400)
    assert 'none of the other settings that were tried fits' in assert_one_line(_compile_64_rows(program, tmp_path)[0])


def test_the_data_axis_spans_the_slices_in_every_plan(program: Program, tmp_path: pathlib.Path, compiler, monkeypatch):
    compiler(fixed=40, row=40)
    monkeypatch.setattr(memory_search, 'slice_count', lambda devices: 2)
    _, report = _compile_64_rows(program, tmp_path)
    assert report['tried'][-1]['flags'].endswith('--config.model.remat=full --config.mesh.fsdp=2')


def test_suggested_flags_name_the_phase(program: Program, tmp_path: pathlib.Path, compiler):
    compiler(fixed=2, row=0.25)
    grown = ('--config.phases[1].batch_size=512', '--config.phases[0].batch_size=64')
    options = {'recipe': 'configs/pretrain_small.py', 'small': False}  # a recipe with two phases
    arguments = (f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2', *grown)
    line = assert_one_line(program.run(*arguments, status=2, **options))
    assert (
        'found phase 1 with batch 512 x 512, which needs 34.00 GiB' in line
        and "'--config.phases[1].grad_accum_steps=4' (10" in line
    )


def test_plans_and_batches_suit_the_smallest_batch_of_a_ramp(program: Program, tmp_path: pathlib.Path, compiler):
    """The ramp starts with 16 rows, four per chip, so a plan has at most four accumulation steps.

    The search tries no batch below 32, because the batch after the ramp must be a larger multiple of 16.
    """
    compiler(fixed=2, row=8)
    ramp = ('batch_size=64', 'batch_ramp=0.5', 'batch_size_start=16')
    options = {'recipe': 'configs/pretrain_small.py', 'small': False, 'status': 2}
    arguments = (f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2')
    flags = ('--config.find_batch=True', *(f'--config.phases[0].{key}' for key in ramp))
    out = program.run(*arguments, *flags, **options).stdout
    assert re.findall(r'phase 0, batch (\d+) x', out) == ['64', '32']
    report = json.loads((tmp_path / 'compile.json').read_text(encoding='utf-8'))
    tried = [part['flags'] for part in report['phases'][0]['tried'] if 'grad_accum_steps' in part['flags']]
    assert tried == [
        f"'--config.phases[0].grad_accum_steps={steps}" for steps in ("2'", "4'", "4' --config.model.remat=full")
    ]


def test_the_largest_batch_is_found_above_and_below(program: Program, tmp_path: pathlib.Path, compiler):
    compiler(fixed=2, row=0.25)
    _, report = _compile_64_rows(program, tmp_path, '--config.find_batch=True', status=0)
    assert report['fits'] and report['batch_size'] == 128
    compiler(fixed=2, row=3)
    result, report = _compile_64_rows(program, tmp_path, '--config.find_batch=True', status=0)
    assert report['fits'] and report['batch_size'] == 16 and 'largest tried batch that fits is 16' in result.stdout
    compiler(fixed=2, row=30)
    result, report = _compile_64_rows(program, tmp_path, '--config.find_batch=True')
    assert report['batch_size'] == 64 and '--config.model.remat=full' in assert_one_line(result)


def test_the_batch_is_found_for_an_odd_number_of_rows(program: Program, tmp_path: pathlib.Path, compiler):
    """The search tries six rows per chip, then three, then one."""
    compiler(fixed=2, row=10)
    _, report = _compile_64_rows(program, tmp_path, '--config.find_batch=True', '--config.batch_size=24', status=0)
    assert report['fits'] and report['batch_size'] == 4


def test_a_phase_of_unknown_memory_counts_as_the_largest(
    program: Program, tmp_path: pathlib.Path, compiler, monkeypatch: pytest.MonkeyPatch
):
    """Phase 1 does not fit, and the compiler does not report its memory."""
    fake = compiler(fixed=2, row=0.01)

    def compile_without_size(setup: Setup, phase: PretrainingPhase) -> dict:
        return fake(setup, phase) | ({'fits': False, 'hbm_bytes_per_chip': None} if phase.number == 1 else {})

    monkeypatch.setattr(memory_search, 'compile_step', compile_without_size)
    arguments = (f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2')
    program.run(*arguments, recipe='configs/pretrain_small.py', small=False, status=2)
    report = json.loads((tmp_path / 'compile.json').read_text(encoding='utf-8'))
    assert report['phase'] == 1 and report['hbm_bytes_per_chip'] is None and len(report['phases']) == 2


def test_a_phase_without_steps_is_not_compiled(program: Program, tmp_path: pathlib.Path, compiler):
    fake = compiler(fixed=1, row=0.01)
    options = {'recipe': 'configs/pretrain_small.py', 'small': False}
    empty = ('--config.phases[0].steps=0%', '--config.phases[1].steps=100%')
    program.run(f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2', *empty, **options)
    assert fake.count == 1
