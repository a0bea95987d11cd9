"""ZeRO-1 (arXiv 1910.02054, section 5.1): what the data axis otherwise holds copies of, split over it.

Each device keeps, and updates, its part of the parameters and moments in float32. A step begins with gathering the
parameters and ends with adding up gradients, of which each device gets the sums of its own part.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

AXIS = 'data'
SMALL = 2**16  # numbers of an array that is not worth an exchange of its own
TILE = 8  # rows of the last but one dimension that lie together in a TPU's memory


def spread(x: jax.ShapeDtypeStruct) -> NamedSharding:
    """The sharding of `x`, split over the data axis as well, which otherwise holds copies of it.

    That is the largest dimension but the last which divides; what has none, or is small, stays as it is.
    """
    sharding, copies = x.sharding, x.sharding.mesh.shape[AXIS]
    spec = [*sharding.spec, *[None] * (len(x.shape) - len(sharding.spec))]
    axes = [(one,) if isinstance(one, str) else one or () for one in spec]
    parts = [copies * math.prod(sharding.mesh.shape[axis] for axis in names) for names in axes]
    fitting = [d for d, size in enumerate(x.shape) if size % parts[d] == 0]
    if math.prod(x.shape) < SMALL or not fitting:
        return sharding
    # Whole lines stay together: the last dimension only where no other one divides.
    widest = max(fitting, key=lambda d: (d < len(x.shape) - 1, x.shape[d] // parts[d]))
    spec[widest] = (*axes[widest], AXIS)
    return NamedSharding(sharding.mesh, PartitionSpec(*spec))


def own_spec(sharding: NamedSharding) -> PartitionSpec:
    """What of a sharding is the data axis's."""
    names = [(one,) if isinstance(one, str) else one or () for one in sharding.spec]
    return PartitionSpec(*(AXIS if AXIS in each else None for each in names))


def dimension(spec: PartitionSpec) -> int | None:
    return tuple(spec).index(AXIS) if AXIS in tuple(spec) else None


def gathered(params: Any, specs: Any, dtype: str) -> Any:
    """The parameters as the model computes with them, from each device's part; matrices are sent in `dtype`.

    The model casts matrices to `dtype` wherever it uses them, so that it computes the same.
    """

    def gather(path: tuple[Any, ...], x: jax.Array, spec: PartitionSpec) -> jax.Array:
        name, split = path[-1].key, dimension(spec)
        sent = x.astype(dtype) if name in ('kernel', 'embedding') else x
        if split is None:
            whole = sent
        else:
            flat = sent.reshape(*sent.shape[: split + 1], -1)
            whole = jax.lax.all_gather(flat, AXIS, axis=split, tiled=True)
            whole = whole.reshape(*whole.shape[: split + 1], *sent.shape[split + 1 :])
        return whole if name == 'kernel' else whole.astype(x.dtype)

    return jax.tree_util.tree_map_with_path(gather, params, specs)


def scattered(grads: Any, specs: Any, like: Any, dtype: str) -> Any:
    """The sums of all devices' gradients, each device's part of them."""

    def scatter(path: tuple[Any, ...], x: jax.Array, spec: PartitionSpec, part: jax.Array) -> jax.Array:
        split = dimension(spec)
        sent = x.astype(dtype) if path[-1].key in ('kernel', 'embedding') else x
        if split is None:
            return jax.lax.psum(sent, AXIS).astype(part.dtype)
        flat = sent.reshape(*sent.shape[: split + 1], -1)
        return jax.lax.psum_scatter(flat, AXIS, scatter_dimension=split, tiled=True).reshape(part.shape).astype(part.dtype)

    return jax.tree_util.tree_map_with_path(scatter, grads, specs, like)
