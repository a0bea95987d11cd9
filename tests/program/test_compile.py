"""run=compile: the real step, compiled by the TPU compiler without a TPU; and the search for what fits."""

import dataclasses
import json
import pathlib
from unittest import mock

import jax
import pytest
from running import Program, assert_one_line

from bertjax.cost import memory_search
from bertjax.parallel.mesh import row_shards
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.train.setup import Setup

KEYS = {'fits', 'hbm_bytes_per_chip', 'parameters_bytes', 'optimizer_bytes', 'temporary_bytes', 'flops', 'collectives'}
KEYS |= {'grad_accum_steps', 'estimated_step_s', 'mfu_estimate', 'modelled_share'}
KEYS |= {'estimate', 'groups', 'sent'}
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


def _compile(program: Program, workdir: pathlib.Path, *changes: str, status: int = 0) -> tuple[dict, str]:
    """compile.json, and the last line on stderr; by a process: a crash of the TPU compiler must not take pytest along.
    Without the flags for the CPU."""
    pytest.importorskip('libtpu', reason="needs the TPU compiler, of the extras 'tpu' and 'test'")
    plain = {name: value for name, value in program.environment.items() if name != 'XLA_FLAGS'}
    program = dataclasses.replace(program, environment=plain)
    changes = (f'--workdir={workdir}', '--config.run=compile', *changes)
    result = program.spawn(*changes, recipe='configs/pretrain_base.py', small=False, status=status)
    return json.loads((workdir / 'compile.json').read_text(encoding='utf-8')), assert_one_line(result) if status else ''


@pytest.mark.slow
def test_narrow_step_for_16_chips(program: Program, tmp_path: pathlib.Path):
    """In two slices, which the data centre's network joins: weights are gathered within a slice, gradients between."""
    report, _ = _compile(program, tmp_path, '--config.topology=2*v5e:2x4', *NARROW, *SHORT, '--config.mesh.fsdp=4')
    assert set(report) >= KEYS
    assert report['fits'] and report['chips'] == 16 and len(report['phases']) == 2
    assert 0 < report['parameters_bytes'] < report['hbm_bytes_per_chip'] < report['hbm_bytes_available']
    assert report['optimizer_bytes'] == pytest.approx(2 * report['parameters_bytes'], rel=0.01)
    assert report['collectives'].get('all-gather', 0) > 0  # the weights, which fsdp splits
    assert 0 < report['estimated_step_s'] < 0.1 and 0 < report['modelled_share'] < 1
    assert report['groups'] and not report['estimate']['unknown_loops']
    assert {row['kind'] for row in report['sent'] if row['network']} == {'all-reduce'}
    assert all(row['chips'] == 2 and row['seconds'] > 0 for row in report['sent'] if row['network'])


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_what_does(program: Program, tmp_path: pathlib.Path):
    """By the compiler itself, of a model whose weights are too much for a chip: split, as the line recommends."""
    wide = ('--config.model.width=8192', '--config.model.mlp_dim=32768', '--config.model.num_heads=64')
    few = ('--config.batch_size=4', '--config.phases=()', '--config.seq_len=16', '--config.max_predictions=3')
    one = (*wide, *few, '--config.model.num_layers=2', '--config.vocab.size=1000', '--config.model.remat=full')
    one += ('--config.zero1=off',)  # with it the optimiser, split, is small enough
    report, line = _compile(program, tmp_path, *one, '--config.topology=v5e:2x2', status=2)
    assert report['fits'] is False
    # Of the 16 GiB the compiler keeps some for itself.
    assert 15 * 2**30 < report['hbm_bytes_available'] < 16 * 2**30 < report['hbm_bytes_per_chip']
    fits = [tried for tried in report['tried'] if tried['fits']]
    assert fits and all(tried['hbm_bytes_per_chip'] <= report['hbm_bytes_available'] for tried in fits)
    assert all(tried['flags'] in line for tried in fits) and '--config.mesh.fsdp=' in line


@pytest.mark.parametrize(
    ('message', 'needed', 'given'),
    [
        ('Ran out of memory in memory space hbm. Used 67.50G of 15.75G hbm. Exceeded by 51.75G.', 67.5, 15.75),
        ('total size required for HLO temporaries (1.50T) exceeds available HBM (15.75G)', 1536, 15.75),
        ('Used 67.50G of the memory', 67.5, None),
        ('no figure at all', None, None),
    ],
)
def test_what_the_compiler_says_when_memory_is_short(monkeypatch, message, needed, given):
    lowered = mock.Mock()
    lowered.compile.side_effect = jax.errors.JaxRuntimeError(f'RESOURCE_EXHAUSTED: {message}')
    monkeypatch.setattr(memory_search, 'lower_steps', lambda *_: {'step': lowered})
    setup, phase = mock.MagicMock(), mock.Mock()
    setup.mesh.devices.flat = [mock.Mock(platform='tpu')]
    found = memory_search.compile_step(setup, phase)
    assert not found['fits'] and found['hbm_bytes_per_chip'] == (needed and needed * 2**30)
    assert found.get('hbm_bytes_available') == (given and given * 2**30)


