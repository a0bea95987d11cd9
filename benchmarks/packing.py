"""Pre-training steps on real text: packed rows compared with unpacked rows, in real tokens per second.

    python benchmarks/packing.py --corpus='texts/*.txt' --tokenizer=vocab.txt --size=mini --batch_size=4

Two trainings of the same model with dropout run in turn, on consecutive batches of the same text. The script prints the
medians, the fraction of real positions, the ratio of real tokens per second, and the rows per second from the store.
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np
from absl import app, flags

from bertjax.config.recipes import pretraining_config
from bertjax.corpus.build import build_store
from bertjax.corpus.store import TokenStore, open_store
from bertjax.model.config import SIZES
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.training.compiled_steps import compile_steps

_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'See config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'See config.tokenizer.', required=True)
_SIZE = flags.DEFINE_enum('size', 'mini', [name for name in SIZES if '_' not in name], 'The size of the model.')
_DTYPE = flags.DEFINE_enum('dtype', 'float32', ['float32', 'bfloat16'], 'The dtype of the computation.')
_LENGTH = flags.DEFINE_integer('seq_len', 512, 'S; 15.6 % of the positions are predicted.')
_BATCH = flags.DEFINE_integer('batch_size', 4, 'The number of rows per step.')
_STEPS = flags.DEFINE_integer('steps', 8, 'The number of timed steps.')
_ROWS = 256  # the number of rows per batch in the timing of making rows


class Side:
    """A training, packed or unpacked."""

    def __init__(self, packing: bool, store: TokenStore, tokenizer: Tokenizer):
        config = pretraining_config(_SIZE.value, seq_len=_LENGTH.value, batch_size=_BATCH.value, packing=packing)
        config.max_predictions = round(0.156 * _LENGTH.value)
        config.model.update(dtype=_DTYPE.value, max_positions=max(512, _LENGTH.value))
        settings, self._mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices())
        self.examples = StoreExamples(settings, [store], tokenizer, None).get(settings.first_shape, 'train', 0)
        setup = build_pretraining_setup(settings, settings.model_config(tokenizer.vocab_size), self._mesh)
        phase = settings.resolve_phases(1000)[0]
        with mesh_context(self._mesh):
            self._state = setup.create(seed=0)
        self._numbers = jax.device_put(
            (np.uint32(0), phase.make_schedule(phase.learning_rate), np.uint32(0)), replicated(self._mesh)
        )
        self._program = compile_steps(setup, phase, phase.batches)[phase.seq_len]

    def step(self, number: int) -> tuple[float, int]:
        """Runs a training step; returns its seconds and its number of real tokens."""
        rows = self.examples.batch(number * _BATCH.value + np.arange(_BATCH.value))
        batch = jax.device_put(rows, batch_sharding(self._mesh))
        began = time.perf_counter()
        self._state, metrics = self._program(self._state, batch, *self._numbers)
        jax.block_until_ready(metrics)
        return time.perf_counter() - began, int(rows['attention_mask'].sum())


def rate(make: Callable[[int], object], seconds: float = 3.0) -> float:
    """Returns the batches per second of `make(i)`, measured for about `seconds`."""
    make(0)
    began, i = time.perf_counter(), 1
    while time.perf_counter() - began < seconds:
        make(i)
        i += 1
    return (i - 1) / (time.perf_counter() - began)


def main(argv: list[str]) -> None:
    del argv
    tokenizer, times, tokens = load_tokenizer(_TOKENIZER.value), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        build_store(_CORPUS.value, folder, tokenizer, progress=False)
        store = open_store(folder, tokenizer_fingerprint=tokenizer.fingerprint)
        sides = {name: Side(name == 'packed', store, tokenizer) for name in ('unpacked', 'packed')}
        for i in range(_STEPS.value + 2):
            for name, side in sides.items():
                seconds, real = side.step(i)
                if i >= 2:
                    times.setdefault(name, []).append(seconds)
                    tokens.setdefault(name, []).append(real)
        made = {
            name: _ROWS * rate(lambda i, e=side.examples: e.batch(np.arange(i * _ROWS, (i + 1) * _ROWS)))
            for name, side in sides.items()
        }
    device = jax.devices()[0].device_kind
    machine = f'{platform.machine()}, {os.cpu_count()} cores' if device == 'cpu' else device
    print(f'{machine}, jax {jax.__version__}; {_SIZE.value}, {_BATCH.value} x {_LENGTH.value}, {_DTYPE.value}')
    seconds = {name: statistics.median(values) for name, values in times.items()}
    shares = {name: side.examples.report['real_positions'] for name, side in sides.items()}
    speeds = {name: _BATCH.value * _LENGTH.value * shares[name] / seconds[name] for name in sides}
    for name in sides:
        print(
            f'{name:>9}: {seconds[name] * 1000:7.0f} ms per step, {shares[name]:.1%} of the positions are real '
            f'({np.mean(tokens[name]) / _BATCH.value / _LENGTH.value:.1%} in the timed steps), '
            f'{speeds[name]:8,.0f} real tokens/s; {made[name]:8,.0f} rows/s from the store'
        )
    ratios = [unpacked / packed for unpacked, packed in zip(times['unpacked'], times['packed'], strict=True)]
    quartiles = np.quantile(ratios, (0.25, 0.75))
    faster = statistics.median(ratios) * shares['packed'] / shares['unpacked']
    print(
        f'packed: {faster:.2f} times the real tokens per second; factor {shares["packed"] / shares["unpacked"]:.2f} '
        f'from less padding, {statistics.median(ratios):.3f} from the time of a step '
        f'(median of {len(ratios)} pairs, quartiles {quartiles[0]:.3f} and {quartiles[1]:.3f})'
    )


if __name__ == '__main__':
    app.run(main)
