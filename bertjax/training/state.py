"""The train state, and the functions that create it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.losses import AUX
from bertjax.parallel.partition import state_shardings


class TrainState(struct.PyTreeNode):
    """The state of a training, as saved in a checkpoint.

    Attributes:
      step: int32, the number of batches seen, including skipped batches.
      params: The parameters of the model and, under AUX, of the objective.
      opt_state: The state of the optimizer. Its count is the number of applied updates since the last reset.
      skipped: int32, the number of non-finite steps, which left parameters and optimizer unchanged.
      skipped_in_row: int32, the number of skipped steps since the last applied step.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    skipped: jax.Array
    skipped_in_row: jax.Array

    @property
    def eval_params(self) -> Any:
        """The parameters to evaluate and export."""
        return self.params

    def with_params(self, params: Any) -> 'TrainState':
        """Returns the state with other initial parameters."""
        return self.replace(params=params)


class EmaTrainState(TrainState):
    """A train state with an average of the weights. The class is separate so that other checkpoints have no `ema`.

    Attributes:
      ema: float32, the exponential moving average of the parameters, in their tree and with their shardings.
    """

    ema: Any

    @property
    def eval_params(self) -> Any:
        """The moving average `ema`, which is evaluated and exported instead of `params`."""
        return self.ema

    def with_params(self, params: Any) -> 'EmaTrainState':
        """Returns the state with other initial parameters and average."""
        return self.replace(params=params, ema=start_ema(params))


def start_ema(params: Any) -> Any:
    """Returns the initial average: float32 copies, because a train step donates the parameters and the average."""
    return jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), params)


def update_ema(ema: Any, params: Any, decay: float, updates: jax.Array) -> Any:
    """Updates an average to d ema + (1 - d) params with d = min(decay, (1 + updates) / (10 + updates)).

    d is small at first. With d = 0.999 from the start, the initial weights would still be 37 % of the average after
    1,000 updates. Source: tf.train.ExponentialMovingAverage, `num_updates`.

    Args:
      params: The parameters after the update.
      decay: The highest decay.
      updates: int32 scalar, the number of earlier updates.
    """
    rate = 1 - jnp.minimum(decay, (1.0 + updates) / (10.0 + updates))
    return jax.tree.map(lambda e, p: e + rate * (p - e), ema, params)


def abstract_state(init: Callable[[jax.Array], TrainState], mesh: Mesh) -> TrainState:
    """Computes the shape, dtype and sharding of each leaf, without arrays. Call it within `mesh_context(mesh)`."""
    key = jax.eval_shape(lambda: jax.random.key(0))  # eval_shape does not need the devices
    # Without this sharding, JAX would trace a jitted `init` a second time.
    key = jax.ShapeDtypeStruct(key.shape, key.dtype, sharding=NamedSharding(mesh, PartitionSpec()))
    boxed = jax.eval_shape(init, key)
    shardings = state_shardings(boxed, mesh)
    # nn.unbox would apply sharding constraints, which need arrays.
    is_box = lambda x: isinstance(x, nn.Partitioned)  # noqa: E731
    bare = jax.tree.map(lambda x: x.value if is_box(x) else x, boxed, is_leaf=is_box)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), bare, shardings)


def put_params(params: Mapping[str, Any], abstract: TrainState) -> Any:
    """Puts model parameters (host or device arrays) on the devices, with the dtypes and shardings of `abstract`."""
    return put_like(dict(params), without_aux(abstract.params))


def put_like(tree: Any, abstract: Any) -> Any:
    """Puts host arrays on the devices, with the dtypes and shardings of an abstract tree."""
    return jax.tree.map(lambda x, a: jax.device_put(x.astype(a.dtype), a.sharding), tree, abstract)


def without_aux(params: dict[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the model without those of the objective: `params` itself if it has none."""
    return {name: value for name, value in params.items() if name != AUX} if AUX in params else params


def shardings_of(state: TrainState) -> Any:
    """Returns the sharding of each leaf."""
    return jax.tree.map(lambda x: x.sharding, state)
