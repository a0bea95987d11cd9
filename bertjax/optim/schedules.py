"""Learning rate schedules, as functions of the step within a phase."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.errors import UserError

Schedule = Callable[[jax.Array], jax.Array]
# {decay of 'wsd': (passed fraction of the decay) -> learning rate as a fraction of the peak}.
DECAYS: dict[str, Schedule] = {
    'sqrt': lambda passed: 1 - jnp.sqrt(passed),
    'linear': lambda passed: 1 - passed,
    'cosine': lambda passed: 0.5 * (1 + jnp.cos(jnp.pi * passed)),
}
# {schedule: (remaining fraction of the steps after the warm-up, power) -> learning rate as a fraction of the peak}.
_AFTER_WARMUP: dict[str, Callable[[jax.Array, float], jax.Array]] = {
    'linear': lambda remaining, power: remaining,
    'polynomial': lambda remaining, power: remaining**power,
    'cosine': lambda remaining, power: DECAYS['cosine'](1 - remaining),
    'constant': lambda remaining, power: jnp.ones_like(remaining),
    'slanted_triangular': lambda remaining, power: remaining,
}
SCHEDULES = (*_AFTER_WARMUP, 'wsd')


def check_schedule(
    name: str,
    warmup_fraction: float,
    decay_fraction: float,
    *,
    warmup_key: str = 'warmup_fraction',
    decay_key: str = 'schedule.decay_fraction',
) -> None:
    """Checks that the warm-up and the decay of 'wsd' do not overlap.

    Args:
      name, warmup_fraction, decay_fraction: See `make_schedule`.
      warmup_key, decay_key: The config keys of the two fractions.

    Raises:
      UserError: They overlap. The error names `decay_key`.
    """
    if name == 'wsd' and warmup_fraction + decay_fraction > 1:
        found = f'{decay_fraction:g} with config.{warmup_key}={warmup_fraction:g}'
        fix = 'lower one of them: the two fractions of a phase must add up to at most 1'
        raise UserError(f'config.{decay_key}', found, f'at most {1 - warmup_fraction:g}', fix)


def make_schedule(
    name: str,
    *,
    peak: float | jax.Array,
    steps: int,
    warmup_fraction: float,
    power: float = 1.0,
    decay: str = 'sqrt',
    decay_fraction: float = 0.1,
) -> Schedule:
    """Builds a schedule: linear warm-up from 0 to `peak`, then a decay to 0 at `steps`. 'constant' does not decay.

    Except for 'wsd', the decay starts at the end of the warm-up, from `peak`, as in transformers. In the original code
    (google-research/bert, optimization.py) and in NVIDIA's LAMB scripts, the decay starts at step 0, so the rate drops
    to `peak * (1 - warmup_fraction) ** power` at the end of the warm-up.

    'slanted_triangular' is equation 3 of ULMFiT (arXiv 1801.06146). It starts and ends at `peak / 32` instead of 0, and
    `warmup_fraction` is the paper's `cut_frac`.

    'wsd' (warm-up, stable, decay; arXiv 2404.06395) stays at `peak` until the last `decay_fraction` of the steps. The
    decay 'sqrt' is equation 3 of arXiv 2405.18392.

    Args:
      name: One of SCHEDULES.
      peak: The highest learning rate.
      steps: The length of the phase in steps.
      warmup_fraction: The fraction of `steps` for the warm-up, in [0, 1).
      power: The exponent of 'polynomial' (0.5 in configs/pretrain_large_lamb.py).
      decay: The decay of 'wsd', one of DECAYS.
      decay_fraction: The fraction of `steps` for the decay of 'wsd', in [0, 1].

    Returns:
      step (int32 scalar, 0 for the first update) -> learning rate (float32 scalar).
    """
    warmup = round(warmup_fraction * steps)

    def after_warmup(step: jax.Array) -> jax.Array:
        if name == 'wsd':
            decay_steps = max(round(decay_fraction * steps), 1)
            return DECAYS[decay](jnp.clip((step - (steps - decay_steps)) / decay_steps, 0.0, 1.0))
        return _AFTER_WARMUP[name](jnp.clip((steps - step) / max(steps - warmup, 1), 0.0, 1.0), power)

    def rate(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        share = jnp.where(step < warmup, step / max(warmup, 1), after_warmup(step))
        return peak * (1 + share * 31) / 32 if name == 'slanted_triangular' else peak * share

    return rate
