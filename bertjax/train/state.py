"""What training changes, and how it is created: shapes, then shardings, then arrays."""

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
from bertjax.optim.selection import Selection, partition, select_all
from bertjax.parallel.partition import state_shardings

_Box = nn.Partitioned


class TrainState(struct.PyTreeNode):
    """Everything that a checkpoint holds of the training itself.

    Attributes:
      step: int32, batches seen, skipped ones included.
      params: the model's parameters.
      opt_state: the optimiser's; its count is that of the applied updates.
      skipped: int32, steps that were not finite and changed nothing but `step`.
      skipped_in_row: int32, how many of the most recent steps were skipped.
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
    """key -> fresh state, in boxes that carry the logical axes.

    Args:
      model: takes arrays of the shapes and dtypes `inputs`, whose first dimension does not matter.
      optimizer: from optim.make_optimizer.
      inputs: see `model`.
      trained: the parameters for which the optimiser keeps moments.
      init_aux: see `losses.Objective`.
    """

    def init(key: jax.Array) -> TrainState:
        params = init_params(model, key, *(jnp.zeros((1, *x.shape[1:]), x.dtype) for x in inputs))
        if init_aux is not None:
            params = {**params, **init_aux_params(init_aux, key)}
        return fresh_state(optimizer, params, trained)

    return init


def init_aux_params(init_aux: Callable[[jax.Array], Any], key: jax.Array) -> dict[str, Any]:
    """The parameters of the objective in the state that is drawn with `key`, by their place among the parameters."""
    return {AUX: init_aux(jax.random.fold_in(key, 1))}


def fresh_state(optimizer: optax.GradientTransformation, params: Any, trained: Selection) -> TrainState:
    """Step 0 with these parameters; the optimiser keeps moments of those that `trained` chooses."""
    moving, _ = partition(params, trained)
    zero = jnp.zeros([], jnp.int32)
    return TrainState(zero, params, optimizer.init(moving), zero, zero)


def abstract_state(init: Callable[[jax.Array], TrainState], mesh: Mesh) -> TrainState:
    """Shape, dtype and sharding of each leaf, without computing any; call it within `mesh_context(mesh)`."""
    boxed = jax.eval_shape(lambda: init(jax.random.key(0)))  # traced: the mesh may be of absent devices
    shardings = state_shardings(boxed, mesh)
    # nn.unbox would constrain what it unboxes, and there is no array to constrain yet.
    bare = jax.tree.map(lambda x: x.value if isinstance(x, _Box) else x, boxed, is_leaf=lambda x: isinstance(x, _Box))
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), bare, shardings)


def put_params(params: Mapping[str, Any], abstract: TrainState) -> Any:
    """Host arrays put on the devices, with the dtypes and shardings of the state's parameters of the model."""
    return put_like(dict(params), without_aux(abstract.params))


def put_like(tree: Any, abstract: Any) -> Any:
    """Host arrays put on the devices, with the dtypes and shardings of an abstract tree."""
    return jax.tree.map(lambda x, a: jax.device_put(x.astype(a.dtype), a.sharding), tree, abstract)


def without_aux(params: Mapping[str, Any]) -> dict[str, Any]:
    """The model's parameters alone, without those of its objective."""
    return {name: value for name, value in params.items() if name != AUX}


def shardings_of(state: TrainState) -> Any:
    """The sharding of each leaf."""
    return jax.tree.map(lambda x: x.sharding, state)
