"""ZeRO-1 (arXiv 1910.02054, section 5.1): what the devices of the data axis would hold copies of, split over them.

Where nothing else is split, each keeps and updates its part of parameters and moments. A step begins with gathering the
parameters and ends with adding up the gradients, of which each device takes the sums of its own part. In between a
device computes with its own rows and whole parameters, inside `jax.shard_map`: left to itself, XLA takes the split for
one by which the products of the model are to be computed.

Where `fsdp` or `tensor` split the weights already, XLA would have to split over them what is inside `shard_map`, in
which it fails (jaxlib 0.10.2). There the optimiser's moments alone are split over data, too, and XLA is told so of the
gradients: each device updates its part of what it holds of a parameter, and gathers the others'.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from bertjax.parallel.mesh import slice_count

AXIS = 'data'
ZERO1 = ('auto', 'on', 'off')
SMALL = 2**16  # numbers of an array that is not worth an exchange of its own
MATRICES = ('kernel', 'embedding')  # parameters that the model casts to the dtype of computation wherever it uses them


def should_shard(choice: str, mesh: Mesh) -> bool:
    """Whether the state of a training is spread: by `choice`, one of ZERO1, with 'auto' where data alone splits
    anything, within one slice. Without copies there is nothing to spread.

    Over several slices libtpu 0.0.52 lays out what is spread anew before it is sent (docs/scaling.md has the figures).
    """
    pays = is_data_parallel(mesh) and slice_count(mesh.devices.flat) == 1
    return mesh.shape[AXIS] > 1 and (choice == 'on' or (choice == 'auto' and pays))


def is_data_parallel(mesh: Mesh) -> bool:
    """Whether every device has a copy of the weights."""
    return all(size == 1 for axis, size in mesh.shape.items() if axis != AXIS)


def shard_over_data(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Abstract `x`, of which the data axis holds copies, split over it.

    That is along the largest dimension of a device's part which divides, the last one only where no other does: what
    lies closest together in memory stays together. What has none, or is small, stays as it is.
    """
    mesh = x.sharding.mesh
    axes = [_split(entry, mesh) for entry in (*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec)))]
    part = [size // math.prod(mesh.shape[axis] for axis in of) for size, of in zip(x.shape, axes, strict=True)]
    fitting = [d for d, size in enumerate(part) if size % mesh.shape[AXIS] == 0]
    if math.prod(part) < SMALL or not fitting:
        return x
    chosen = max(fitting, key=lambda d: (d < len(part) - 1, part[d]))
    axes[chosen] += (AXIS,)
    while not axes[-1]:
        axes.pop()
    spec = PartitionSpec(*(of[0] if len(of) == 1 else of or None for of in axes))
    return x.update(sharding=NamedSharding(mesh, spec))


def _split(entry: str | tuple[str, ...] | None, mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes of a dimension's entry in a PartitionSpec that have more than one device."""
    named = () if entry is None else (entry,) if isinstance(entry, str) else entry
    return tuple(axis for axis in named if mesh.shape[axis] > 1)


def unshard(params: Any) -> Any:
    """`params` with the arrays gathered that are spread; the same tree where none is."""
    split = any(AXIS in _spec(x) for x in jax.tree.leaves(params))
    return jax.device_put(params, jax.tree.map(_unspread, params)) if split else params


@dataclasses.dataclass(frozen=True)
class ShardedMoments:
    """How the moments lie that are spread beside parameters which are not.

    Attributes:
      params: abstract, with their own shardings.
    """

    params: Any

    def of(self, tree: Any) -> Any:
        """Gradients or parameters, traced, in the tree of parameters that move: each device's part."""
        own = jax.tree.map(lambda _, x: x.sharding, tree, self.params)
        parts = jax.tree.map(lambda _, x: shard_over_data(x).sharding, tree, self.params)
        # Both: or XLA takes the second for the way in which the gradients' products are to be computed.
        return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(tree, own), parts)


@dataclasses.dataclass(frozen=True)
class GradientExchange:
    """What the devices send each other in a step of a state that is spread.

    Attributes:
      params: abstract, with shardings.
      dtype: in which matrices are sent, the dtype of computation: of parameters the model sees nothing else, and a
        gradient is what a product in this dtype gave. All else is sent as it is.
    """

    params: Any
    dtype: str

    @property
    def specs(self) -> Any:
        """PartitionSpec of each parameter."""
        return jax.tree.map(_spec, self.params)

    @property
    def is_sharded(self) -> bool:
        """Whether any parameter is large enough."""
        return any(AXIS in spec for spec in jax.tree.leaves(self.specs))

    def on_own_rows(self, function: Callable[..., Any], specs: Any, more: int) -> Callable[..., Any]:
        """`function` of each device's own part of the parameters, of its own rows, and of values that all have.

        Args:
          function: (parameters, rows, *values) -> (sums, gradients), the sums those of all devices.
          specs: of the gradients.
          more: how many values there are.
        """
        same = PartitionSpec()
        given = (self.specs, PartitionSpec(AXIS), *[same] * more)
        return jax.shard_map(function, in_specs=given, out_specs=(same, specs), check_vma=False)

    def gathered(self, params: Any) -> Any:
        """Whole parameters, of each device's part; kernels stay in the dtype that they were sent in."""

        def gather(path: tuple[Any, ...], part: jax.Array, spec: PartitionSpec) -> jax.Array:
            sent = self._sent(path, part)
            if AXIS in spec:
                split = tuple(spec).index(AXIS)
                sent = _as_matrix(lambda x: jax.lax.all_gather(x, AXIS, axis=split, tiled=True), sent, split)
            return sent if path[-1].key == 'kernel' else sent.astype(part.dtype)

        return jax.tree_util.tree_map_with_path(gather, params, self.specs)

    def summed(self, values: Any) -> Any:
        """The sums of all devices' values."""
        return jax.lax.psum(values, AXIS)

    def scattered(self, grads: Any, specs: Any) -> Any:
        """Of the sums of all devices' gradients each device's part, where `specs` split them."""

        def scatter(path: tuple[Any, ...], own: jax.Array, spec: PartitionSpec) -> jax.Array:
            sent = self._sent(path, own)
            if AXIS not in spec:
                return jax.lax.psum(sent, AXIS).astype(own.dtype)
            split = tuple(spec).index(AXIS)
            send = lambda x: jax.lax.psum_scatter(x, AXIS, scatter_dimension=split, tiled=True)  # noqa: E731
            return _as_matrix(send, sent, split).astype(own.dtype)

        return jax.tree_util.tree_map_with_path(scatter, grads, specs)

    def _sent(self, path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        return x.astype(self.dtype) if path[-1].key in MATRICES else x


def _as_matrix(send: Callable[[jax.Array], jax.Array], x: jax.Array, split: int) -> jax.Array:
    """`send` of `x` with all dimensions behind `split` as one: rows of 64, a head's, would fill half of a TPU's
    registers, and half of what is sent."""
    sent = send(x.reshape(*x.shape[: split + 1], -1))
    return sent.reshape(*sent.shape[: split + 1], *x.shape[split + 1 :])


def _spec(x: Any) -> PartitionSpec:
    """Of an array, also an abstract one, or one that lies on the host."""
    sharding = getattr(x, 'sharding', None)
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()


def _unspread(x: Any) -> Sharding | None:
    if AXIS not in _spec(x):
        return getattr(x, 'sharding', None)
    return x.sharding.update(spec=PartitionSpec(*(None if axis == AXIS else axis for axis in x.sharding.spec)))