@dataclasses.dataclass
class Compiler:
    """In place of the TPU compiler: a chip needs `fixed` bytes for its weights, and `row` for each row of a part."""

    fixed: int
    row: int
    count: int = 0

    def __call__(self, setup: Setup, phase: PretrainingPhase) -> dict:
        self.count += 1
        rows = phase.batch_size // phase.grad_accum_steps // row_shards(setup.mesh)
        kept = {'auto': 1, 'none': 1, 'elementwise': 1, 'dots': 2, 'full': 8}[setup.module.config.remat]
        needed = self.fixed // setup.mesh.shape['fsdp'] + rows * self.row // kept
        return {
            'fits': needed <= 16 << 30, 'hbm_bytes_per_chip': needed, 'temporary_bytes': None,
        }  # fmt: skip


@pytest.fixture(scope='module')
def setups() -> dict:
    """What was built once: a model on a mesh."""
    return {}


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, setups: dict):
    """compiler(fixed, row), in GiB -> a Compiler, which run=compile uses from now on, for slices of CPU devices."""
    build = memory_search.build_pretraining_setup

    def built(settings, model, mesh) -> Setup:
        key = (model, *mesh.shape.values())
        if key not in setups:
            setups[key] = build(settings, model, mesh)
        return setups[key]

    def use(fixed: float, row: float) -> Compiler:
        made = Compiler(int(fixed * 2**30), int(row * 2**30))
        monkeypatch.setattr(memory_search, 'topology_devices', lambda name: jax.local_devices()[:4])
        monkeypatch.setattr(memory_search, 'compile_step', made)
        monkeypatch.setattr(memory_search, 'build_pretraining_setup', built)
        monkeypatch.setattr(memory_search, '_fixed_bytes', lambda result: made.fixed)
        return made

    return use


def _asked(program: Program, workdir: pathlib.Path, *changes: str, status: int = 2):
    """A batch of 64 on four chips of 16 GiB, 16 rows each."""
    size = ('--config.batch_size=64', '--config.topology=v5e:2x2', '--config.run=compile', f'--workdir={workdir}')
    result = program.run(*size, *changes, status=status)
    return result, json.loads((workdir / 'compile.json').read_text(encoding='utf-8'))


def test_the_parts_and_the_recomputing_that_fit(program: Program, tmp_path: pathlib.Path, compiler):
    made = compiler(fixed=2, row=3)  # 50 GiB: in four parts 14, with half of the rest recomputed 26, with all 8
    result, report = _asked(program, tmp_path)
    line = assert_one_line(result)
    assert (
        'config.topology=v5e:2x2: found phase 0 with batch 64 x 32, which needs 50.00 GiB per chip, expected at most 16'
        in line
    )
    assert line.endswith('fits: --config.grad_accum_steps=4 (14.00 GiB); or --config.model.remat=full (8.00 GiB)')
    assert [(tried['flags'], tried['fits']) for tried in report['tried']] == [
        ('--config.grad_accum_steps=2', False), ('--config.grad_accum_steps=4', True),
        ('--config.model.remat=elementwise', False), ('--config.model.remat=dots', False),
        ('--config.model.remat=full', True),
    ]  # fmt: skip
    assert made.count == 6 and not report['fits']
    assert 'with --config.grad_accum_steps=2: DOES NOT FIT, 26.00 GiB per chip' in result.stdout


TEXT = """HloModule jit_step, is_scheduled=true

ENTRY %main (a: f32[200000]) -> f32[200000] {
  %a = f32[200000]{0} parameter(0)
  %s = f32[200000]{0} all-reduce(%a), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %x = f32[200000]{0} negate(%s), metadata={op_name="jit(step)/jvp(Bert)/encoder/layers/mlp/neg"}, CYCLES
  ROOT %y = f32[200000]{0} negate(%x), metadata={op_name="jit(step)/neg"}, CYCLES
}
""".replace('CYCLES', 'backend_config={"window_config":{"estimated_cycles":"15000000"}}')


def test_time_is_estimated_and_said_to_be(
    program: Program, tmp_path: pathlib.Path, compiler, monkeypatch: pytest.MonkeyPatch
):
    """Of a program of two passes of 10 ms each, at 1.5 GHz, and a collective of 1.2 MB sent at 100 GB/s."""
    made = compiler(fixed=1, row=0.01)
    monkeypatch.setattr(memory_search, 'compile_step', lambda setup, phase: {**made(setup, phase), 'text': TEXT})
    monkeypatch.setattr(memory_search, 'peak_flops', lambda kind: 197e12)
    result, report = _asked(program, tmp_path, status=0)
    assert report['estimated_step_s'] == pytest.approx(0.02 + 1.2e-5)
    assert report['modelled_share'] == pytest.approx(6e-4, rel=1e-2)
    assert report['mfu_estimate'] == pytest.approx(report['flops'] / 197e12 / report['estimated_step_s'])
    assert {row['group']: round(row['seconds'], 4) for row in report['groups']} == {
        'mlp': 0.01, 'optimiser': 0.01, 'collectives': 0,
    }  # fmt: skip
    assert report['collectives'] == {'all-reduce': 1}
    assert 'estimated, not measured: 20.0 ms a step' in result.stdout
    for words in ('where the time goes', 'between the chips'):
        assert words in result.stdout
    assert 'text' not in report and 'text' not in report['phases'][0]


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('; ModuleID', 'could not be parsed'),
        (TEXT.replace('estimated_cycles', 'cycles'), 'the compiler gives no cycles'),
    ],
)
def test_without_an_estimate_the_rest_is_said(
    program: Program, tmp_path: pathlib.Path, compiler, monkeypatch: pytest.MonkeyPatch, text: str, words: str
):
    made = compiler(fixed=1, row=0.01)
    monkeypatch.setattr(memory_search, 'compile_step', lambda setup, phase: {**made(setup, phase), 'text': text})
    monkeypatch.setattr(memory_search, 'peak_flops', lambda kind: 197e12)
    result, report = _asked(program, tmp_path, status=0)
    assert words in result.stdout and report['fits'] and report['estimated_step_s'] is None


