"""Pre-training steps on the CPU: bertjax compared with transformers in PyTorch, in one process.

    OMP_WAIT_POLICY=passive python benchmarks/train_step.py --size=mini --batch_size=16
    OMP_WAIT_POLICY=passive python benchmarks/train_step.py --packed --corpus='texts/*.txt' --tokenizer=vocab.txt

All modes train the same architecture with dropout: forward, backward, clipping, Adam. The ids are random, and 23 % of
the positions are padding. With --packed, the rows are 512 positions of a text. A row of bertjax contains several
examples. transformers reads each of these examples in a separate row, padded to 512, or to the longest of the batch in
modes that end in `-longest`. The modes run in turn. The script prints for each mode the median wall time and CPU time
of a step, real tokens per second of CPU time, and the speedup of the first mode. It also prints the CPU time of the
matrix products alone in float32, with the faster of XLA and PyTorch. On a shared machine, compare the CPU times on one
core: run with `taskset -c 0` and --threads=1. On a CPU without bfloat16 instructions, PyTorch's bfloat16 modes are
skipped unless --modes names them, because a step takes many minutes. Needs the extra `bench`. torch.compile needs a C++
compiler.

The limits of a step on 23 November 2026 (one core with AVX-512 and AMX, jax 0.10.2, torch 2.13.0): float32 products
reach 126 to 163 GFLOP/s in XLA (YNNPACK) and 150 to 168 in PyTorch (MKL). They take 51 % of a step of mini and 63 % of
a step of base. In bfloat16, the same products reach 646 to 680 GFLOP/s in XLA, and 1,044 to 1,266 in PyTorch (oneDNN).
"""

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
import jax.numpy as jnp
import numpy as np
import torch
import transformers
from absl import app, flags
from batches import random_batch
from ml_collections import ConfigDict
from peers import pretraining as peer
from processor import native

from bertjax.config.recipes import pretraining_config
from bertjax.cores import schedulable_cores
from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.model.config import SIZES
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.text.tokenizer import load_tokenizer
from bertjax.training.compiled_steps import compile_steps

OURS = ('float32', 'bfloat16')
THEIRS = ('eager', 'sdpa', 'eager-bfloat16', 'sdpa-bfloat16', 'compile', 'compile-bfloat16')
_SIZE = flags.DEFINE_enum('size', 'mini', [name for name in SIZES if '_' not in name], 'The size of the model.')
_BATCH = flags.DEFINE_integer('batch_size', 0, 'The rows per step of bertjax; 0: 16, with --packed 4.')
_STEPS = flags.DEFINE_integer('steps', 8, 'The number of timed steps.')
_MODES = flags.DEFINE_list(
    'modes', None, f'The modes: {OURS} of bertjax, {THEIRS} of transformers; default: all that the CPU supports.'
)
_PACKED = flags.DEFINE_bool('packed', False, 'Train on rows of 512 of a text, packed in bertjax.')
_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'For --packed, see config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'For --packed, see config.tokenizer.')
_SCAN = flags.DEFINE_bool('scan_layers', False, 'See config.model.scan_layers.')
_THREADS = flags.DEFINE_integer(
    'threads', 0, 'The number of threads of PyTorch; 0: its default. XLA uses all cores of the process.'
)
VOCABULARY = 30522
WARM = 3  # the untimed steps of each mode: torch.compile compiles up to three times, for two shapes and for any shape

Batch = dict[str, np.ndarray]


def recipe(packing: bool) -> ConfigDict:
    """Returns the config of bertjax."""
    length, predictions, rows = (512, 80, 4) if _PACKED.value else (128, 20, 16)
    config = pretraining_config(
        _SIZE.value, seq_len=length, batch_size=_BATCH.value or rows, packing=packing, max_predictions=predictions
    )
    config.vocab.size, config.model.scan_layers = VOCABULARY, _SCAN.value
    return config


def batches(config: ConfigDict) -> list[tuple[Batch, Batch]]:
    """Returns the batches of bertjax and of transformers for each step; both have the same examples."""
    if not _PACKED.value:
        rows = random_batch(config.batch_size, config.seq_len, config.max_predictions, VOCABULARY, shortest=0.54)
        return [(rows, rows)]
    tokenizer = load_tokenizer(_TOKENIZER.value)
    with tempfile.TemporaryDirectory() as folder:
        build_store(_CORPUS.value, folder, tokenizer, progress=False)
        store = open_store(folder, tokenizer_fingerprint=tokenizer.fingerprint)
        packed, unpacked = (
            StoreExamples(settings, [store], tokenizer, None).get(settings.first_shape, 'train', 0)
            for settings in (pretraining_settings(recipe(packing)) for packing in (True, False))
        )
        pairs = []
        for numbers in np.arange((WARM + _STEPS.value) * config.batch_size).reshape(-1, config.batch_size):
            _, examples, cycle = packed.locate(numbers)
            pairs.append((packed.batch(numbers), unpacked.batch(examples, mask_cycle=cycle)))
    return pairs


def ours(config: ConfigDict, dtype: str, rows: list[Batch]) -> Callable[[int], None]:
    """Returns a function that runs a step of bertjax on the batch with a given number, and waits for its end."""
    config.model.dtype = dtype
    settings, mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices())
    setup = build_pretraining_setup(settings, settings.model_config(VOCABULARY), mesh)
    phase = settings.resolve_phases(1000)[0]
    with mesh_context(mesh):
        state = setup.create(seed=0)
    on_mesh = [jax.device_put(batch, batch_sharding(mesh)) for batch in rows]
    numbers = jax.device_put((np.uint32(0), phase.make_schedule(phase.learning_rate), np.uint32(0)), replicated(mesh))
    program = compile_steps(setup, phase, phase.batches)[phase.seq_len]

    def step(number: int) -> None:
        nonlocal state
        state, metrics = program(state, on_mesh[number % len(on_mesh)], *numbers)
        jax.block_until_ready((state, metrics))

    return step


