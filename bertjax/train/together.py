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
from bertjax.parallel.partition import batch_sharding, replicated
from bertjax.train.record import READ_BEHIND, STOP_AFTER_SKIPPED
from bertjax.train.state import TrainState

# (state, batch, learning rate, dropout seed) -> (state, metrics). The state is donated. Of M members together, all
# have the members along the first axis, the batch along the second.
Step = Callable[[TrainState, Mapping[str, jax.Array], jax.Array, jax.Array], tuple[TrainState, Any]]


@dataclasses.dataclass(frozen=True)
class Member:
    """What is a run's own: its examples (of its data seed), its learning rate, the seed of its dropout."""

    examples: BucketedExamples
    learning_rate: float
    dropout_seed: int


class StackedExamples:
    """The examples of several runs, side by side along the second axis."""

    def __init__(self, examples: Sequence[BucketedExamples]):
        self._examples = examples

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """As of BucketedExamples: [B', M, ...]."""
        parts = [one.batch(indices) for one in self._examples]
        return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}


def stack_states(states: Sequence[TrainState]) -> TrainState:
    """One state whose leaves have the members along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def members_template(state: TrainState, members: int) -> TrainState:
    """The abstract state of so many runs: the members are a first axis that no device splits."""

    def stacked(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = jax.sharding.PartitionSpec(None, *x.sharding.spec)
        sharding = jax.sharding.NamedSharding(x.sharding.mesh, spec)
        return jax.ShapeDtypeStruct((members, *x.shape), x.dtype, sharding=sharding)

    return jax.tree.map(stacked, state)


def train_together(
    states: TrainState,
    members: Sequence[Member],
    step: Step,
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
      step: compiled.
      total: steps of every member.
      mesh: that the step was compiled for.
      record: called with (number of the step, scalars [M] each, the sums of each member); some steps late.
      interrupted: whether somebody asked to stop.

    Returns:
      The stacked states at the end; None when interrupted.
    """
    one = replicated(mesh)
    rates = jax.device_put(np.asarray([member.learning_rate for member in members], np.float32), one)
    seeds = jax.device_put(np.asarray([member.dropout_seed for member in members], np.uint32), one)
    batch_size = members[0].examples.batch_size
    examples = StackedExamples([member.examples for member in members])
    loader = Loader(examples, first=0, batch_size=batch_size, sharding=batch_sharding(mesh))
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
            states, metrics = step(states, batch.arrays, rates, seeds)
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
