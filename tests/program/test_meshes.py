"""Training on every mesh of eight devices has the losses of one device and the expected collectives."""

import collections
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest
from running import GLUE, ONE_LENGTH, SWEEP, Program, results, rows

from bertjax.config.recipes import pretraining_config
from bertjax.cost.collectives import find_collectives
from bertjax.cost.hlo import parse
from bertjax.parallel import zero1
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.parallel.rules import PRESETS
from bertjax.pretrain.run import Pretraining
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.compiled_steps import compile_steps
from bertjax.training.state import TrainState
from bertjax.workdir.lock import TRIALS

pytestmark = pytest.mark.slow
STEPS = 20
# ZeRO-1 needs parameters that are replicated over the data axis.
MESHES = [(preset, zero1) for preset in PRESETS for zero1 in ('off', 'on') if 'fsdp' not in preset or zero1 == 'off']
LAYERS = {'scanned': {}, 'unrolled': {'model.scan_layers': False}}
ROWS = {'': {}, ', packed': {'packing': True}}
CROSS = {layers + rows: LAYERS[layers] | ROWS[rows] for layers, rows in itertools.product(LAYERS, ROWS)}
# By default each option is tested once, because the full cross product takes long.
MODERN = {
    'model.mlp': 'geglu',
    'model.pre_norm': True,
    'model.position': 'rope',
    'optimizer.name': 'stable_adamw',
    'schedule.name': 'wsd',
    'z_loss': 1e-4,
    'ema_decay': 0.9,
    'export_formats': 'orbax',
}
FORMS = {'scanned': {}, 'modern, unrolled, packed': MODERN | CROSS['unrolled, packed']}
if os.environ.get('BERTJAX_CROSS'):
    FORMS = CROSS | {'modern': MODERN}
# Collectives in the HLO of the scanned step as jaxlib 0.10 compiles it for CPUs; those in a loop body count once. XLA
# makes a reduce-scatter on CPUs only inside `shard_map`; elsewhere it makes an all-reduce and a slice.
COLLECTIVES = {
    ('data', 'off'): {'all-reduce': 4},
    ('data', 'on'): {'all-gather': 29, 'reduce-scatter': 29, 'all-reduce': 6},  # for 29 arrays that are divisible by 8
    # With fsdp, the ids [B, S] are gathered twice: for the lookup, and for its gradient.
    ('fsdp', 'off'): {'all-gather': 25, 'all-reduce': 11, 'all-to-all': 6},
    ('tensor2', 'off'): {'all-gather': 2, 'all-reduce': 17},
    ('tensor2', 'on'): {'all-gather': 31, 'all-reduce': 35},  # 29 more for the updated parameters
    ('fsdp_tensor2', 'off'): {'all-gather': 30, 'all-reduce': 27, 'all-to-all': 6, 'collective-permute': 3},
}
TINY = {
    'model.num_layers': 2,
    'model.width': 32,
    'model.num_heads': 4,
    'model.mlp_dim': 64,
    'model.max_positions': 32,
    'vocab.size': 400,
    'seq_len': 32,
    'max_predictions': 5,
    'batch_size': 16,
    'steps': 100,
    'learning_rate': 2e-3,
    'pair_plans': 2,
    'corpus_options.workers': 1,
}


class Trained:
    """The results of twenty steps.

    Attributes:
      fresh: The initial state, on the host.
      numbers: (first example, number of examples) of each batch.
      rows: The first and the last batch, on the host.
      losses: The loss of each step.
      text: The HLO of the compiled step.
    """

    def __init__(self, training: Pretraining, fresh: TrainState | None = None):
        (phase,) = training.phases()
        with mesh_context(training.setup.mesh):
            state = training.init_state() if fresh is None else fresh
        self.fresh = jax.tree.map(np.asarray, state)
        state = jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), self.fresh, training.setup.state)
        batches, step = phase.load(0), phase.compile()
        self.numbers, self.rows, sums_of_steps = [], [], []
        for _ in range(STEPS):
            batch = next(batches)
            self.numbers.append((batch.first, batch.count))
            self.rows = [*self.rows[:1], jax.device_get(batch.arrays)]
            state, metrics = step(state, batch)
            sums_of_steps.append(metrics['sums'])
        batches.close()
        self.losses = [training.values(sums)['loss'] for sums in jax.device_get(sums_of_steps)]
        (length,) = phase.batches
        self.text = compile_steps(training.setup, phase.settings, phase.batches)[length].as_text()


