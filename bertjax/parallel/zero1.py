"""ZeRO-1 (arXiv 1910.02054, section 5.1): shards the train state over the data axis instead of replicating it.

If only the data axis is larger than 1, each device stores and updates its shard of parameters and moments. A step
begins with an all-gather of the parameters, and reduce-scatters the gradients before the update. In between, a device
computes with its rows and the full parameters, inside `jax.shard_map`. Without `shard_map`, XLA would also split the
products of the model by these shardings.

If `fsdp` or `tensor` already split the weights, `shard_map` fails (jaxlib 0.10.2), so the data axis shards only the
moments of the optimizer. The gradients are constrained to the shardings of the moments. Each device updates its shard
of the parameters and gathers the others.
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
SMALL = 2**16  # an array with fewer elements per device is not split: its exchange costs more than it saves
MATRICES = ('kernel', 'embedding')  # names of parameters that the model casts to the dtype of the computation
# Modules that compute in float32 (model/heads.py, model/bert.py). The `head` of embeddings and of late interaction
# computes in `dtype`, but is also sent in float32, because of its name.
FLOAT32_MODULES = ('head', 'nsp')


def should_shard(choice: str, mesh: Mesh) -> bool:
    """Returns whether to shard the state over the data axis, where `choice` is one of ZERO1.

    Nothing is sharded if the data axis has size 1. 'auto' shards if only the data axis is larger than 1 and there is a
    single slice. With several slices, libtpu 0.0.52 spends much time on converting sharded arrays to another layout.
    """
    pays = is_data_parallel(mesh) and slice_count(mesh.devices.flat) == 1
    return mesh.shape[AXIS] > 1 and (choice == 'on' or (choice == 'auto' and pays))


def is_data_parallel(mesh: Mesh) -> bool:
    """Returns whether all axes except data have size 1."""
    return all(size == 1 for axis, size in mesh.shape.items() if axis != AXIS)


def shard_over_data(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Shards an abstract array over the data axis. The array must be replicated over this axis.

    This splits the largest dimension whose size per device is a multiple of the size of the data axis. The last
    dimension is split only if no other fits, so that neighbors in memory stay on one device. Arrays with fewer than
    SMALL elements per device, or without a dimension that fits, are returned unchanged.
    """
    mesh = x.sharding.mesh
    axes = [_split_axes(entry, mesh) for entry in (*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec)))]
    shard_shape = x.sharding.shard_shape(x.shape)
    fitting = [d for d, size in enumerate(shard_shape) if size % mesh.shape[AXIS] == 0]
    if math.prod(shard_shape) < SMALL or not fitting:
        return x
    largest = max(fitting, key=lambda d: (d < len(shard_shape) - 1, shard_shape[d]))
    axes[largest] += (AXIS,)
    while not axes[-1]:
        axes.pop()
    spec = PartitionSpec(*(names[0] if len(names) == 1 else names or None for names in axes))
    return x.update(sharding=NamedSharding(mesh, spec))


def _split_axes(entry: str | tuple[str, ...] | None, mesh: Mesh) -> tuple[str, ...]:
    """Returns the mesh axes of size > 1 in one entry of a PartitionSpec."""
    axes = () if entry is None else (entry,) if isinstance(entry, str) else entry
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)


def unshard(params: Any) -> Any:
    """Gathers the arrays that are sharded over the data axis, or returns the same tree if there are none."""
    split = any(AXIS in _get_spec(x) for x in jax.tree.leaves(params))
    return jax.device_put(params, jax.tree.map(_remove_data_axis, params)) if split else params


def shard_like_moments(tree: Any, params: Any) -> Any:
    """Constrains traced gradients or parameters to the shardings of the moments of the abstract parameters `params`."""
    full = jax.tree.map(lambda x: x.sharding, params)
    parts = jax.tree.map(lambda x: shard_over_data(x).sharding, params)
    # With only the second constraint, XLA would also shard the products that compute the gradients.
    return jax.lax.with_sharding_constraint(jax.lax.with_sharding_constraint(tree, full), parts)


