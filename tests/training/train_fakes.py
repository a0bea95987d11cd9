"""A tiny config, its examples and its training run, for the tests of training/."""

import math
import types

import jax
import numpy as np

from bertjax.config.recipes import pretraining_config
from bertjax.data.batch import pretraining_batch_spec
from bertjax.data.loader import global_arrays, make_numbered_batch
from bertjax.model.config import BertConfig
from bertjax.optim.schedules import make_schedule
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.compiled_steps import compile_steps
from bertjax.training.phase import TrainStep
from bertjax.training.setup import Setup

S, P, B, VOCABULARY = 16, 4, 16, 200
NO_DROPOUT = {'dropout': 0.0, 'attention_dropout': 0.0}
MESH_RECIPE = {'learning_rate': 2e-3, 'warmup_fraction': 0.0}  # high enough to change the loss in ten steps


def fake_experiment(folders, values, resolved=None, *, evaluate_first=True, **settings):
    """Returns what Recorder and Loop read of an Experiment."""
    settings = types.SimpleNamespace(tracker='', **settings)
    return types.SimpleNamespace(
        folders=folders, values=values, resolved=resolved or {}, settings=settings, evaluate_first=evaluate_first
    )


class RandomExamples:
    """Rows with random lengths and numbers of masks; each token of a row determines the next one.

    Example n depends only on (seed, n), as in bertjax.data.
    """

    def __init__(self, seed=0, seq_len=S, max_predictions=P, cycle_length=1000):
        self.seed, self.seq_len, self.max_predictions = seed, seq_len, max_predictions
        self.cycle_length = cycle_length

    def batch(self, indices):
        spec = pretraining_batch_spec(len(indices), self.seq_len, self.max_predictions)
        rows = {name: np.zeros(shape, dtype) for name, (shape, dtype) in spec.items()}
        for row, n in enumerate(np.asarray(indices)):
            rng = np.random.default_rng([self.seed, int(n)])
            length = int(rng.integers(6, self.seq_len + 1))
            masks = int(rng.integers(1, self.max_predictions + 1))
            ids = (rng.integers(10, 100) + 7 * np.arange(length)) % (VOCABULARY - 10) + 10
            positions = np.sort(rng.choice(np.arange(1, length), masks, replace=False))
            rows['masked_positions'][row, :masks] = positions
            rows['masked_ids'][row, :masks] = ids[positions]
            rows['masked_weights'][row, :masks] = 1
            ids[positions] = 4
            rows['input_ids'][row, :length] = ids
            rows['segment_ids'][row, length // 2 : length] = 1
            rows['attention_mask'][row, :length] = 1
            rows['nsp_labels'][row] = rng.integers(2)
            rows['nsp_weights'][row] = 1
        return rows


def tiny_config(model=None, optimizer=None, mesh=None, **changes):
    """Returns a config with two layers of width 32 and, by default, BERT's dropout."""
    values = {'seq_len': S, 'max_predictions': P, 'batch_size': B, 'steps': 100, 'learning_rate': 1e-2, **changes}
    config = pretraining_config('tiny', **values)
    config.model.update(num_layers=2, width=32, num_heads=4, mlp_dim=64, max_positions=S)
    config.model.update(model or {})
    config.optimizer.update(optimizer or {})
    config.mesh.update(mesh or {'data': 1})
    return config


class Run:
    """The training of a config on its mesh, built as in pretrain/run.py."""

    def __init__(self, config):
        self.config = config
        settings = pretraining_settings(config)
        count = math.prod(settings.mesh_axes.values())
        self.mesh = make_mesh(settings.mesh_axes, jax.devices()[: count if count > 0 else None])
        self.model = BertConfig(vocab_size=VOCABULARY, **config.model)
        self.setup = build_pretraining_setup(settings, self.model, self.mesh)
        self.phase = settings.resolve_phases(config.steps)[0]
        self.sharding = batch_sharding(self.mesh)
        self.programs = compile_steps(self.setup, self.phase, self.phase.batches)
        numbers = (self.phase.make_schedule(self.phase.learning_rate), np.uint32(settings.run_seeds.dropout))
        self.numbers = jax.device_put(numbers, replicated(self.mesh))  # the schedule and the seed
        self.compiled = TrainStep(self.programs, *self.numbers)

    @property
    def program(self):
        return self.programs[self.phase.seq_len]

    def init(self, seed=0):
        """Creates a fresh state on this mesh."""
        with mesh_context(self.mesh):
            return self.setup.create(seed)

    def place(self, state):
        """Moves a state of the same shapes to this mesh."""
        return jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), state, self.setup.state)

    def put(self, rows, first=0):
        """Makes a batch on this mesh from the rows of the examples from `first` on."""
        count = len(rows['nsp_labels'])
        return make_numbered_batch(first, global_arrays(rows, self.sharding, count), self.sharding, count)

    def batch(self, step, examples=None):
        rows = (examples or RandomExamples()).batch(np.arange(B) + B * step)
        return self.put(rows, B * step)

    def steps(self, state, first, count):
        """Trains and returns the state and the metrics of each step, on the host."""
        rows = []
        for step in range(first, first + count):
            state, metrics = self.compiled(state, self.batch(step))
            rows.append(jax.device_get(metrics))
        return state, rows


def host(tree):
    return jax.tree.map(np.asarray, tree)


def loss_of(metrics):
    """Computes the training loss from the sums of a step."""
    return sum(float(metrics['sums'][name][0] / metrics['sums'][name][1]) for name in ('mlm_loss', 'nsp_loss'))


def setup_of(module, objective, optimizer, **options):
    """Builds a setup on one device."""
    mesh = make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1])
    return Setup(module, objective, optimizer, mesh, **options)


def constant_rate(rate):
    """Returns a schedule with a constant learning rate."""
    return make_schedule('constant', peak=rate, steps=100, warmup_fraction=0.0)
