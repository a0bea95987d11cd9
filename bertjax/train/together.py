"""Several runs of one shape, trained by one compiled step: runs that differ in their seed and learning rate."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.buckets import BucketedExamples
from bertjax.data.loader import Loader
from bertjax.metrics.rows import add_sums
from bertjax.parallel.partition import batch_sharding
from bertjax.train.record import READ_BEHIND, STOP_AFTER_SKIPPED
from bertjax.train.state import TrainState

# (states, batch, learning rates [M], dropout seeds [M]) -> (states, metrics); all but the batch have the members first.
MembersStep = Callable[[TrainState, Mapping[str, jax.Array], jax.Array, jax.Array], tuple[TrainState, Any]]


@dataclasses.dataclass(frozen=True)
class Member:
    """What is a run's own: its examples (of its data seed), its learning rate, the seed of its dropout."""

    examples: BucketedExamples
    learning_rate: float
    dropout_seed: int


class _Stacked:
    """The examples of all members, side by side along the second axis."""

    def __init__(self, members: Sequence[Member]):
        self._members = members

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        parts = [member.examples.batch(indices) for member in self._members]
        return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}


def stack_states(states: Sequence[TrainState]) -> TrainState:
    """One state whose leaves have the members along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def make_members_step(step_of: Callable[[jax.Array, jax.Array], Callable]) -> MembersStep:
    """The step of all members at once.

    Args:
      step_of: (learning rate, dropout seed) -> the train step of one run; both are traced, so that one compiled step
        serves every learning rate and seed.
    """

    def one(state: TrainState, batch: Mapping[str, jax.Array], rate: jax.Array, seed: jax.Array) -> Any:
        return step_of(rate, seed)(state, batch)

    return jax.vmap(one, in_axes=(0, 1, 0, 0))


def train_together(
    states: TrainState,
    members: Sequence[Member],
    steps: Mapping[int, MembersStep],
    total: int,
    *,
    mesh: jax.sharding.Mesh,
    record: Callable[[int, dict[str, np.ndarray], list[dict[str, tuple[float, float]]]], None],
    interrupted: Callable[[], bool],
) -> TrainState | None:
    """Trains all members for `total` steps.

    A step of a member that is not finite changes nothing of it; the others go on. A member with three in a row has
    failed, which its later figures show.

    Args:
      states: stacked; donated.
      members: in the order of the states.
      steps: the compiled step for each padded length.
      total: steps of every member.
      mesh: that the step was compiled for.
      record: called with (number of the step, scalars [M] each, the sums of each member); some steps late.
      interrupted: whether somebody asked to stop.

    Returns:
      The stacked states at the end; None when interrupted.
    """
    rates = jnp.asarray([member.learning_rate for member in members], jnp.float32)
    seeds = jnp.asarray([member.dropout_seed for member in members], jnp.uint32)
    batch_size = members[0].examples.batch_size
    loader = Loader(_Stacked(members), first=0, batch_size=batch_size, sharding=batch_sharding(mesh))
    unread: list[tuple[int, Any]] = []

    def read() -> None:
        number, metrics = unread.pop(0)
        metrics = jax.device_get(metrics)
        each = [
            add_sums([{name: (value[m], weight[m]) for name, (value, weight) in metrics['sums'].items()}])
            for m in range(len(members))
        ]
        record(number, metrics['scalars'], each)

    try:
        for number in range(1, total + 1):
            batch = next(loader)
            compiled = steps[batch.arrays['input_ids'].shape[-1]]
            states, metrics = compiled(states, batch.arrays, rates, seeds)
            unread.append((number, metrics))
            while len(unread) > READ_BEHIND:
                read()
            if interrupted():
                return None
        while unread:
            read()
    finally:
        loader.close()
    return states


def failed(skipped_in_row: float) -> bool:
    """Whether so many steps in a row without a finite loss end a member's hopes."""
    return skipped_in_row >= STOP_AFTER_SKIPPED
