"""A pre-training step for benchmarks/gpu_step.py."""

import dataclasses
import tempfile
import time
from collections.abc import Sequence

import jax
import numpy as np
from batches import random_batch

from bertjax.config.recipes import pretraining_config
from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.model.attention.select import describe_attention
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.text.tokenizer import load_tokenizer
from bertjax.training.compiled_steps import compile_steps


@dataclasses.dataclass(frozen=True)
class Row:
    """A model and a batch shape to measure.

    Attributes:
      size: The name of the model in `SIZES`.
      seq_len: S.
      rows: The number of rows per step. The rows have about 49,000 positions for large and 98,000 for base, so that
        both frameworks fit into the memory of an H200.
      goal: The goal in sequences per second.
      packed: Whether a row contains several sequences.
    """

    size: str
    seq_len: int
    rows: int
    goal: float
    packed: bool = False

    @property
    def predictions(self) -> int:
        return round(0.156 * self.seq_len) if self.seq_len > 128 else round(0.15 * self.seq_len) + 1

    def __str__(self) -> str:
        return f'{self.size}, S={self.seq_len}{", packed" if self.packed else ""}'


class Ours:
    """A training of bertjax on the first of `devices`, with random ids, or with packed rows of `corpus`.

    Attributes:
      config: The config of the model.
      batch: The batch of every step.
      sequences: The number of sequences in the batch.
      attention: The attention implementation, and the reasons against the others.
      compiling: The compile time in seconds.
    """

    def __init__(
        self,
        row: Row,
        devices: Sequence[jax.Device],
        *,
        dtype: str = 'bfloat16',
        attention: str = 'auto',
        scan_layers: bool = False,
        corpus: str = '',
        tokenizer: str = '',
    ):
        config = pretraining_config(row.size, seq_len=row.seq_len, batch_size=row.rows, packing=row.packed)
        config.max_predictions = row.predictions
        config.model.update(dtype=dtype, attention=attention, scan_layers=scan_layers)
        pieces = load_tokenizer(tokenizer) if corpus else None
        vocab_size = pieces.vocab_size if pieces else config.vocab.size
        settings, mesh = pretraining_settings(config), make_mesh(config.mesh, devices[:1])
        self.config = settings.model_config(vocab_size)
        setup = build_pretraining_setup(settings, self.config, mesh)
        phase = settings.resolve_phases(1000)[0]
        self.batch = random_batch(row.rows, row.seq_len, row.predictions, vocab_size, 2 if row.packed else 1)
        if row.packed and pieces:
            with tempfile.TemporaryDirectory() as folder:
                build_store(corpus, folder, pieces, progress=False)
                store = open_store(folder, tokenizer_fingerprint=pieces.fingerprint)
                examples = StoreExamples(settings, [store], pieces, None).get(settings.first_shape, 'train', 0)
                self.batch = examples.batch(np.arange(row.rows))
        self.sequences = int((self.batch['nsp_weights'] > 0).sum())
        with mesh_context(mesh):
            self._state = setup.create(seed=0)
            self.attention = describe_attention(self.config, row.rows, row.seq_len, row.packed)
        self._batch = jax.device_put(self.batch, batch_sharding(mesh))
        self._numbers = jax.device_put(
            (np.uint32(0), phase.make_schedule(phase.learning_rate), np.uint32(0)), replicated(mesh)
        )
        began = time.perf_counter()
        self._program = compile_steps(setup, phase, phase.batches)[phase.seq_len]
        self.compiling = time.perf_counter() - began

    def step(self) -> float:
        """Runs a training step, waits for it, and returns the MLM loss."""
        self._state, metrics = self._program(self._state, self._batch, *self._numbers)
        jax.block_until_ready((self._state, metrics))
        total, weight = metrics['sums']['mlm_loss']
        return float(total) / float(weight)
