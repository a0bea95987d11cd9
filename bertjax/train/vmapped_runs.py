"""Several runs of one shape as one: runs that differ in their seeds and learning rates, side by side on a new axis."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.loader import Examples
from bertjax.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class VmappedRun:
    """What is a run's own: its examples (of its data seed), its learning rate, the seed of its dropout."""

    examples: Examples
    learning_rate: float
    dropout_seed: int


class StackedExamples:
    """The examples of several runs, side by side along the second axis."""

    def __init__(self, examples: Sequence[Examples]):
        self._examples = examples

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """int64 [B] -> arrays [B, M, ...] of the M runs."""
        parts = [one.batch(indices) for one in self._examples]
        return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}


def stack_states(states: Sequence[TrainState]) -> TrainState:
    """One state whose leaves have the members along a new first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def select_run(tree: Any, member: int) -> Any:
    """The part of one member of a tree whose leaves have the members along the first axis."""
    return jax.tree.map(lambda x: x[member], tree)


def stacked_template(state: TrainState, members: int) -> TrainState:
    """The abstract state of so many runs: the members are a first axis that no device splits."""

    def stacked(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = jax.sharding.PartitionSpec(None, *x.sharding.spec)
        sharding = jax.sharding.NamedSharding(x.sharding.mesh, spec)
        return jax.ShapeDtypeStruct((members, *x.shape), x.dtype, sharding=sharding)

    return jax.tree.map(stacked, state)
