"""One pre-training step: bertjax beside PyTorch with transformers, in turn, in one process, on the CPU.

    OMP_WAIT_POLICY=passive python benchmarks/train_step.py --size=mini --batch_size=16

All train the same architecture with dropout on the same random ids, of which 23 % are padding: forward, backward, clip,
Adam. Prints the median step of each, in time that passed and of the processor, how many times as fast the first is, and
what the step's matrix products alone take in float32, by the faster of XLA and PyTorch. Where others use the machine,
time of the processor on one core is what can be compared: `taskset -c 0` before, and --threads=1. Needs the extra
`bench`, and torch.compile a C++ compiler.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from absl import app, flags

from bertjax.experiment.pretraining import build_pretraining_setup
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.model.config import SIZES
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.recipe import pretraining_config

_SIZE = flags.DEFINE_enum('size', 'mini', [name for name in SIZES if '_' not in name], 'A named size.')
_BATCH = flags.DEFINE_integer('batch_size', 16, 'Sequences a step.')
_STEPS = flags.DEFINE_integer('steps', 8, 'Timed steps of each.')
_MODES = flags.DEFINE_list(
    'modes',
    ['float32', 'bfloat16', 'eager', 'sdpa', 'eager-bfloat16', 'sdpa-bfloat16', 'compile', 'compile-bfloat16'],
    'What runs: float32 and bfloat16 are ours, the others transformers, bfloat16 by autocast.',
)
_SCAN = flags.DEFINE_bool('scan_layers', False, 'config.model.scan_layers of ours.')
_THREADS = flags.DEFINE_integer('threads', 0, 'Of PyTorch; 0: its own choice. XLA takes the cores of the process.')
VOCABULARY = 30522
OURS = ('float32', 'bfloat16')


def random_batch(rows: int, seq_len: int, predictions: int, vocab_size: int) -> dict[str, np.ndarray]:
    """Random ids in rows of 54 to 100 % of `seq_len`: 23 % is padding, as of Wikipedia; all predictions used."""
    rng = np.random.default_rng(0)
    lengths = np.linspace(0.54 * seq_len, seq_len, rows).astype(int)
    positions = np.stack([np.sort(rng.permutation(length)[:predictions]) for length in lengths])
    return {
        'input_ids': rng.integers(1000, vocab_size, (rows, seq_len), dtype=np.int32),
        'segment_ids': np.repeat([[0, 1]], rows, 0).repeat(seq_len // 2, 1).astype(np.int32),
        'attention_mask': (np.arange(seq_len) < lengths[:, None]).astype(np.int32),
        'masked_positions': positions.astype(np.int32),
        'masked_ids': rng.integers(1000, vocab_size, (rows, predictions), dtype=np.int32),
        'masked_weights': np.ones((rows, predictions), np.float32),
        'nsp_labels': rng.integers(0, 2, rows, dtype=np.int32),
        'nsp_weights': np.ones(rows, np.float32),
    }


def ours(size: str, batch_size: int, dtype: str) -> Callable[[], None]:
    """A function that takes one step of ours and waits for it."""
    config = pretraining_config(size, batch_size=batch_size)
    config.model.dtype, config.model.scan_layers = dtype, _SCAN.value
    settings, mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices())
    setup = build_pretraining_setup(settings, settings.model(config.vocab.size), mesh)
    phase = settings.phases(1000)[0]
    with mesh_context(mesh):
        state = setup.create(seed=0)
    rows = random_batch(batch_size, phase.seq_len, phase.max_predictions, config.vocab.size)
    batch = jax.device_put(rows, batch_sharding(mesh))
    numbers = jax.device_put((np.uint32(0), np.float32(phase.learning_rate), np.uint32(0)), replicated(mesh))
    program = setup.compile(phase, phase.batches)[phase.seq_len]

    def step() -> None:
        nonlocal state
        state, metrics = program(state, batch, *numbers)
        jax.block_until_ready(metrics)

    return step


def theirs(size: str, batch_size: int, mode: str) -> Callable[[], None]:
    """A function that takes one step of transformers' BertForPreTraining with torch's AdamW."""
    kind, _, dtype = mode.partition('-')
    dims = SIZES[size]
    config = transformers.BertConfig(
        hidden_size=dims['width'],
        num_hidden_layers=dims['num_layers'],
        num_attention_heads=dims['num_heads'],
        intermediate_size=dims['mlp_dim'],
        attn_implementation='eager' if kind == 'eager' else 'sdpa',
    )
    model = transformers.BertForPreTraining(config).train()
    called = torch.compile(model) if kind == 'compile' else model
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, eps=1e-6)
    rows = {name: torch.from_numpy(x) for name, x in random_batch(batch_size, 128, 20, config.vocab_size).items()}
    labels = torch.full((batch_size, 128), -100)
    labels.scatter_(1, rows['masked_positions'].long(), rows['masked_ids'].long())

    def step() -> None:
        with torch.autocast('cpu', torch.bfloat16, enabled=dtype == 'bfloat16'):
            out = called(
                input_ids=rows['input_ids'],
                token_type_ids=rows['segment_ids'],
                attention_mask=rows['attention_mask'],
                labels=labels,
                next_sentence_label=rows['nsp_labels'].long(),
            )
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def products(size: str, batch_size: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The forward pass' matrix products: how often, and the shapes of both factors."""
    dims, seq_len, predictions = SIZES[size], 128, 20
    layers, width, inside, heads = (dims[name] for name in ('num_layers', 'width', 'mlp_dim', 'num_heads'))
    rows, of_heads = batch_size * seq_len, (batch_size * heads, seq_len, width // heads)
    return [
        (4 * layers, (rows, width), (width, width)),
        (layers, (rows, width), (width, inside)),
        (layers, (rows, inside), (inside, width)),
        (layers, of_heads, (of_heads[0], of_heads[2], seq_len)),
        (layers, (of_heads[0], seq_len, seq_len), of_heads),
        (1, (batch_size * predictions, width), (width, VOCABULARY)),
    ]


def bound(size: str, batch_size: int) -> float:
    """Seconds of the processor that a step's products take in float32: three times those of its forward pass."""
    rng, total = np.random.default_rng(0), 0.0
    multiply = jax.jit(jnp.matmul)
    for count, left, right in products(size, batch_size):
        arrays = [rng.standard_normal(shape, np.float32) for shape in (left, right)]
        xla, pytorch = [jnp.asarray(x) for x in arrays], [torch.from_numpy(x) for x in arrays]
        ways = (lambda xla=xla: multiply(*xla).block_until_ready(), lambda pytorch=pytorch: torch.matmul(*pytorch))
        total += 3 * count * min(statistics.median(timed(way)[1] for _ in range(7)) for way in ways)
    return total


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Seconds that passed, and of the processor."""
    start, used = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start, time.process_time() - used


def main(argv: list[str]) -> None:
    """Times all in turn and prints medians and ratios."""
    del argv
    if _THREADS.value:
        torch.set_num_threads(_THREADS.value)
    size, batch_size = _SIZE.value, _BATCH.value
    steps = {mode: (ours if mode in OURS else theirs)(size, batch_size, mode) for mode in _MODES.value}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for i in range(_STEPS.value + 2):
        for name, step in steps.items():
            taken = timed(step)
            if i >= 2:
                times[name].append(taken)
    print(
        f'{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, jax {jax.__version__}, '
        f'torch {torch.__version__}, transformers {transformers.__version__}; {size}, {batch_size} rows of 128'
    )
    first = next(iter(times))
    for name, taken in times.items():
        passed, used = (statistics.median(each) for each in zip(*taken, strict=True))
        by = [statistics.median(b[i] / a[i] for a, b in zip(times[first], taken, strict=True)) for i in (0, 1)]
        print(
            f'{name:>16}: {passed * 1000:6.0f} ms passed, {used * 1000:6.0f} of the processor; '
            f'{first} is {by[0]:.2f}, {by[1]:.2f} times as fast'
        )
    least, used = bound(size, batch_size), statistics.median(used for _, used in times[first])
    print(f'products alone in float32: {least * 1000:.0f} ms of the processor, {least / used:.0%} of {first}')


if __name__ == '__main__':
    app.run(main)
