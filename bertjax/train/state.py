"""The train state and its creation: shapes, then shardings, then arrays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import struct
from jax.sharding import Mesh

from bertjax.losses import AUX
from bertjax.model.stacking import init_params
from bertjax.optim.trainable import Selection, partition, select_all
from bertjax.parallel.partition import state_shardings

_Box = nn.Partitioned


class TrainState(struct.PyTreeNode):
    """The state of a training, as saved in a checkpoint.

    Attributes:
      step: int32, the number of batches seen, including skipped ones.
      params: The parameters of the model.
      opt_state: The state of the optimiser, whose count is the number of applied updates.
      skipped: int32, the number of steps that were not finite and changed only `step`.
      skipped_in_row: int32, the number of skipped steps since the last applied one.
    """

    step: jax.Array
    params: Any
    opt_state: Any
    skipped: jax.Array
    skipped_in_row: jax.Array


def make_init(
    model: nn.Module,
    optimizer: optax.GradientTransformation,
    inputs: Sequence[jax.ShapeDtypeStruct],
    trained: Selection = select_all,
    init_aux: Callable[[jax.Array], Any] | None = None,
) -> Callable[[jax.Array], TrainState]:
    """Builds a function: key -> fresh state, in boxes with the logical axes.

    Args:
      model: The module.
      optimizer: The optimiser, from optim.make_optimizer.
      inputs: The shapes and dtypes of the model's inputs; their first dimension does not matter.
      trained: Selects the parameters for which the optimiser has moments.
      init_aux: See `losses.Objective`.
    """

    def init(key: jax.Array) -> TrainState:
        params = init_params(model, key, *(jnp.zeros((1, *x.shape[1:]), x.dtype) for x in inputs))
        if init_aux is not None:
            params = {**params, **init_aux_params(init_aux, key)}
        return fresh_state(optimizer, params, trained)

    return init


def init_aux_params(init_aux: Callable[[jax.Array], Any], key: jax.Array) -> dict[str, Any]:
    """Initialises the parameters of the objective for the state with this key: {AUX: parameters}."""
    return {AUX: init_aux(jax.random.fold_in(key, 1))}


def fresh_state(optimizer: optax.GradientTransformation, params: Any, trained: Selection) -> TrainState:
    """Creates the state of step 0 with these parameters; the optimiser has moments for the `trained` ones."""
    trained_params, _ = partition(params, trained)
    zero = jnp.zeros([], jnp.int32)
    return TrainState(zero, params, optimizer.init(trained_params), zero, zero)


def abstract_state(init: Callable[[jax.Array], TrainState], mesh: Mesh) -> TrainState:
    """Computes shape, dtype and sharding of each leaf, without arrays; call it within `mesh_context(mesh)`."""
    boxed = jax.eval_shape(lambda: init(jax.random.key(0)))  # eval_shape: the devices may be absent
    shardings = state_shardings(boxed, mesh)
    # nn.unbox would apply sharding constraints, which needs arrays.
    bare = jax.tree.map(lambda x: x.value if isinstance(x, _Box) else x, boxed, is_leaf=lambda x: isinstance(x, _Box))
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), bare, shardings)


def put_params(params: Mapping[str, Any], abstract: TrainState) -> Any:
    """Puts host arrays on the devices, with the dtypes and shardings of the model parameters in the state."""
    return put_like(dict(params), without_aux(abstract.params))


def put_like(tree: Any, abstract: Any) -> Any:
    """Puts host arrays on the devices, with the dtypes and shardings of an abstract tree."""
    return jax.tree.map(lambda x, a: jax.device_put(x.astype(a.dtype), a.sharding), tree, abstract)


def without_aux(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of the model without those of the objective."""
    return {name: value for name, value in params.items() if name != AUX}


def shardings_of(state: TrainState) -> Any:
    """Returns the sharding of each leaf."""
    return jax.tree.map(lambda x: x.sharding, state)
