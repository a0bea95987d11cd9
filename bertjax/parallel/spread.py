"""ZeRO-1 (arXiv 1910.02054, section 5.1): what the devices of the data axis would hold copies of, split over them.

Each keeps and updates its part of parameters and moments. A step begins with gathering the parameters and ends with
adding up the gradients, of which each device takes the sums of its own part. In between a device computes with its own
rows and with whole parameters, as `jax.shard_map` says: left to itself XLA takes the split for one that the model's
products are to be computed by.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

AXIS = 'data'
SMALL = 2**16  # numbers of an array that is not worth an exchange of its own
MATRICES = ('kernel', 'embedding')  # parameters that the model casts to the dtype of computation wherever it uses them


def spread(x: jax.ShapeDtypeStruct) -> NamedSharding:
    """The sharding of `x`, split over the data axis as well, which otherwise holds copies of it.

    That is the largest dimension which divides, the last one only where no other does: what lies closest together in
    memory stays together. What has none, or is small, stays as it is.
    """
    sharding, copies = x.sharding, x.sharding.mesh.shape[AXIS]
    axes = [*_axes(sharding), *[()] * (len(x.shape) - len(sharding.spec))]
    parts = [copies * math.prod(sharding.mesh.shape[axis] for axis in names) for names in axes]
    fitting = [d for d, size in enumerate(x.shape) if size % parts[d] == 0]
    if math.prod(x.shape) < SMALL or not fitting:
        return sharding
    chosen = max(fitting, key=lambda d: (d < len(x.shape) - 1, x.shape[d] // parts[d]))
    axes[chosen] += (AXIS,)
    return NamedSharding(sharding.mesh, PartitionSpec(*(names or None for names in axes)))


def whole(params: Any) -> Any:
    """`params` with the arrays gathered that are spread; the same tree where none is."""
    spread_too = any(AXIS in names for x in jax.tree.leaves(params) for names in _axes(x.sharding))
    return jax.device_put(params, jax.tree.map(_unspread, params)) if spread_too else params


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What the devices of the data axis send each other in a step.

    Attributes:
      specs: by parameter, which dimension is split over the data axis; other axes are XLA's, as everywhere.
      dtype: in which matrices are sent, the dtype of computation: parameters lose nothing that the model would see, and
        gradients are what a product in this dtype gave. All else is sent as it is.
    """

    specs: Any
    dtype: str

    @classmethod
    def of(cls, params: Any, dtype: str) -> 'Exchange':
        """That of abstract parameters with shardings."""
        return cls(jax.tree.map(lambda x: _of_data(x.sharding), params), dtype)

    def on_own_rows(self, function: Callable[..., Any], specs: Any, more: int) -> Callable[..., Any]:
        """`function` of each device's own part of the parameters, of its own rows, and of values that all have.

        Args:
          function: (parameters, rows, *values) -> (sums, gradients of `specs`), each device the same sums.
          specs: of the gradients.
          more: how many values there are.
        """
        rows, same = PartitionSpec(AXIS), PartitionSpec()
        given = (self.specs, rows, *[same] * more)
        return jax.shard_map(function, in_specs=given, out_specs=(same, specs), axis_names={AXIS}, check_vma=False)

    def gathered(self, params: Any) -> Any:
        """Whole parameters, of each device's part; kernels stay in the dtype that they were sent in."""

        def gather(path: tuple[Any, ...], part: jax.Array, spec: PartitionSpec) -> jax.Array:
            sent, split = self._sent(path, part), _dimension(spec)
            if split is not None:
                sent = _as_matrices(lambda x: jax.lax.all_gather(x, AXIS, axis=split, tiled=True), sent, split)
            return sent if path[-1].key == 'kernel' else sent.astype(part.dtype)

        return jax.tree_util.tree_map_with_path(gather, params, self.specs)

    def summed(self, values: Any) -> Any:
        """The sums of all devices' values."""
        return jax.lax.psum(values, AXIS)

    def scattered(self, grads: Any, specs: Any) -> Any:
        """Of the sums of all devices' gradients each device's part, where `specs` split them."""

        def scatter(path: tuple[Any, ...], own: jax.Array, spec: PartitionSpec) -> jax.Array:
            sent, split = self._sent(path, own), _dimension(spec)
            if split is None:
                return jax.lax.psum(sent, AXIS).astype(own.dtype)
            send = lambda x: jax.lax.psum_scatter(x, AXIS, scatter_dimension=split, tiled=True)  # noqa: E731
            return _as_matrices(send, sent, split).astype(own.dtype)

        return jax.tree_util.tree_map_with_path(scatter, grads, specs)

    def _sent(self, path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        return x.astype(self.dtype) if path[-1].key in MATRICES else x


def _as_matrices(send: Callable[[jax.Array], jax.Array], x: jax.Array, split: int) -> jax.Array:
    """`send` of `x` with all dimensions behind `split` as one: heads of 64 would fill half of a TPU's registers, and
    half of what is sent."""
    sent = send(x.reshape(*x.shape[: split + 1], -1))
    return sent.reshape(*sent.shape[: split + 1], *x.shape[split + 1 :])


def _axes(sharding: Sharding) -> list[tuple[str, ...]]:
    """By dimension, as far as it is said, the axes that split it."""
    spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
    return [(names,) if isinstance(names, str) else names or () for names in spec]


def _of_data(sharding: NamedSharding) -> PartitionSpec:
    """What of a sharding is the data axis's."""
    return PartitionSpec(*(AXIS if AXIS in names else None for names in _axes(sharding)))


def _dimension(spec: PartitionSpec) -> int | None:
    return next((d for d, axis in enumerate(spec) if axis == AXIS), None)


def _unspread(x: jax.Array) -> Sharding:
    axes = [tuple(axis for axis in names if axis != AXIS) or None for names in _axes(x.sharding)]
    return x.sharding.update(spec=PartitionSpec(*axes)) if axes else x.sharding
