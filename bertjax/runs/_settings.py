"""From the ConfigDict to frozen records: model, optimiser, phases, seeds, pair and mask rules."""

import dataclasses
from typing import Any

from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax.config import duration
from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.recipe import INHERITED
from bertjax.recipe import phase as phase_entry

RNG_IMPLS = ('threefry2x32', 'rbg', 'unsafe_rbg')


@dataclasses.dataclass(frozen=True)
class PhaseSettings:
    """One phase with every value resolved; steps are the run's, from `first_step` to before `last_step`."""

    number: int
    first_step: int
    last_step: int
    seq_len: int
    max_predictions: int
    batch_size: int
    accumulate: int
    learning_rate: float
    warmup_fraction: float
    schedule: str
    reset_optimizer: bool


def model_config(config: ConfigDict, vocab_size: int) -> BertConfig:
    """The model of a config with a vocabulary of `vocab_size` pieces."""
    model = BertConfig(vocab_size=vocab_size, nsp=config.pairs.mode in ('nsp', 'sop'), **config.model)
    for key, length in _lengths(config):
        if length > model.max_positions:
            raise UserError(
                f'config.{key}',
                str(length),
                f'at most config.model.max_positions = {model.max_positions}',
                f'lower it, or set --config.model.max_positions={length}',
            )
    return model


def _lengths(config: ConfigDict) -> list[tuple[str, int]]:
    named = [(f'phases[{i}].seq_len', phase.seq_len or config.seq_len) for i, phase in enumerate(config.phases)]
    return named or [('seq_len', config.seq_len)]


def pair_options(config: ConfigDict) -> PairOptions:
    """config.pairs and config.pair_plans."""
    return PairOptions(plans=config.pair_plans, **config.pairs)


def mask_options(config: ConfigDict) -> MaskOptions:
    """config.masking."""
    return MaskOptions(**config.masking)


def seed_of(config: ConfigDict, name: str) -> int:
    """The seed for 'init', 'data' or 'dropout': its own, or (below 0) the run's."""
    own = config.seeds[name]
    seed = config.seed if own < 0 else own
    if not 0 <= seed < 2**32:
        raise UserError('config.seed', str(seed), 'a number from 0 to 4294967295', 'for example --config.seed=1')
    return seed


def rng_impl(config: ConfigDict) -> str:
    """config.rng_impl, checked."""
    if config.rng_impl not in RNG_IMPLS:
        known = ', '.join(RNG_IMPLS)
        raise UserError('config.rng_impl', repr(config.rng_impl), f'one of {known}', 'choose one of them')
    return config.rng_impl


def total_steps(config: ConfigDict, examples_per_epoch: int | None) -> int:
    """Length of the run; `examples_per_epoch` is None where no corpus is at hand (run=compile)."""
    batch_size = (config.phases[0].batch_size if config.phases else 0) or config.batch_size
    per_epoch = examples_per_epoch / max(batch_size, 1) if examples_per_epoch else None
    if config.epochs > 0:
        if per_epoch is None:
            raise UserError('config.epochs', str(config.epochs), 'config.steps where no corpus is read', 'set steps')
        steps = duration(f'{config.epochs} epochs', 'epochs', steps_per_epoch=per_epoch)
    else:
        steps = duration(config.steps, 'steps', steps_per_epoch=per_epoch)
    if steps < 1:
        raise UserError('config.steps', str(config.steps), 'at least 1 step', 'for example --config.steps=1000')
    return steps


def phases(config: ConfigDict, total: int) -> list[PhaseSettings]:
    """config.phases resolved against the run's own values; one phase where there are none."""
    given = list(config.phases) or [phase_entry(steps=total)]
    _check_phase_keys(given)
    lengths = [duration(phase.steps, f'phases[{i}].steps', total=total) for i, phase in enumerate(given)]
    if all(str(phase.steps).endswith('%') for phase in given):
        shares = sum(float(str(phase.steps)[:-1]) for phase in given)
        if abs(shares - 100) > 0.01:
            raise UserError('config.phases', f'{shares:g}% of the steps', '100% over all phases', 'correct their steps')
        lengths[-1] = total - sum(lengths[:-1])  # what rounding left
    if sum(lengths) != total:
        raise UserError(
            'config.phases',
            f'{" + ".join(map(str, lengths))} = {sum(lengths)} steps',
            f'config.steps = {total}',
            'give the phases in percent, or make the two agree',
        )
    resolved, first = [], 0
    for number, (phase, length) in enumerate(zip(given, lengths, strict=True)):
        own = {**{key: config[key] for key in INHERITED}, 'schedule': config.schedule.name}
        values: dict[str, Any] = {k: own[k] if phase[k] == unset else phase[k] for k, unset in INHERITED.items()}
        resolved.append(
            PhaseSettings(
                number=number,
                first_step=first,
                last_step=first + length,
                reset_optimizer=phase.reset_optimizer,
                **values,
            )
        )
        first += length
    for phase in resolved:
        _check_phase(phase)
    return resolved


def _check_phase_keys(given: list[ConfigDict]) -> None:
    known = {*INHERITED, 'steps', 'reset_optimizer'}
    for i, phase in enumerate(given):
        for key in phase:
            if key not in known:
                raise UserError(f'config.phases[{i}].{key}', 'an unknown key', ', '.join(sorted(known)), 'correct it')


def _check_phase(phase: PhaseSettings) -> None:
    for key, least in (('batch_size', 1), ('accumulate', 1), ('seq_len', 8), ('max_predictions', 1)):
        if getattr(phase, key) < least:
            raise UserError(f'config.{key}', str(getattr(phase, key)), f'at least {least}', f'raise config.{key}')
    if phase.batch_size % phase.accumulate:
        raise UserError(
            'config.accumulate',
            str(phase.accumulate),
            f'a divisor of batch_size = {phase.batch_size}',
            'change one of the two',
        )
    if not phase.learning_rate > 0:
        raise UserError('config.learning_rate', str(phase.learning_rate), 'a number above 0', 'for example 1e-4')


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


def check_rows(phase: PhaseSettings, row_shards: int) -> None:
    """A batch (a part of it, with accumulation) must divide over the data and fsdp axes of the mesh."""
    check_row_count(phase.batch_size, phase.accumulate, row_shards)


def check_row_count(batch_size: int, accumulate: int, row_shards: int) -> None:
    """See `check_rows`."""
    rows = batch_size // accumulate
    if rows % row_shards:
        parts = f' / accumulate {accumulate}' if accumulate > 1 else ''
        raise UserError(
            'config.batch_size',
            f'{batch_size}{parts} = {rows} rows on {row_shards} devices (mesh data x fsdp)',
            f'a multiple of {row_shards}',
            f'try {max(rows // row_shards, 1) * row_shards * accumulate}',
        )
