"""A pre-training with config.budget: its size and its steps follow from the time or the operations that it may take.

The learning rate warms up, stays constant, and decays to 0 (the schedule 'wsd'), one phase each. A budget in
operations fixes the steps of all three. A budget in time ends the second phase by the clock; the steps of the decay
follow from the step rate of the run so far. What the clock decides is written to WORKDIR/budget.json: with
config.replay another run repeats it, to the same bits.
"""

import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config.pretraining import PhaseKeys
from bertjax.config.ranges import COUNT, in_steps, parse_budget
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.model.config import DTYPES, GATED_MLPS, train_flops_per_sequence
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.remote.paths import user_path
from bertjax.train.health.goodput import read_goodput
from bertjax.train.health.goodput_clock import DATA, SAVE, STEP
from bertjax.train.time_limit import TimeLimit

FILE = 'budget.json'  # in a workdir
# (layers, width, heads) of the sizes to choose from; the width of a gated MLP is 8/3 of the width.
SIZES = (
    (2, 128, 2), (3, 192, 3), (4, 256, 4), (6, 320, 5), (6, 384, 6), (8, 512, 8), (12, 640, 10), (12, 768, 12),
    (22, 768, 12),
)  # fmt: skip
_SIZE_KEYS = ('num_layers', 'width', 'num_heads', 'mlp_dim')
# How many times as fast as float32 the products of a dtype must be for it to be chosen.
_LEAST_GAIN = {'float32': 1.0, 'bfloat16': 1.4}
# The part of the speed of a large matrix product that a training step reaches, and the constants of `expected_loss`.
# They are assumed, not fitted: they only decide the size, and the clock corrects the steps.
_EFFICIENCY = 0.4
_FLOOR, _OF_PARAMETERS, _PARAMETERS_POWER, _OF_TOKENS, _TOKENS_POWER = 1.0, 60.0, 0.28, 190.0, 0.28
_WARMED_UP = 0.9999  # a phase that only warms up; a share of 1 is not allowed
_OPEN = 1000  # a phase that ends by the clock is this many times as long as the estimate


def expected_loss(parameters: float, tokens: float) -> float:
    """Returns a held-out MLM loss in nats per piece, of which only the order matters: it compares sizes.

    The form is that of arXiv 2203.15556, equation 2; the constants are assumed.

    Args:
      parameters: The number of parameters, see `inner_parameters`.
      tokens: The number of trained positions.
    """
    return _FLOOR + _OF_PARAMETERS / parameters**_PARAMETERS_POWER + _OF_TOKENS / tokens**_TOKENS_POWER


