"""Converts logical axis names to shardings: constraints inside the model, NamedShardings for the train state."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import linen as nn
from flax.linen import spmd
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.parallel.rules import AXIS_RULES, BATCH_AXES

KNOWN_AXES = frozenset(name for name, _ in AXIS_RULES)
# The concrete mesh of `mesh_context`. The abstract mesh of `jax.set_mesh` lacks some facts about the devices.
_MESH: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar('mesh', default=None)


def _check_names(names: tuple[str | None, ...]) -> None:
    for name in names:
        if name is not None and name not in KNOWN_AXES:
            raise ValueError(f'unknown logical axis {name!r}; parallel/rules.py knows {sorted(KNOWN_AXES)}')


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Constrains the sharding of an activation, with one logical axis name per dimension.

    Outside a mesh or inside `jax.shard_map`, `x` is returned unchanged.

    Raises:
      ValueError: A name is not in parallel/rules.py. Linen alone would leave the dimension unsplit without an error.
    """
    _check_names(names)
    if _in_shard_map():
        return x
    return nn.with_logical_constraint(x, names, fallback=spmd.RulesFallback.RAISE_ERROR)


def with_axes(init: nn.initializers.Initializer, *names: str | None) -> nn.initializers.Initializer:
    """Returns `init` with logical axis names for its parameter, one per dimension. `nn.scan` prepends `layers`."""
    _check_names(names)
    return nn.with_logical_partitioning(init, names)


@contextlib.contextmanager
def mesh_context(mesh: Mesh) -> Iterator[None]:
    """A context in which traced functions see the mesh and the axis rules."""
    token = _MESH.set(mesh)
    try:
        with jax.set_mesh(mesh), nn.logical_axis_rules(AXIS_RULES):
            yield
    finally:
        _MESH.reset(token)


def platform() -> str:
    """Returns the platform that the trace is for: 'tpu', 'gpu' or 'cpu'. This machine may have another platform."""
    return traced_device().platform


def traced_device() -> jax.Device:
    """Returns the first device of the current mesh, or the first of `jax.devices()`. A mesh has devices of one kind."""
    mesh = _MESH.get()
    return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def shard_count(name: str) -> int:
    """Returns the number of shards of a dimension with this logical axis."""
    mesh, axes = _MESH.get(), dict(AXIS_RULES)[name] or ()
    if mesh is None or _in_shard_map():
        return 1
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


def indivisible_reason(rows: int, heads: int) -> str | None:
    """Returns why `over_mesh` cannot split `rows` and `heads` evenly over the devices, or None if it can."""
    for what, size, parts in (('rows', rows, shard_count('act_batch')), ('heads', heads, shard_count('act_heads'))):
        if size % parts:
            return f'{size} {what} cannot be split evenly over {parts} devices'
    return None


def over_mesh(
    function: Callable[..., Any], inputs: Sequence[tuple[str | None, ...]], output: tuple[str | None, ...]
) -> Any:
    """Maps a kernel (*arrays) -> array, which XLA cannot partition, over the shards of its arguments.

    `inputs` and `output` are the logical axes of arguments and result; None for a dimension that is never split.
    """
    mesh = _MESH.get()
    if mesh is None or mesh.size == 1 or _in_shard_map():
        return function
    rules = dict(AXIS_RULES)
    specs = [PartitionSpec(*(None if name is None else rules[name] for name in names)) for names in (*inputs, output)]
    return jax.shard_map(function, mesh=mesh, in_specs=tuple(specs[:-1]), out_specs=specs[-1], check_vma=False)


def _in_shard_map() -> bool:
    """Returns whether the trace is inside `jax.shard_map`, where arrays are shards of one device."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def state_shardings(abstract_state: Any, mesh: Mesh) -> Any:
    """Returns the NamedSharding of each leaf of an abstract state (the result of `jax.eval_shape`, with its boxes)."""
    specs = nn.get_partition_spec(abstract_state)
    return nn.unbox(nn.logical_to_mesh_sharding(specs, mesh, AXIS_RULES))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: rows over the data and fsdp axes, other dimensions replicated."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the fully replicated sharding."""
    return NamedSharding(mesh, PartitionSpec())
