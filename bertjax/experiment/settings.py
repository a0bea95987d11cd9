"""What the settings of a pre-training and of a fine-tuning have in common, and the checks that both need."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax.config import duration, plain
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.optim.schedules import make_schedule

RNG_IMPLS = ('threefry2x32', 'rbg', 'unsafe_rbg')


@dataclasses.dataclass(frozen=True)
class Seeds:
    """Of what a run draws: fresh parameters, the order of its data, dropout. Each from 0 to 2³² - 1."""

    init: int
    data: int
    dropout: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The keys of bertjax/recipe.py that every training has; where no more is said, the attribute is the key.

    Attributes:
      optimizer: keyword arguments of `optim.optimizers.make_optimizer`.
      schedule: config.schedule.name.
      power: config.schedule.power.
      eval_every, checkpoint_every: durations, see `resolve_durations`.
      step: the checkpoint that verbs about a finished run take; 0 for none in particular.
      mesh: sizes by axis, see `parallel.mesh.make_mesh`.
      recorded: the whole config in plain form, for config.json and the checkpoints.
    """

    run: str
    data: str
    init: str
    tokenizer: str
    seeds: Seeds
    rng_impl: str
    optimizer: Mapping[str, Any]
    learning_rate: float
    warmup_fraction: float
    schedule: str
    power: float
    log_every: int
    eval_every: int | str
    checkpoint_every: int | str
    checkpoint_keep: int
    step: int
    mesh: Mapping[str, int]
    export: bool
    recorded: Mapping[str, Any]


def shared_settings(config: ConfigDict) -> dict[str, Any]:
    """The arguments of RunSettings.

    Raises:
      UserError: a value that cannot be, with its key.
    """
    if config.rng_impl not in RNG_IMPLS:
        known = ', '.join(RNG_IMPLS)
        raise UserError('config.rng_impl', repr(config.rng_impl), f'one of {known}', 'choose one of them')
    if config.log_every < 1:
        raise UserError('config.log_every', str(config.log_every), 'at least 1', 'for example --config.log_every=10')
    names = ('run', 'data', 'init', 'tokenizer', 'rng_impl', 'learning_rate', 'warmup_fraction', 'log_every')
    names += ('eval_every', 'checkpoint_every', 'checkpoint_keep', 'step', 'export')
    if config.step < 0:
        raise UserError('config.step', str(config.step), 'a step that was saved, or 0', 'for example --config.step=0')
    return {
        **{name: config[name] for name in names},
        'seeds': resolve_seeds(config.seed, config.seeds),
        'optimizer': dict(config.optimizer),
        'schedule': config.schedule.name,
        'power': config.schedule.power,
        'mesh': dict(config.mesh),
        'recorded': plain(config),
    }


def resolve_seeds(seed: int, own: Mapping[str, int]) -> Seeds:
    """config.seeds, each of which is (below 0) the run's `seed`."""
    seeds = {name: seed if value < 0 else value for name, value in own.items()}
    for value in seeds.values():
        if not 0 <= value < 2**32:
            raise UserError('config.seed', str(value), 'a number from 0 to 4294967295', 'for example --config.seed=1')
    return Seeds(**seeds)


def resolve_durations(settings: RunSettings, total: int, steps_per_epoch: float | None = None) -> dict[str, int]:
    """`eval_every` and `checkpoint_every` in steps, of a run of `total` steps.

    Raises:
      UserError: what is no duration.
    """
    return {
        key: duration(getattr(settings, key), key, total=total, steps_per_epoch=steps_per_epoch)
        for key in ('eval_every', 'checkpoint_every')
    }


def check_schedule(name: str, warmup_fraction: float) -> None:
    """Raises a UserError where `make_schedule` would."""
    make_schedule(name, peak=1.0, steps=100, warmup_fraction=warmup_fraction)


def check_accumulate(batch_size: int, accumulate: int) -> None:
    """A batch must divide into its parts."""
    if batch_size % accumulate:
        expected = f'a divisor of batch_size = {batch_size}'
        raise UserError('config.accumulate', str(accumulate), expected, 'change one of the two')


def check_mesh(model: BertConfig, mesh: Mesh) -> None:
    """What the mesh splits must be divisible by it."""
    for axis, name, size in (
        ('tensor', 'num_heads', model.num_heads),
        ('tensor', 'mlp_dim', model.mlp_dim),
        ('fsdp', 'width', model.width),
    ):
        if size % mesh.shape[axis]:
            raise UserError(
                f'config.mesh.{axis}',
                str(mesh.shape[axis]),
                f'a divisor of config.model.{name} = {size}, which it splits',
                f'lower config.mesh.{axis}, and leave the other devices to config.mesh.data=-1',
            )


def check_row_count(batch_size: int, accumulate: int, row_shards: int) -> None:
    """A batch (a part of it, with accumulation) must divide over the data and fsdp axes of the mesh."""
    rows = batch_size // accumulate
    if rows % row_shards:
        parts = f' / accumulate {accumulate}' if accumulate > 1 else ''
        raise UserError(
            'config.batch_size',
            f'{batch_size}{parts} = {rows} rows on {row_shards} devices (mesh data x fsdp)',
            f'a multiple of {row_shards}',
            f'try {max(rows // row_shards, 1) * row_shards * accumulate}',
        )
