"""Learning-rate schedules: functions of the step within a phase, counted from 0."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bertjax.errors import UserError

Schedule = Callable[[jax.Array], jax.Array]
SCHEDULES = ('linear', 'polynomial', 'cosine', 'constant', 'slanted_triangular')


def make_schedule(
    name: str, *, peak: float | jax.Array, steps: int, warmup_fraction: float, power: float = 1.0
) -> Schedule:
    """Linear warm-up from 0 to `peak` over `warmup_fraction` of `steps`, then the named decay to 0 at `steps`.

    The decay starts at the end of the warm-up and is continuous there, as in transformers. google-research/bert
    (optimization.py) and NVIDIA's LAMB scripts decay from step 0 on, so that the rate drops where the warm-up ends; the
    highest rate they use is `peak * (1 - warmup_fraction) ** power`.

    `slanted_triangular` is equation 3 of ULMFiT (arXiv 1801.06146), with its ratio of 32 between the highest and the
    lowest rate and `warmup_fraction` for its `cut_frac`.

    Args:
      name: one of SCHEDULES.
      peak: the highest learning rate.
      steps: length of the phase in steps.
      warmup_fraction: share of `steps` in [0, 1).
      power: exponent of 'polynomial' (LAMB's recipe: 0.5).

    Returns:
      step (int32 scalar, 0 for the first update) -> learning rate (float32 scalar).
    """
    if name not in SCHEDULES:
        raise UserError('config.schedule.name', repr(name), 'one of ' + ', '.join(SCHEDULES), 'choose one of them')
    if not 0 <= warmup_fraction < 1:
        raise UserError('config.warmup_fraction', str(warmup_fraction), 'a share from 0 to below 1', 'try 0.01')
    warmup = round(warmup_fraction * steps)

    def rate(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step, jnp.float32)
        left = jnp.clip((steps - step) / max(steps - warmup, 1), 0.0, 1.0)  # 1 where the warm-up ends, 0 at the end
        rising = step / max(warmup, 1)
        if name == 'slanted_triangular':
            share = jnp.where(step < warmup, rising, left)
            return peak * (1 + share * 31) / 32
        decay = {
            'linear': left,
            'polynomial': left**power,
            'cosine': 0.5 * (1 + jnp.cos(jnp.pi * (1 - left))),
            'constant': jnp.ones_like(left),
        }[name]
        return peak * jnp.where(step < warmup, rising, decay)

    return rate
