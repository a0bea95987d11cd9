"""One pre-training step: bertjax beside PyTorch with transformers, in turn, in one process, on the CPU.

    OMP_WAIT_POLICY=passive python benchmarks/train_step.py --size=mini --batch_size=16
    OMP_WAIT_POLICY=passive python benchmarks/train_step.py --packed --corpus='texts/*.txt' --tokenizer=vocab.txt

All train the same architecture with dropout: forward, backward, clip, Adam. The ids are random and 23 % of the
positions padding; with --packed they are of a text, in rows of 512, of which ours hold several examples, where
transformers gets a row for each of the same, padded to 512 or, where a mode ends in `-longest`, to the longest of the
batch. Prints the median step of each, in time that passed and of the processor, real tokens a second of the processor,
how many times as fast the first is, and what its matrix products alone take in float32, by the faster of XLA and
PyTorch. Where others use the machine, time of the processor on one core is what can be compared: `taskset -c 0` before,
and --threads=1. PyTorch's modes in bfloat16 are left out on a processor without instructions for it, unless --modes
names them: a step of theirs takes many minutes there. Needs the extra `bench`, and torch.compile a C++ compiler.

What limited a step on 23 November 2026 (one core with AVX-512 and AMX, jax 0.10.2, torch 2.13.0): products of float32
reach 126 to 163 GFLOP/s in XLA (YNNPACK) and 150 to 168 in PyTorch (MKL). They are 51 % of mini's step and 63 % of
base's. In bfloat16 the same products reach 646 to 680 GFLOP/s, and 1,044 to 1,266 in PyTorch (oneDNN).
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
from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.model.config import SIZES
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.text_data import WeightedStore
from bertjax.text.tokenizer import load_tokenizer
from bertjax.train.compiled_steps import compile_steps

OURS = ('float32', 'bfloat16')
THEIRS = ('eager', 'sdpa', 'eager-bfloat16', 'sdpa-bfloat16', 'compile', 'compile-bfloat16')
_SIZE = flags.DEFINE_enum('size', 'mini', [name for name in SIZES if '_' not in name], 'A named size.')
_BATCH = flags.DEFINE_integer('batch_size', 0, 'Rows a step of ours; 0: 16, with --packed 4.')
_STEPS = flags.DEFINE_integer('steps', 8, 'Timed steps of each.')
_MODES = flags.DEFINE_list(
    'modes', None, f'What runs: {OURS} are ours, {THEIRS} transformers; by default all that the processor has.'
)
_PACKED = flags.DEFINE_bool('packed', False, 'Rows of 512 of a text, ours packed.')
_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'With --packed, as config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'With --packed, as config.tokenizer.')
_SCAN = flags.DEFINE_bool('scan_layers', False, 'config.model.scan_layers of ours.')
_THREADS = flags.DEFINE_integer('threads', 0, 'Of PyTorch; 0: its own choice. XLA takes the cores of the process.')
VOCABULARY = 30522
WARM = 3  # steps of each that are not timed: torch.compile compiles up to three, for two shapes and for any

Batch = dict[str, np.ndarray]


def recipe(packing: bool) -> ConfigDict:
    """Of ours."""
    length, predictions, rows = (512, 80, 4) if _PACKED.value else (128, 20, 16)
    config = pretraining_config(
        _SIZE.value, seq_len=length, batch_size=_BATCH.value or rows, packing=packing, max_predictions=predictions
    )
    config.vocab.size, config.model.scan_layers = VOCABULARY, _SCAN.value
    return config


def batches(config: ConfigDict) -> list[tuple[Batch, Batch]]:
    """What each step of ours and of theirs trains on: the same examples."""
    if not _PACKED.value:
        rows = random_batch(config.batch_size, config.seq_len, config.max_predictions, VOCABULARY, shortest=0.54)
        return [(rows, rows)]
    tokenizer = load_tokenizer(_TOKENIZER.value)
    with tempfile.TemporaryDirectory() as folder:
        build_store(_CORPUS.value, folder, tokenizer, progress=False)
        store = WeightedStore(open_store(folder, tokenizer_fingerprint=tokenizer.fingerprint), 1.0)
        packed, alone = (
            StoreExamples(settings, [store], tokenizer, None).get(settings.first_shape, 'train', 0)
            for settings in (pretraining_settings(recipe(packing)) for packing in (True, False))
        )
        made = []
        for numbers in np.arange((WARM + _STEPS.value) * config.batch_size).reshape(-1, config.batch_size):
            _, examples, cycle = packed.locate(numbers)
            made.append((packed.batch(numbers), alone.batch_with_new_masks(examples, cycle)))
    return made


def ours(config: ConfigDict, dtype: str, given: list[Batch]) -> Callable[[int], None]:
    """A function that takes a step of ours on a batch of this number and waits for it."""
    config.model.dtype = dtype
    settings, mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices())
    setup = build_pretraining_setup(settings, settings.model_config(VOCABULARY), mesh)
    phase = settings.resolve_phases(1000)[0]
    with mesh_context(mesh):
        state = setup.create(seed=0)
    on_mesh = [jax.device_put(batch, batch_sharding(mesh)) for batch in given]
    numbers = jax.device_put((np.uint32(0), np.float32(phase.learning_rate), np.uint32(0)), replicated(mesh))
    program = compile_steps(setup, phase, phase.batches)[phase.seq_len]

    def step(number: int) -> None:
        nonlocal state
        state, metrics = program(state, on_mesh[number % len(on_mesh)], *numbers)
        jax.block_until_ready((state, metrics))

    return step


def theirs(mode: str, given: list[Batch]) -> Callable[[int], None]:
    """The same of transformers."""
    kind, *how = mode.split('-')
    attention = 'eager' if kind == 'eager' else 'sdpa'
    step = peer.make_step(
        _SIZE.value, 'cpu', compiled=kind == 'compile', attention=attention, autocast='bfloat16' in how
    )
    as_given = [peer.given(cut(batch) if 'longest' in how else batch, 'cpu') for batch in given]
    return lambda number: step(as_given[number % len(as_given)])


def cut(batch: Batch) -> Batch:
    """Without the columns that are padding in every row."""
    longest = int(batch['attention_mask'].sum(1).max())
    tokens = ('input_ids', 'segment_ids', 'attention_mask')
    return {name: x[:, :longest] if name in tokens else x for name, x in batch.items()}


def products(config: ConfigDict) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """The forward pass' matrix products: how often, and the shapes of both factors."""
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


