"""The examples and states of runs that train together by vmap. The runs differ only in seeds and learning rate."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.loader import Examples
from bertjax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class VmappedRun:
    """The values of one run: its examples (from its data seed), its learning rate and its dropout seed."""

    examples: Examples
    learning_rate: float
    dropout_seed: int


class StackedExamples:
    """The examples of several runs, stacked along the second axis."""

    def __init__(self, examples: Sequence[Examples]):
        self._examples = examples

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns arrays [B, M, ...] with the examples `indices`, int64 [B], of all M runs."""
        parts = [one.batch(indices) for one in self._examples]
        return {name: np.stack([part[name] for part in parts], axis=1) for name in parts[0]}


def stack_states(states: Sequence[TrainState]) -> TrainState:
    """Stacks states along a new first axis of each leaf."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def select_run(tree: Any, member: int) -> Any:
    """Selects the run `member` from a tree. The runs are along the first axis of each leaf."""
    return jax.tree.map(lambda x: x[member], tree)


def stacked_template(state: TrainState, members: int) -> TrainState:
    """Returns the abstract state of several runs, stacked along a new first axis, which is not sharded."""

    def stacked(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        spec = jax.sharding.PartitionSpec(None, *x.sharding.spec)
        return x.update(shape=(members, *x.shape), sharding=x.sharding.update(spec=spec))

    return jax.tree.map(stacked, state)
