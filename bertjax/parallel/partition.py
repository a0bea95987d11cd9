"""From the model's axis names to shardings: constraints inside the model, NamedShardings for its state."""

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
# jax.set_mesh alone does not tell what kind of devices a trace is for.
_MESH: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar('mesh', default=None)


def _check_names(names: tuple[str | None, ...]) -> None:
    for name in names:
        if name is not None and name not in KNOWN_AXES:
            raise ValueError(f'unknown logical axis {name!r}; parallel/rules.py knows {sorted(KNOWN_AXES)}')


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
    """Tells XLA how the activation `x` is laid out on the mesh, by logical axis, one name a dimension.

    Outside a mesh this is the identity. Linen itself treats an unknown name as "not split", which turns a typo into a
    slow run.

    Raises:
      ValueError: a name that parallel/rules.py does not know.
    """
    _check_names(names)
    if _on_one_device():
        return x
    return nn.with_logical_constraint(x, names, fallback=spmd.RulesFallback.RAISE_ERROR)


def with_axes(init: nn.initializers.Initializer, *names: str) -> nn.initializers.Initializer:
    """`init` whose parameter carries its logical axis names, one a dimension (scan prepends `layers`)."""
    _check_names(names)
    return nn.with_logical_partitioning(init, names)


@contextlib.contextmanager
def mesh_context(mesh: Mesh) -> Iterator[None]:
    """Whatever is traced inside sees the mesh and the axis rules."""
    token = _MESH.set(mesh)
    try:
        with jax.set_mesh(mesh), nn.logical_axis_rules(AXIS_RULES):
            yield
    finally:
        _MESH.reset(token)


def platform() -> str:
    """What is traced for: 'tpu', 'gpu' or 'cpu', of the devices of the mesh, which need not be there."""
    mesh = _MESH.get()
    return jax.default_backend() if mesh is None else mesh.devices.flat[0].platform


def device_kind() -> str:
    """Of the devices that are traced for, as JAX calls it: 'TPU v5 lite'."""
    return _device().device_kind


def compute_capability() -> float:
    """Of the GPUs that are traced for, as 9.0 of Hopper: what NVIDIA calls their generation and its variant."""
    return float(_device().compute_capability)


def _device() -> jax.Device:
    mesh = _MESH.get()
    return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def shard_count(name: str) -> int:
    """Over how many devices of the mesh a dimension of this logical axis is split."""
    mesh, axes = _MESH.get(), dict(AXIS_RULES)[name] or ()
    if mesh is None or _on_one_device():
        return 1
    return math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes))


def indivisible_reason(rows: int, heads: int) -> str | None:
    """Why so many rows and heads do not split evenly over the devices of the mesh, as `over_mesh` needs it; or None."""
    for what, size, parts in (('rows', rows, shard_count('act_batch')), ('heads', heads, shard_count('act_heads'))):
        if size % parts:
            return f'{size} {what} do not divide over {parts} devices'
    return None


def over_mesh(
    function: Callable[..., Any], inputs: Sequence[tuple[str | None, ...]], output: tuple[str | None, ...]
) -> Any:
    """`function` on each device's own part of its arguments, for what XLA cannot split by itself: kernels.

    Args:
      function: of arrays, to an array.
      inputs: the logical axis of each dimension of each argument; None: never split.
      output: ... and of the result.
    """
    mesh = _MESH.get()
    if mesh is None or mesh.size == 1 or _on_one_device():
        return function
    rules = dict(AXIS_RULES)
    specs = [PartitionSpec(*(None if name is None else rules[name] for name in names)) for names in (*inputs, output)]
    return jax.shard_map(function, mesh=mesh, in_specs=tuple(specs[:-1]), out_specs=specs[-1], check_vma=False)


def _on_one_device() -> bool:
    """Whether what is traced is one device's own part already, inside `jax.shard_map`: nothing is left to split."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def state_shardings(abstract_state: Any, mesh: Mesh) -> Any:
    """NamedSharding of each leaf of an abstract state (the result of `jax.eval_shape`, with its boxes)."""
    specs = nn.get_partition_spec(abstract_state)
    return nn.unbox(nn.logical_to_mesh_sharding(specs, mesh, AXIS_RULES))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch are split over the data and fsdp axes, all other dimensions are whole."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Whole on every device."""
    return NamedSharding(mesh, PartitionSpec())