def bound(config: ConfigDict) -> float:
    """Seconds of the processor that a step's products take in float32: three times those of its forward pass."""
    rng, total = np.random.default_rng(0), 0.0
    multiply = jax.jit(jnp.matmul)
    for count, left, right in products(config):
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
    if _PACKED.value and not _TOKENIZER.value:
        raise app.UsageError('--packed needs --tokenizer, a vocabulary')
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
        f'{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, jax {jax.__version__}, '
        f'torch {torch.__version__}, transformers {transformers.__version__}; {_SIZE.value}, {config.batch_size} '
        f'{"packed " * _PACKED.value}rows of {config.seq_len}, {np.mean(tokens):,.0f} real tokens a step'
    )
    if _PACKED.value:
        rows, longest = np.mean([cut(batch)['input_ids'].shape for batch in all_theirs], axis=0)
        print(f'transformers: {rows:.1f} rows a step, the longest of {longest:.0f} tokens')
    first = next(iter(times))
    for name, taken in times.items():
        passed, used = (statistics.median(each) for each in zip(*taken, strict=True))
        rate = statistics.median(real / one[1] for real, one in zip(tokens, taken, strict=True))
        by = [statistics.median(b[i] / a[i] for a, b in zip(times[first], taken, strict=True)) for i in (0, 1)]
        print(
            f'{name:>24}: {passed * 1000:6.0f} ms passed, {used * 1000:6.0f} of the processor, {rate:6,.0f} tokens/s; '
            f'{first} is {by[0]:.2f}, {by[1]:.2f} times as fast'
        )
    least, used = bound(config), statistics.median(used for _, used in times[first])
    print(f'products alone in float32: {least * 1000:.0f} ms of the processor, {least / used:.0%} of {first}')


if __name__ == '__main__':
    app.run(main)