def theirs(mode: str, rows: list[Batch]) -> Callable[[int], None]:
    """Returns a function that does the same with transformers."""
    kind, *options = mode.split('-')
    attention = 'eager' if kind == 'eager' else 'sdpa'
    step = peer.make_step(
        _SIZE.value, 'cpu', compiled=kind == 'compile', attention=attention, autocast='bfloat16' in options
    )
    inputs = [peer.model_inputs(cut(batch) if 'longest' in options else batch, 'cpu') for batch in rows]
    return lambda number: step(inputs[number % len(inputs)])


def cut(batch: Batch) -> Batch:
    """Returns the batch without the columns that are padding in every row."""
    longest = int(batch['attention_mask'].sum(1).max())
    tokens = ('input_ids', 'segment_ids', 'attention_mask')
    return {name: x[:, :longest] if name in tokens else x for name, x in batch.items()}


def products(config: ConfigDict) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Returns the matrix products of the forward pass: (count, shape of the left factor, shape of the right factor)."""
    dims, batch_size, seq_len = SIZES[_SIZE.value], config.batch_size, config.seq_len
    layers, width, inside, heads = (dims[name] for name in ('num_layers', 'width', 'mlp_dim', 'num_heads'))
    rows, of_heads = batch_size * seq_len, (batch_size * heads, seq_len, width // heads)
    return [
        (4 * layers, (rows, width), (width, width)),
        (layers, (rows, width), (width, inside)),
        (layers, (rows, inside), (inside, width)),
        (layers, of_heads, (of_heads[0], of_heads[2], seq_len)),
        (layers, (of_heads[0], seq_len, seq_len), of_heads),
        (1, (batch_size * config.max_predictions, width), (width, VOCABULARY)),
    ]


def product_seconds(config: ConfigDict) -> float:
    """Returns the CPU seconds of the float32 products of a step: three times those of its forward pass."""
    rng, total = np.random.default_rng(0), 0.0
    multiply = jax.jit(jnp.matmul)
    for count, left, right in products(config):
        arrays = [rng.standard_normal(shape, np.float32) for shape in (left, right)]
        xla, pytorch = [jnp.asarray(x) for x in arrays], [torch.from_numpy(x) for x in arrays]
        ways = (lambda xla=xla: multiply(*xla).block_until_ready(), lambda pytorch=pytorch: torch.matmul(*pytorch))
        total += 3 * count * min(statistics.median(timed(way)[1] for _ in range(7)) for way in ways)
    return total


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """Runs `step`; returns the wall time and the CPU time in seconds."""
    start, used = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - start, time.process_time() - used


def main(argv: list[str]) -> None:
    del argv
    if _PACKED.value and not _TOKENIZER.value:
        raise app.UsageError('--packed: expected --tokenizer as well')
    if _THREADS.value:
        torch.set_num_threads(_THREADS.value)
    modes = _MODES.value or [*OURS, *native(THEIRS)]
    config = recipe(_PACKED.value)
    all_ours, all_theirs = zip(*batches(config), strict=True)
    steps = {mode: ours(config, mode, all_ours) if mode in OURS else theirs(mode, all_theirs) for mode in modes}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for i in range(WARM + _STEPS.value):
        for name, step in steps.items():
            taken = timed(lambda step=step, i=i: step(i))
            if i >= WARM:
                times[name].append(taken)
    tokens = [int(rows['attention_mask'].sum()) for rows in all_ours]
    tokens = [tokens[i % len(tokens)] for i in range(WARM, WARM + _STEPS.value)]
    print(
        f'{platform.processor() or platform.machine()}, {schedulable_cores()} cores, jax {jax.__version__}, '
        f'torch {torch.__version__}, transformers {transformers.__version__}; {_SIZE.value}, {config.batch_size} '
        f'{"packed " * _PACKED.value}rows of {config.seq_len}, {np.mean(tokens):,.0f} real tokens per step'
    )
    if _PACKED.value:
        rows, longest = np.mean([cut(batch)['input_ids'].shape for batch in all_theirs], axis=0)
        print(f'transformers: {rows:.1f} rows per step, the longest of {longest:.0f} tokens')
    first = next(iter(times))
    for name, taken in times.items():
        passed, used = (statistics.median(each) for each in zip(*taken, strict=True))
        rate = statistics.median(real / one[1] for real, one in zip(tokens, taken, strict=True))
        by = [statistics.median(b[i] / a[i] for a, b in zip(times[first], taken, strict=True)) for i in (0, 1)]
        print(
            f'{name:>24}: {passed * 1000:6.0f} ms, CPU {used * 1000:6.0f} ms, {rate:6,.0f} tokens/s; '
            f'{first} is {by[0]:.2f} times as fast, {by[1]:.2f} by CPU time'
        )
    least, used = product_seconds(config), statistics.median(used for _, used in times[first])
    print(f'matrix products alone in float32: {least * 1000:.0f} ms of CPU time, {least / used:.0%} of {first}')


if __name__ == '__main__':
    app.run(main)
