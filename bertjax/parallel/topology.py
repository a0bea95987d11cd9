"""TPU slices by name, for compiling without having one."""

import importlib.util
import os
from typing import Any

from bertjax.errors import UserError

# High-bandwidth memory of a device in GiB, from Google Cloud's pages on each generation. A device is a chip; of a v3 it
# is one of a chip's two cores, with half of its memory (jax/_src/pallas/mosaic/tpu_info.py).
_HBM_GIB = {'v3': 16, 'v4': 32, 'v5e': 16, 'v5p': 95, 'v6e': 32}
HBM_BYTES = {generation: gib * 2**30 for generation, gib in _HBM_GIB.items()}


def topology_devices(name: str) -> list[Any]:
    """Abstract devices of a TPU slice such as 'v5e:4x4' or 'v5p:2x2x4' (chips along each side), as JAX has them there.

    They come from the compiler, libtpu, without any hardware, and serve `.lower().compile()` only.

    Raises:
      UserError: a name that libtpu does not know, or no libtpu.
    """
    example = 'v5e:4x4, v6e:16x16 or v5p:2x2x4 (generation, then chips along each side)'
    generation = name.partition(':')[0]
    if generation not in HBM_BYTES or ':' not in name:
        raise UserError('config.topology', repr(name), example, 'for example --config.topology=v5e:4x4')
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')  # do not wait for a cloud metadata server
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # compiling takes no chip from another process
    from jax.experimental import topologies

    # Both cores of a chip are one device, as on a v5p; on a v4 libtpu has to be told.
    options = {'chip_config_name': 'megacore'} if generation == 'v4' else {}
    try:
        # Hosts of 2 x 2 chips, as the single-host slices of every generation have; libtpu has to be told.
        topology = topologies.get_topology_desc(name, 'tpu', chips_per_host_bounds=(2, 2, 1), **options)
    except Exception as error:  # libtpu raises several classes of RuntimeError
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if importlib.util.find_spec('libtpu') is None:
            mend = "install the extra 'tpu': pip install -e '.[tpu]'"
            raise UserError('config.topology', reason, 'libtpu, the TPU compiler', mend) from None
        raise UserError('config.topology', f'{name!r} ({reason})', example, 'correct the name') from None
    return list(topology.devices)