def test_split_weights_where_they_are_what_is_large(program: Program, tmp_path: pathlib.Path, compiler):
    compiler(fixed=20, row=0.25)
    result, report = _asked(program, tmp_path)
    assert assert_one_line(result).endswith('and fits: --config.mesh.fsdp=2 (14.00 GiB)')
    assert sum(tried['fits'] for tried in report['tried']) == 1


def test_all_of_it_where_one_does_not_do(program: Program, tmp_path: pathlib.Path, compiler):
    made = compiler(fixed=40, row=40)
    result, _ = _asked(program, tmp_path, '--config.mesh.data=4')
    everything = '--config.grad_accum_steps=16 --config.model.remat=full --config.mesh.fsdp=4 --config.mesh.data=1'
    assert assert_one_line(result).endswith(f'and fits: {everything} (15.00 GiB)')
    assert made.count <= 1 + 3 * memory_search.TRIES
    compiler(fixed=400, row=400)
    assert 'none of the other ways that were compiled fits' in assert_one_line(_asked(program, tmp_path)[0])


def test_parts_of_a_phase_are_named_as_its_own(program: Program, tmp_path: pathlib.Path, compiler):
    compiler(fixed=2, row=0.25)
    grown = ('--config.phases[1].batch_size=512', '--config.phases[0].batch_size=64')
    options = {'recipe': 'configs/pretrain_small.py', 'small': False}  # has two phases
    arguments = (f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2', *grown)
    line = assert_one_line(program.run(*arguments, status=2, **options))
    assert (
        'found phase 1 with batch 512 x 512, which needs 34.00 GiB' in line
        and "'--config.phases[1].grad_accum_steps=4' (10" in line
    )


def test_the_largest_batch_is_found_above_and_below(program: Program, tmp_path: pathlib.Path, compiler):
    compiler(fixed=2, row=0.25)
    _, report = _asked(program, tmp_path, '--config.find_batch=True', status=0)
    assert report['fits'] and report['batch_size'] == 128
    compiler(fixed=2, row=3)
    result, report = _asked(program, tmp_path, '--config.find_batch=True', status=0)
    assert report['fits'] and report['batch_size'] == 16 and 'largest batch that fits is 16' in result.stdout
    compiler(fixed=2, row=30)
    result, report = _asked(program, tmp_path, '--config.find_batch=True')
    assert report['batch_size'] == 64 and '--config.model.remat=full' in assert_one_line(result)


def test_rows_that_cannot_be_halved(program: Program, tmp_path: pathlib.Path, compiler):
    """Six on a chip, then three, then one."""
    compiler(fixed=2, row=10)
    _, report = _asked(program, tmp_path, '--config.find_batch=True', '--config.batch_size=24', status=0)
    assert report['fits'] and report['batch_size'] == 4


def test_a_phase_that_needs_nobody_knows_how_much(
    program: Program, tmp_path: pathlib.Path, compiler, monkeypatch: pytest.MonkeyPatch
):
    """Is the hungriest."""
    made = compiler(fixed=2, row=0.01)

    def silent(setup: Setup, phase: PretrainingPhase) -> dict:
        return made(setup, phase) | ({'fits': False, 'hbm_bytes_per_chip': None} if phase.number == 1 else {})

    monkeypatch.setattr(memory_search, 'compile_step', silent)
    arguments = (f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2')
    program.run(*arguments, recipe='configs/pretrain_small.py', small=False, status=2)
    report = json.loads((tmp_path / 'compile.json').read_text(encoding='utf-8'))
    assert report['phase'] == 1 and report['hbm_bytes_per_chip'] is None


def test_a_phase_without_steps_is_not_compiled(program: Program, tmp_path: pathlib.Path, compiler):
    made = compiler(fixed=1, row=0.01)
    options = {'recipe': 'configs/pretrain_small.py', 'small': False}
    empty = ('--config.phases[0].steps=0%', '--config.phases[1].steps=100%')
    program.run(f'--workdir={tmp_path}', '--config.run=compile', '--config.topology=v5e:2x2', *empty, **options)
    assert made.count == 1