def gated_width(width: int) -> int:
    """Returns the width of a gated MLP: 8/3 of the width, rounded up to a multiple of 32."""
    return -(-round(8 / 3 * width) // 32) * 32


def inner_parameters(layers: int, width: int) -> int:
    """Returns the number of parameters of the matrices of all blocks, with gated MLPs."""
    return layers * (4 * width * width + 3 * width * gated_width(width))


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a budget has decided.

    Attributes:
      budget: The value of config.budget.
      model: Size and dtype of the model, {key of config.model: value}, without those that the config sets.
      estimate: The estimated number of steps of the run.
      warmup, stable, decay: The steps of the three phases; None if the clock has not decided yet.
    """

    budget: str
    model: dict[str, Any]
    estimate: int
    warmup: int
    stable: int | None = None
    decay: int | None = None

    def apply(self, settings: PretrainingSettings) -> PretrainingSettings:
        """Returns the settings with the size, the phases and the steps of this plan."""
        constant = {'schedule': 'wsd', 'decay_fraction': 0.0, 'final_mask_rate': settings.masking.rate}
        lengths = (self.warmup, self.stable or min(_OPEN * self.estimate, COUNT // 2), self.decay or self.estimate)
        values: tuple[dict[str, Any], ...] = (
            {**constant, 'warmup_fraction': _WARMED_UP},
            {**constant, 'warmup_fraction': 0.0},
            {'schedule': 'wsd', 'decay_fraction': 1.0, 'warmup_fraction': 0.0},
        )
        intervals = {name: getattr(settings, name) for name in ('eval_every', 'checkpoint_every')}
        return dataclasses.replace(
            settings,
            model=dataclasses.replace(settings.model, **self.model),
            steps=sum(lengths),
            phases=tuple(PhaseKeys(steps=steps, **each) for steps, each in zip(lengths, values, strict=True)),
            **{name: in_steps(value, name, total=self.estimate) for name, value in intervals.items()},
        )

    def describe(self, settings: PretrainingSettings) -> str:
        """Returns a line about the size and the steps."""
        model = self.apply(settings).model
        size = f'{model.num_layers} layers of width {model.width} in {model.dtype}'
        return (
            f'budget {self.budget}: {size}, about {self.estimate:,} steps '
            f'of {settings.batch_size} x {settings.seq_len}: '
            f'{self.warmup:,} to warm up, the last {settings.schedule.decay_fraction:.0%} to decay'
        )

    def time_limit(self, settings: PretrainingSettings) -> TimeLimit | None:
        """Returns the limit that ends the second phase; None for a budget in operations."""
        seconds, _ = parse_budget(self.budget)
        if seconds == math.inf:
            return None
        if self.stable is not None:
            return TimeLimit(seconds)
        ends = (1 - settings.schedule.decay_fraction) * seconds
        return TimeLimit(seconds, phase=1, ends=ends)

    def decide(self, folder: pathlib.Path, step: int, elapsed: float) -> None:
        """Saves the plan of a run whose second phase ended at `step`, after `elapsed` seconds."""
        seconds, _ = parse_budget(self.budget)
        goodput = read_goodput(folder)
        assert goodput is not None
        per_step = sum(goodput.seconds.get(kind, 0.0) for kind in (STEP, DATA, SAVE)) / step
        decay = max(round((seconds - elapsed) / per_step), 1)
        dataclasses.replace(self, stable=step - self.warmup, decay=decay).save(folder)

    def save(self, folder: pathlib.Path) -> 'Plan':
        """Writes the plan to a workdir and returns it."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / FILE, json.dumps(dataclasses.asdict(self), indent=1) + '\n')
        return self


def make_plan(settings: PretrainingSettings, folder: pathlib.Path, mesh: Mesh, flag_keys: Collection[str]) -> Plan:
    """Returns the plan of a run: of its workdir, of the run in config.replay, or a new one; also saves it.

    Args:
      settings: The settings of the run.
      folder: The workdir.
      mesh: The devices.
      flag_keys: The config keys that flags set.

    Raises:
      UserError: The budget does not fit other keys, or the workdir has a run with another budget.
    """
    _check(settings, flag_keys)
    plan = _read(folder / FILE)
    if plan is None and settings.replay:
        source = user_path(settings.replay, 'config.replay') / FILE
        plan = _read(source)
        if plan is None or plan.decay is None:
            found = 'no such file' if plan is None else 'a run that the clock has not ended'
            raise UserError(str(source), found, 'the decisions of a finished run', 'give the workdir of such a run')
        plan = plan.save(folder)
    if plan is None:
        plan = _new_plan(settings, mesh, flag_keys)
        plan = plan.save(folder)
    if plan.budget != settings.budget:
        fix = f'set --config.budget={plan.budget}, or give another --workdir'
        raise UserError('config.budget', repr(settings.budget), f'{plan.budget}, as in {folder / FILE}', fix)
    return plan


def _check(settings: PretrainingSettings, flag_keys: Collection[str]) -> None:
    if settings.schedule.name != 'wsd' or not 0 < settings.schedule.decay_fraction < 1:
        found = f'{settings.schedule.name!r} with decay_fraction={settings.schedule.decay_fraction:g}'
        fix = 'set --config.schedule.name=wsd --config.schedule.decay_fraction=0.5'
        raise UserError('config.schedule.name', found, "'wsd' with a decay, because of config.budget", fix)
    for key, unset in (('phases', ()), ('epochs', 0.0)):
        if getattr(settings, key) != unset:
            raise UserError(f'config.{key}', 'a value', 'none, because of config.budget', 'leave one of the two out')
    if 'steps' in flag_keys:
        raise UserError('config.steps', 'a value', 'none, because of config.budget', 'leave one of the two out')


def _read(path: pathlib.Path) -> Plan | None:
    return read_json_or_none(path, lambda facts: Plan(**facts))


def _new_plan(settings: PretrainingSettings, mesh: Mesh, flag_keys: Collection[str]) -> Plan:
    seconds, operations = parse_budget(settings.budget)
    chosen: dict[str, Any] = {}
    if settings.architecture_from == 'budget' and 'model.dtype' not in flag_keys:
        chosen['dtype'] = max(DTYPES, key=lambda dtype: product_rate(mesh, dtype) / _LEAST_GAIN[dtype])
    if operations == math.inf:
        operations = _EFFICIENCY * seconds * product_rate(mesh, chosen.get('dtype', settings.model.dtype))
    sizes: list[dict[str, int]] = [{}]
    if settings.architecture_from == 'budget' and not {f'model.{key}' for key in _SIZE_KEYS} & {*flag_keys}:
        mlp_dim = gated_width if settings.model.mlp in GATED_MLPS else lambda width: 4 * width
        sizes = [
            {'num_layers': layers, 'width': width, 'num_heads': heads, 'mlp_dim': mlp_dim(width)}
            for layers, width, heads in SIZES
        ]
    length, predictions = settings.first_shape
    plans = {}  # by expected loss
    for size in sizes:
        model = dataclasses.replace(settings.model, **size)
        config = dataclasses.replace(settings, model=model).model_config(settings.vocab.size)
        steps = operations / (settings.batch_size * train_flops_per_sequence(config, length, predictions))
        inner = inner_parameters(config.num_layers, config.width)
        loss = expected_loss(inner, max(steps * settings.batch_size * length, 1))
        estimate = max(round(steps), 3)
        warmup = max(round(settings.warmup_fraction * estimate), 1)
        plans[loss] = Plan(settings.budget, size | chosen, estimate, warmup)
    plan = plans[min(plans)]
    if seconds < math.inf:
        return plan
    decay = max(round(settings.schedule.decay_fraction * plan.estimate), 1)
    return dataclasses.replace(plan, stable=max(plan.estimate - plan.warmup - decay, 1), decay=decay)


def product_rate(mesh: Mesh, dtype: str) -> float:
    """Measures the floating-point operations a second of a large matrix product, summed over the devices of a mesh."""
    rows, width = 4096, 1024
    with jax.default_device(mesh.local_devices[0]):
        left, right = jnp.ones((rows, width), dtype), jnp.ones((width, width), dtype)
        product = jax.jit(jnp.matmul).lower(left, right).compile()
        times = []
        for _ in range(8):
            start = time.perf_counter()
            product(left, right).block_until_ready()
            times.append(time.perf_counter() - start)
    # The devices of a CPU share its cores.
    count = 1 if mesh.local_devices[0].platform == 'cpu' else mesh.size
    return count * 2 * rows * width * width / min(times)
