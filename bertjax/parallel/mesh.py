"""The device mesh: three named axes, on one device as on a thousand."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bertjax.errors import UserError
from bertjax.parallel.devices import leave_out_absent_tpus
from bertjax.parallel.rules import BATCH_AXES, MESH_AXES


def mesh_shape(axes: dict[str, int], num_devices: int) -> tuple[int, int, int]:
    """Sizes of (data, fsdp, tensor); one of them may be -1, for all devices that the others leave.

    Raises:
      UserError: the sizes do not multiply to `num_devices`.
    """
    sizes = [int(axes[name]) for name in MESH_AXES]
    shown = ' x '.join(f'{name}={size}' for name, size in zip(MESH_AXES, sizes, strict=True))
    fix = f'set config.mesh so that the product is {num_devices} (-1 on one axis takes the rest)'
    if sizes.count(-1) > 1 or any(size == 0 or size < -1 for size in sizes):
        raise UserError('config.mesh', shown, 'positive sizes, at most one of them -1', fix)
    known = int(np.prod([size for size in sizes if size != -1]))
    if -1 in sizes and num_devices % known == 0:
        sizes[sizes.index(-1)] = num_devices // known
    if int(np.prod(sizes)) != num_devices:
        raise UserError('config.mesh', shown, f'a mesh of {num_devices} device(s)', fix)
    return tuple(sizes)


def make_mesh(axes: dict[str, int], devices=None) -> Mesh:
    """A mesh with axes (data, fsdp, tensor) over `devices` (default: all).

    Slices of TPUs that only the data centre's network joins lie along `data`, over which gradients alone are sent; so
    do hosts, whose devices come one after the other, as far as that axis reaches.

    Axis types are given as Auto: `jax.make_mesh` would make Explicit axes, under which Linen's logical constraints
    become assertions and `nn.Embed` raises. Enter it with `jax.set_mesh(mesh)`: under the older `with mesh:` Flax sees
    no mesh at all, and every constraint silently does nothing.

    Raises:
      UserError: sizes that do not multiply to the number of devices, or a `data` that the slices do not divide.
    """
    if devices is None:
        leave_out_absent_tpus()
        devices = jax.devices()
    shape = mesh_shape(axes, len(devices))
    if len(devices) == 1 or devices[0].platform == 'cpu':
        grid = np.asarray(devices).reshape(shape)
    elif (slices := slice_count(devices)) > 1:
        if shape[0] % slices:
            fix = f'set config.mesh.data to a multiple of {slices}'
            raise UserError('config.mesh.data', str(shape[0]), f'a multiple of the {slices} slices, joined by it', fix)
        inside = (shape[0] // slices, *shape[1:])
        grid = mesh_utils.create_hybrid_device_mesh(inside, (slices, 1, 1), devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def slice_count(devices: Iterable[Any]) -> int:
    """Slices of TPUs that these devices are of; 1 for all others."""
    return len({getattr(device, 'slice_index', 0) for device in devices})


def row_shards(mesh: Mesh) -> int:
    """How many parts the rows of a batch are split into."""
    return int(np.prod([mesh.shape[name] for name in BATCH_AXES]))


def describe_mesh(mesh: Mesh) -> str:
    """Devices and axes in words: `8 x TPU v5 lite, mesh data=8 x fsdp=1 x tensor=1`."""
    axes = ' x '.join(f'{name}={size}' for name, size in mesh.shape.items())
    return f'{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}'