@pytest.fixture(scope='module', autouse=True)
def every_array() -> Iterator[None]:
    """Lets ZeRO-1 shard all arrays, although those of a tiny model are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zero1, 'SMALL', 0)
        yield


@pytest.fixture(scope='module')
def training(corpus: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pretraining]:
    """training(mesh, devices, **changes) -> a pre-training; all share a workdir with its vocabulary and store."""
    folder = tmp_path_factory.mktemp('meshes')

    def make(mesh: dict[str, object], devices: int, **changes: object) -> Pretraining:
        config = pretraining_config('tiny', corpus=str(corpus))
        config.update_from_flattened_dict({**TINY, **changes, **{f'mesh.{key}': value for key, value in mesh.items()}})
        settings = pretraining_settings(config)
        return Pretraining(settings, folder, make_mesh(settings.mesh_axes, jax.devices()[:devices]))

    return make


@pytest.fixture(scope='module')
def single_device(training: Callable[..., Pretraining]) -> Callable[[str], Trained]:
    """single_device(form) -> the results on one device."""
    cache: dict[str, Trained] = {}

    def trained(form: str) -> Trained:
        if form not in cache:
            cache[form] = Trained(training({}, 1, **FORMS[form]))
        return cache[form]

    return trained


# All meshes with scanned layers; the other options with both ways to shard weights, and with ZeRO-1.
CASES = [(*mesh, 'scanned') for mesh in MESHES]
CASES += [(*mesh, form) for form in FORMS if form != 'scanned' for mesh in (('fsdp_tensor2', 'off'), ('data', 'on'))]
if os.environ.get('BERTJAX_CROSS'):
    CASES = [(*mesh, form) for mesh in MESHES for form in FORMS]


@pytest.mark.parametrize(('preset', 'zero1', 'form'), CASES)
def test_twenty_steps_with_dropout_agree_with_one_device(training, single_device, preset, zero1, form):
    expected = single_device(form)
    found = Trained(training({'preset': preset}, 8, zero1=zero1, **FORMS[form]), expected.fresh)
    assert found.numbers == expected.numbers == [(16 * step, 16) for step in range(STEPS)]
    jax.tree.map(np.testing.assert_array_equal, found.rows, expected.rows)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    if form == 'scanned' and jax.lib.__version__.startswith('0.10.'):
        assert collectives_of(found.text) == COLLECTIVES[preset, zero1]


def test_another_dropout_seed_gives_other_losses(training, single_device):
    """The losses also fall, so the comparison would detect a run that does not train."""
    expected = single_device('scanned')
    other = Trained(training({}, 1, **{'seeds.dropout': 1}), expected.fresh)
    assert expected.losses[-1] < expected.losses[0] - 1
    assert max(abs(x / y - 1) for x, y in zip(other.losses, expected.losses, strict=True)) > 1e-3


def test_a_fine_tuning_and_a_sweep_agree_with_one_device(
    program: Program, tune: tuple[str, ...], tmp_path: pathlib.Path
):
    short = (*tune, '--config.epochs=2', ONE_LENGTH, '--config.eval_every=12', '--config.export=False')
    sweep = (*short, SWEEP[0], SWEEP[2], '--config.sweep.seeds=(1,)')
    for name, devices in (('alone', 1), ('swept', 8)):
        program.run(f'--workdir={tmp_path / name}', *sweep, devices=devices, **GLUE)
    trials = sorted((tmp_path / 'alone' / TRIALS).iterdir())
    assert len(trials) == 2
    pairs = [(tmp_path / 'swept' / TRIALS / trial.name, trial) for trial in trials]
    on_mesh = ('--config.mesh.preset=tensor2', '--config.zero1=on', '--config.seed=1', '--config.learning_rate=3e-3')
    program.run(f'--workdir={tmp_path / "tuned"}', *short, *on_mesh, devices=8, **GLUE)
    (same,) = (trial for trial in trials if 'lr=0.003' in trial.name)
    for workdir, reference in (*pairs, (tmp_path / 'tuned', same)):
        assert results(workdir)['splits'] == results(reference)['splits']
        _same_losses(workdir, reference)


def _same_losses(workdir: pathlib.Path, reference: pathlib.Path) -> None:
    losses, expected = (
        [row['loss'] for row in rows(path / 'metrics.jsonl') if row.get('loss') is not None]
        for path in (workdir, reference)
    )
    assert losses == pytest.approx(expected, rel=1e-4)


def collectives_of(text: str) -> dict[str, int]:
    """Counts the collectives in the HLO of a compiled step by kind."""
    module = parse(text).module
    return dict(collections.Counter(one.kind for each in module.values() for one in find_collectives(each, 8)))
