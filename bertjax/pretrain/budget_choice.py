"""Chooses the sizes and steps of a pre-training run with config.budget.

If config.architecture_from is 'budget', the speed of matrix products on this machine determines the dtype and, for a
budget in time, the size. For a budget in time, a run of one process then times a real step, which determines the batch
and the estimated number of steps.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config.pretraining import BUDGET_SIZE
from bertjax.config.ranges import COUNT, parse_budget
from bertjax.errors import UserError
from bertjax.model.config import DTYPES, GATED_MLPS, inner_parameters, train_flops_per_sequence
from bertjax.model.layers import dot
from bertjax.parallel.mesh import is_cpu, row_shards
from bertjax.pretrain.budget_plan import BudgetPlan
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.scaling_law import bits_per_byte
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.training.step_time import time_phase

# (layers, width, heads) of the sizes to choose from.
SIZES = (
    (2, 128, 2), (3, 192, 3), (4, 256, 4), (6, 320, 5), (6, 384, 6), (8, 512, 8), (12, 640, 10), (12, 768, 12),
    (22, 768, 12),
)  # fmt: skip
# {dtype: the minimum speed of its matrix products, relative to float32, at which the dtype is chosen}.
_MIN_SPEEDUP = {'float32': 1.0, 'bfloat16': 1.4}
_EFFICIENCY = 0.4  # the assumed speed of a training step, relative to a large matrix product
_MIN_STEP_SECONDS = 2e-3  # the assumed minimum time of a step; without it, tiny models would warm up for too long
# See `choose_batch_size`. With 2 layers of width 128, the loss after 5 minutes on a busy Intel Xeon is 1.364 with 32
# rows of 64 positions (4,598 steps), 1.339 with 64 rows (2,600 steps) and 1.309 with 128 rows (1,622 steps)
# (`budget.py:5m`, Python's documentation). Longer runs also gain from larger batches (docs/results/batch.json, and
# docs/pretraining.md for an hour). More than 512 rows were not tried (docs/results/h200.json).
_MAX_STEPS, _MAX_CPU_POSITIONS, _MAX_DEVICE_POSITIONS = 4_000, 32_768, 16_384
# On an Intel Xeon with AMX, the estimate from `product_rate` was 1.3 to 2.9 times the real number of steps
# (docs/results/budget-60m.json).
_MAX_ESTIMATED_STEPS = 2 * _MAX_STEPS
_CPU_PART_POSITIONS = 2_048  # see `split_batch`


def gated_width(width: int) -> int:
    """Returns the width of a gated MLP: 8/3 of the model's width, rounded up to a multiple of 32."""
    return -(-round(8 / 3 * width) // 32) * 32


def choose_budget_plan(settings: PretrainingSettings, mesh: Mesh, flag_keys: Collection[str]) -> BudgetPlan:
    """Returns a new plan for config.budget. A key in `flag_keys` keeps its value.

    Raises:
      UserError: The budget allows too many steps. Or a step is timed, but the model does not fit the devices or the
        batch size is not a multiple of the number of row shards.
    """
    seconds, operations = parse_budget(settings.budget)
    chosen: dict[str, Any] = {}
    rate = functools.cache(functools.partial(product_rate, mesh))
    from_budget = settings.architecture_from == 'budget'
    chooses_batch = from_budget and 'batch_size' not in flag_keys
    if from_budget and 'model.dtype' not in flag_keys:
        chosen['dtype'] = max(DTYPES, key=lambda dtype: rate(dtype) / _MIN_SPEEDUP[dtype])
    if operations == math.inf:
        operations = _EFFICIENCY * seconds * rate(chosen.get('dtype', settings.model.dtype))
    length, predictions = settings.first_shape
    limit = _MAX_STEPS if seconds == math.inf else _MAX_ESTIMATED_STEPS

    def count_steps(sequences: float, max_steps: int) -> tuple[int, float]:
        """Returns the batch size and the number of steps of a run that has time for `sequences` rows."""
        rows = settings.batch_size
        rows = choose_batch_size(rows, sequences, length, mesh, max_steps) if chooses_batch else rows
        return rows, min(sequences / rows, seconds / _MIN_STEP_SECONDS)

    def estimate(size: dict[str, int]) -> tuple[float, int, float]:
        """Returns the expected bits per byte of a size, and the batch size and the number of steps of its run."""
        model = dataclasses.replace(settings.model, **size)
        config = dataclasses.replace(settings, model=model).model_config(settings.vocab.size)
        rows, steps = count_steps(operations / train_flops_per_sequence(config, length, predictions), limit)
        return bits_per_byte(inner_parameters(config), steps * rows * length), rows, steps

    def make(size: dict[str, int], rows: int, steps: float) -> BudgetPlan:
        total = max(round(min(steps, COUNT)), 3)
        warmup = max(round(settings.warmup_fraction * total), 1)
        return BudgetPlan(settings.budget, size | chosen, total, warmup, batch_size=rows if chooses_batch else None)

    size = min(_candidate_sizes(settings, flag_keys), key=lambda size: estimate(size)[0])
    plan = make(size, *estimate(size)[1:])
    if plan.estimate > COUNT // 4:
        found, fix = f'{settings.budget}, which allows too many steps', 'lower it, or raise batch_size'
        raise UserError('config.budget', found, f'at most {COUNT // 4:,} steps', fix)
    if seconds == math.inf:
        decay = max(round(settings.schedule.decay_fraction * plan.estimate), 1)
        return dataclasses.replace(plan, stable=max(plan.estimate - plan.warmup - decay, 1), decay=decay)
    # With several processes, no step is timed: only the first process makes the plan, but a step needs all processes.
    # If the run has the same batch, it loads the step compiled here from the compilation cache on disk.
    if not from_budget or jax.process_count() > 1:
        return plan
    timed = plan.apply(split_batch(settings, plan, mesh, flag_keys))
    return make(size, *count_steps(seconds / step_seconds(timed, mesh) * timed.batch_size, _MAX_STEPS))


def _candidate_sizes(settings: PretrainingSettings, flag_keys: Collection[str]) -> list[dict[str, int]]:
    """Returns the fields of config.model for each size to choose from. {} stands for the size in the config."""
    if settings.architecture_from != 'budget' or {f'model.{key}' for key in BUDGET_SIZE} & {*flag_keys}:
        return [{}]
    mlp_dim = gated_width if settings.model.mlp in GATED_MLPS else lambda width: 4 * width
    return [
        {'num_layers': layers, 'width': width, 'num_heads': heads, 'mlp_dim': mlp_dim(width)}
        for layers, width, heads in SIZES
    ]


def choose_batch_size(rows: int, sequences: float, seq_len: int, mesh: Mesh, max_steps: int) -> int:
    """Returns the batch size of a run that has time for `sequences` rows of `seq_len` positions.

    The batch size starts at `rows` and doubles while the run would have more than `max_steps` steps. Doubling stops at
    32,768 positions on a CPU, and at 16,384 positions per row shard on other devices.
    """
    limit = _MAX_CPU_POSITIONS if is_cpu(mesh) else row_shards(mesh) * _MAX_DEVICE_POSITIONS
    while sequences > max_steps * rows and 2 * rows * seq_len <= limit:
        rows *= 2
    return rows


def split_batch(
    settings: PretrainingSettings, plan: BudgetPlan, mesh: Mesh, flag_keys: Collection[str], recorded: int | None = None
) -> PretrainingSettings:
    """Returns the settings with grad_accum_steps chosen for the batch of the plan, unless the user has set the key.

    The value changes only with config.architecture_from='budget'. A run that resumes on another machine keeps its value
    `recorded` if the row shards allow it. Otherwise, a part of the batch on a CPU has, if possible, at most 2,048
    positions per row shard, the fastest size for 4 layers of width 256 (docs/results/batch.json).
    """
    if settings.architecture_from != 'budget' or settings.grad_accum_steps > 1 or 'grad_accum_steps' in flag_keys:
        return settings
    rows, parts, shards = plan.batch_size or settings.batch_size, 1, row_shards(mesh)
    positions = rows * settings.first_shape[0]
    while is_cpu(mesh) and positions > parts * shards * _CPU_PART_POSITIONS and rows % (2 * parts * shards) == 0:
        parts *= 2
    if recorded and recorded != parts and rows % (recorded * shards) == 0:
        print(f'the run keeps grad_accum_steps={recorded}; this machine would choose {parts}')
        parts = recorded
    return dataclasses.replace(settings, grad_accum_steps=parts)


def step_seconds(settings: PretrainingSettings, mesh: Mesh) -> float:
    """Measures the seconds of a train step of the first phase, with a vocabulary of config.vocab.size pieces.

    Raises a UserError if the model does not fit the devices, or the row shards do not divide the batch.
    """
    settings.check_devices(mesh)
    phase = settings.resolve_phases(settings.steps)[0]
    setup = build_pretraining_setup(settings, settings.model_config(settings.vocab.size), mesh)
    return time_phase(setup, phase, phase.batches)


def product_rate(mesh: Mesh, dtype: str) -> float:
    """Measures the FLOPs per second of a large matrix product on one device, and scales them to the whole mesh."""
    # On an H200 the smaller product takes 0.1 ms, most of which is the call.
    rows, width = (4096, 1024) if is_cpu(mesh) else (8192, 8192)
    with jax.default_device(mesh.local_devices[0]):
        left, right = jnp.ones((rows, width), dtype), jnp.ones((width, width), dtype)
        # The model also uses `dot` on CPUs, where `jnp.matmul` is slow with bfloat16.
        product = jax.jit(functools.partial(dot, x_dims=(1,), y_dims=(0,))).lower(left, right).compile()
        times = []
        for _ in range(8):
            start = time.perf_counter()
            product(left, right).block_until_ready()
            times.append(time.perf_counter() - start)
    # Several CPU devices share the same cores.
    count = 1 if is_cpu(mesh) else mesh.size
    return count * 2 * rows * width * width / min(times)