@dataclasses.dataclass(frozen=True)
class GradientExchange:
    """The collectives of a train step whose state is sharded over the data axis."""

    params: Any  # the abstract parameters, with shardings
    # The dtype of the computation. The matrices, except those of FLOAT32_MODULES, are sent in this dtype. For
    # parameters, this loses nothing, because the model casts them anyway. Gradients are rounded before the sum.
    dtype: str

    @property
    def specs(self) -> Any:
        """The PartitionSpec of each parameter."""
        return jax.tree.map(_get_spec, self.params)

    @property
    def is_sharded(self) -> bool:
        """Whether any parameter is sharded over the data axis."""
        return any(AXIS in spec for spec in jax.tree.leaves(self.specs))

    def over_devices(self, function: Callable[..., Any], specs: Any, num_values: int) -> Callable[..., Any]:
        """Maps a function over devices: (parameter shards, rows, *values) -> (sums over all devices, gradient shards).

        The `num_values` values are replicated. `specs` are the PartitionSpecs of the gradients.
        """
        replicated = PartitionSpec()
        in_specs = (self.specs, PartitionSpec(AXIS), *[replicated] * num_values)
        return jax.shard_map(function, in_specs=in_specs, out_specs=(replicated, specs), check_vma=False)

    def gather(self, params: Any) -> Any:
        """Gathers the full parameters from their shards. Kernels stay in `dtype`."""

        def gather(path: tuple[Any, ...], part: jax.Array, spec: PartitionSpec) -> jax.Array:
            sent = self._cast(path, part)
            if AXIS in spec:
                split = tuple(spec).index(AXIS)
                sent = _as_matrix(lambda x: jax.lax.all_gather(x, AXIS, axis=split, tiled=True), sent, split)
            return sent if path[-1].key == 'kernel' else sent.astype(part.dtype)

        return jax.tree.map_with_path(gather, params, self.specs)

    def reduce_scatter(self, grads: Any, specs: Any) -> Any:
        """Sums gradients over all devices, and returns the shard of this device. Unsharded gradients stay full."""

        def scatter(path: tuple[Any, ...], grad: jax.Array, spec: PartitionSpec) -> jax.Array:
            sent = self._cast(path, grad)
            if AXIS not in spec:
                return jax.lax.psum(sent, AXIS).astype(grad.dtype)
            split = tuple(spec).index(AXIS)
            send = lambda x: jax.lax.psum_scatter(x, AXIS, scatter_dimension=split, tiled=True)  # noqa: E731
            return _as_matrix(send, sent, split).astype(grad.dtype)

        return jax.tree.map_with_path(scatter, grads, specs)

    def _cast(self, path: tuple[Any, ...], x: jax.Array) -> jax.Array:
        *modules, name = (entry.key for entry in path)
        return x.astype(self.dtype) if name in MATRICES and not {*modules} & {*FLOAT32_MODULES} else x


def _as_matrix(send: Callable[[jax.Array], jax.Array], x: jax.Array, split: int) -> jax.Array:
    """Applies the collective `send` to x with all dimensions after `split` merged into one.

    Without the merge, rows of 64 values, the width of a head, would be padded to the 128 values of a TPU register.
    """
    sent = send(x.reshape(*x.shape[: split + 1], -1))
    return sent.reshape(*sent.shape[: split + 1], *x.shape[split + 1 :])


def _get_spec(x: Any) -> PartitionSpec:
    """Returns the PartitionSpec of an array, which may be abstract or on the host."""
    sharding = getattr(x, 'sharding', None)
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()


def _remove_data_axis(x: Any) -> Sharding | None:
    if AXIS not in _get_spec(x):
        return getattr(x, 'sharding', None)
    return x.sharding.update(spec=PartitionSpec(*(None if axis == AXIS else axis for axis in x.sharding.spec)))
