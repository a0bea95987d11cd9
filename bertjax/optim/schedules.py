"""Learning rate schedules, as functions of the step of a run."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from bertjax.errors import UserError

# {decay of 'wsd': (passed fraction of the decay) -> learning rate as a fraction of the peak}.
DECAYS: dict[str, Callable[[jax.Array], jax.Array]] = {
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


class Schedule(struct.PyTreeNode):
    """A learning rate schedule, whose arrays are arguments of the compiled train step.

    Attributes:
      peak: float32, the highest learning rate.
      first_step: int32, the number of steps of the run before the schedule.
      steps: float32, the length of the schedule in steps.
      warmup_steps: float32, the length of the warm-up in steps.
      decay_steps: float32, the length of the decay of 'wsd' in steps.
      name, power, decay: See `make_schedule`.
    """

    peak: jax.Array
    first_step: jax.Array
    steps: jax.Array
    warmup_steps: jax.Array
    decay_steps: jax.Array
    name: str = struct.field(pytree_node=False)
    power: float = struct.field(pytree_node=False)
    decay: str = struct.field(pytree_node=False)

    def __call__(self, step: jax.Array) -> jax.Array:
        """Computes the learning rate, a float32 scalar. `step` is the number of finished steps of the run, int32."""
        step = jnp.asarray(step - self.first_step, jnp.float32)
        warmup = step / jnp.maximum(self.warmup_steps, 1)
        share = jnp.where(step < self.warmup_steps, warmup, self._after_warmup(step))
        return self.peak * (1 + share * 31) / 32 if self.name == 'slanted_triangular' else self.peak * share

    def _after_warmup(self, step: jax.Array) -> jax.Array:
        if self.name == 'wsd':
            passed = (step - (self.steps - self.decay_steps)) / self.decay_steps
            return DECAYS[self.decay](jnp.clip(passed, 0.0, 1.0))
        remaining = (self.steps - step) / jnp.maximum(self.steps - self.warmup_steps, 1)
        return _AFTER_WARMUP[self.name](jnp.clip(remaining, 0.0, 1.0), self.power)


def check_schedule(
    name: str,
    warmup_fraction: float,
    decay_fraction: float,
    *,
    warmup_key: str = 'warmup_fraction',
    decay_key: str = 'schedule.decay_fraction',
) -> None:
    """Raises a UserError for config.DECAY_KEY if the warm-up and the decay of 'wsd' overlap; see `make_schedule`."""
    if name == 'wsd' and warmup_fraction + decay_fraction > 1:
        found = f'{decay_fraction:g} with config.{warmup_key}={warmup_fraction:g}'
        fix = 'lower one of them: the two fractions of a phase must add up to at most 1'
        raise UserError(f'config.{decay_key}', found, f'at most {1 - warmup_fraction:g}', fix)


def make_schedule(
    name: str,
    *,
    peak: float | np.ndarray,
    steps: int,
    warmup_fraction: float,
    power: float = 1.0,
    decay: str = 'sqrt',
    decay_fraction: float = 0.1,
    first_step: int = 0,
) -> Schedule:
    """Builds a schedule: a linear warm-up from 0 to `peak`, then a decay to 0 at the end. 'constant' does not decay.

    Except for 'wsd', the decay starts at the end of the warm-up, from `peak`, as in transformers. In the original code
    (google-research/bert, optimization.py) and in NVIDIA's LAMB scripts, the decay starts at step 0, so the rate drops
    to `peak * (1 - warmup_fraction) ** power` at the end of the warm-up.

    'slanted_triangular' is equation 3 of ULMFiT (arXiv 1801.06146). It starts and ends at `peak / 32` instead of 0, and
    `warmup_fraction` is the paper's `cut_frac`. 'wsd' (warm-up, stable, decay; arXiv 2404.06395) stays at `peak` until
    the last `decay_fraction` of the steps. The decay 'sqrt' is equation 3 of arXiv 2405.18392.

    Args:
      name: One of SCHEDULES.
      peak: The highest learning rate; an array for several runs that are trained together.
      steps: The length of the phase in steps.
      warmup_fraction: The fraction of `steps` for the warm-up, in [0, 1).
      power: The exponent of 'polynomial' (0.5 in configs/pretrain_large_lamb.py).
      decay: The decay of 'wsd', one of DECAYS.
      decay_fraction: The fraction of `steps` for the decay of 'wsd', in [0, 1].
      first_step: The number of steps of the run before the schedule.
    """
    warmup, decay_steps = round(warmup_fraction * steps), max(round(decay_fraction * steps), 1)
    peak, *lengths = (np.float32(x) for x in np.broadcast_arrays(peak, steps, warmup, decay_steps))
    return Schedule(peak, np.full_like(peak, first_step, np.int32), *lengths, name, power, decay)
