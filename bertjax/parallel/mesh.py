"""The device mesh with its three named axes, for any number of devices."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from bertjax.errors import UserError
from bertjax.parallel.devices import find_devices
from bertjax.parallel.rules import BATCH_AXES, MESH_AXES


def mesh_shape(axes: dict[str, int], num_devices: int) -> tuple[int, int, int]:
    """Resolves the sizes of (data, fsdp, tensor). One of them may be -1, for all remaining devices.

    Raises:
      UserError: A size is invalid, or the product of the sizes is not `num_devices`.
    """
    sizes = [int(axes[name]) for name in MESH_AXES]
    description = ' x '.join(f'{name}={size}' for name, size in zip(MESH_AXES, sizes, strict=True))
    fix = f'set config.mesh so that the product is {num_devices} (-1 on one axis takes the rest)'
    if sizes.count(-1) > 1 or any(size == 0 or size < -1 for size in sizes):
        raise UserError('config.mesh', description, 'positive sizes, or -1 for one of them', fix)
    try:
        return np.empty(num_devices).reshape(sizes).shape
    except ValueError:
        raise UserError('config.mesh', description, f'a mesh of {num_devices} device(s)', fix) from None


def make_mesh(axes: dict[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Creates a mesh with axes (data, fsdp, tensor) over `devices` (default: all).

    If there are several TPU slices, the `data` axis spans them, because the network between slices is slow and the axis
    exchanges only gradients by default. On GPUs and CPUs, `data` also spans the hosts, as far as its size allows.

    Enter the mesh with `partition.mesh_context`. In `with mesh:`, Flax does not see the mesh, and constraints silently
    do nothing.

    Raises:
      UserError: See `find_devices` and `mesh_shape`; or the number of slices does not divide `data`.
    """
    devices = find_devices() if devices is None else devices
    shape = mesh_shape(axes, len(devices))
    if len(devices) == 1 or devices[0].platform == 'cpu':
        grid = np.asarray(devices).reshape(shape)
    elif (slices := slice_count(devices)) > 1:
        if shape[0] % slices:
            expected, fix = f'a multiple of the number of slices, {slices}', 'change config.mesh.data'
            raise UserError('config.mesh.data', str(shape[0]), expected, fix)
        inside = (shape[0] // slices, *shape[1:])
        grid = mesh_utils.create_hybrid_device_mesh(inside, (slices, 1, 1), devices, allow_split_physical_axes=True)
    else:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    # With Explicit axes, as in `jax.make_mesh`, Linen's logical constraints would become assertions.
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def slice_count(devices: Iterable[Any]) -> int:
    """Returns the number of TPU slices that these devices belong to, or 1 for other devices."""
    # GPUs may also have a `slice_index`.
    return len({getattr(device, 'slice_index', 0) for device in devices if device.platform == 'tpu'}) or 1


def row_shards(mesh: Mesh) -> int:
    """Returns the number of shards into which the mesh splits the rows of a batch."""
    return int(np.prod([mesh.shape[name] for name in BATCH_AXES]))


def is_cpu(mesh: Mesh) -> bool:
    """Returns whether the devices of the mesh are CPUs."""
    return mesh.devices.flat[0].platform == 'cpu'


def describe_mesh(mesh: Mesh) -> str:
    """Describes devices and axes: `8 x TPU v5 lite, mesh data=8 x fsdp=1 x tensor=1`."""
    axes = ' x '.join(f'{name}={size}' for name, size in mesh.shape.items())
    return f'{mesh.size} x {mesh.devices.flat[0].device_kind}, mesh {axes}'
