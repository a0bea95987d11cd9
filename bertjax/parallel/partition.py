"""From the model's axis names to shardings: constraints inside the model, NamedShardings for its state."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from flax import linen as nn
from flax.linen import spmd
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.parallel.rules import AXIS_RULES, BATCH_AXES

KNOWN_AXES = frozenset(name for name, _ in AXIS_RULES)


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
    return nn.with_logical_constraint(x, names, fallback=spmd.RulesFallback.RAISE_ERROR)


def with_axes(init: nn.initializers.Initializer, *names: str) -> nn.initializers.Initializer:
    """`init` whose parameter carries its logical axis names, one a dimension (scan prepends `layers`)."""
    _check_names(names)
    return nn.with_logical_partitioning(init, names)


@contextlib.contextmanager
def mesh_context(mesh: Mesh) -> Iterator[None]:
    """Whatever is traced inside sees the mesh and the axis rules."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(AXIS_RULES):
        yield


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
