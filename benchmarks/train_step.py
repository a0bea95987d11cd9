"""One pre-training step: bertjax beside PyTorch with transformers, in turn, in one process, on the CPU.

    python benchmarks/train_step.py --size=mini --batch_size=16

Both train the same architecture in float32 with dropout on the same random ids: forward, backward, clip, Adam. Prints
the median step of each and their ratio. Needs the extra `bench`.
"""

import os
import platform
import statistics
import time
from collections.abc import Callable

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
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


def random_batch(rows: int, seq_len: int, predictions: int, vocab_size: int) -> dict[str, np.ndarray]:
    """A full batch of random ids: no padding, every prediction used."""
    rng = np.random.default_rng(0)
    positions = np.sort(rng.permuted(np.tile(np.arange(seq_len), (rows, 1)), axis=1)[:, :predictions], axis=1)
    return {
        'input_ids': rng.integers(1000, vocab_size, (rows, seq_len), dtype=np.int32),
        'segment_ids': np.repeat([[0, 1]], rows, 0).repeat(seq_len // 2, 1).astype(np.int32),
        'attention_mask': np.ones((rows, seq_len), np.int32),
        'masked_positions': positions.astype(np.int32),
        'masked_ids': rng.integers(1000, vocab_size, (rows, predictions), dtype=np.int32),
        'masked_weights': np.ones((rows, predictions), np.float32),
        'nsp_labels': rng.integers(0, 2, rows, dtype=np.int32),
        'nsp_weights': np.ones(rows, np.float32),
    }


def ours(size: str, batch_size: int) -> Callable[[], None]:
    """A function that takes one step of ours and waits for it."""
    config = pretraining_config(size, batch_size=batch_size)
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


def theirs(size: str, batch_size: int) -> Callable[[], None]:
    """A function that takes one step of transformers' BertForPreTraining with torch's AdamW."""
    dims = SIZES[size]
    config = transformers.BertConfig(
        hidden_size=dims['width'],
        num_hidden_layers=dims['num_layers'],
        num_attention_heads=dims['num_heads'],
        intermediate_size=dims['mlp_dim'],
    )
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, eps=1e-6)
    rows = {name: torch.from_numpy(x) for name, x in random_batch(batch_size, 128, 20, config.vocab_size).items()}
    labels = torch.full((batch_size, 128), -100)
    labels.scatter_(1, rows['masked_positions'].long(), rows['masked_ids'].long())

    def step() -> None:
        out = model(
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


def main(argv: list[str]) -> None:
    """Times both in turn and prints medians and their ratio."""
    del argv
    steps = {'bertjax': ours(_SIZE.value, _BATCH.value), 'transformers': theirs(_SIZE.value, _BATCH.value)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(_STEPS.value + 2):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if i >= 2:
                times[name].append(time.perf_counter() - start)
    print(
        f'{platform.processor() or platform.machine()}, {os.cpu_count()} cores, jax {jax.__version__}, '
        f'torch {torch.__version__}, transformers {transformers.__version__}'
    )
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f'{name:>12}: {median * 1000:7.0f} ms a step, {_BATCH.value / median:6.1f} sequences/s')
    ratios = [b / a for a, b in zip(times['bertjax'], times['transformers'], strict=True)]
    print(f'bertjax is {statistics.median(ratios):.2f} times as fast (median of {len(ratios)} pairs)')


if __name__ == '__main__':
    app.run(main)
