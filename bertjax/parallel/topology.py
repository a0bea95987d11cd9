"""TPU slices by name, for compiling without having one."""

import dataclasses
import importlib.util
import math
import os
from typing import Any

from bertjax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a device of a TPU generation has: a chip; of a v3 one of a chip's two cores, with half of all of it.

    Attributes:
      hbm_bytes: high-bandwidth memory.
      hbm_bandwidth: bytes a second.
      link_bandwidth: bytes a second in one direction of one link to a neighbour.
      closed: sides of a slice that are a multiple of this are rings; of v4 and v5p, where all sides are.
      clock_hz: of a TensorCore.
    """

    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    closed: int
    clock_hz: float


# Memory, its bandwidth and the bandwidth of all links ("bidirectional ICI": both directions of four or six links):
# Google Cloud's pages on each generation (docs.cloud.google.com/tpu/docs/v5e, v5p, v6e, v4). Links of v3 and v4: Jouppi
# et al., arXiv 2304.01433, table 4. Clocks: peak by the FLOPs of a cycle, two for each multiplier of 4 (v3, v5e) or 8
# (v4, v5p) units of 128 x 128, and of 4 x 256 x 256 (v6e: its page has two units, but with twice the clock the
# compiler's own estimate of a large product would be 1.4 times the peak).
GENERATIONS = {
    'v3': Generation(16 * 2**30, 450e9, 35e9, 32, 0.94e9),
    'v4': Generation(32 * 2**30, 1200e9, 50e9, 4, 1.05e9),
    'v5e': Generation(16 * 2**30, 819e9, 50e9, 16, 1.5e9),
    'v5p': Generation(95 * 2**30, 2765e9, 100e9, 4, 1.75e9),
    'v6e': Generation(32 * 2**30, 1638e9, 100e9, 16, 1.75e9),
}
_WHOLE_CUBES = ('v4', 'v5p')


def generation_of(name: str) -> Generation:
    """That of a slice such as 'v5e:4x4'."""
    return GENERATIONS[name.partition(':')[0]]


def slice_chips(name: str) -> int:
    """Chips of a slice such as 'v5e:4x4'."""
    return math.prod(int(side) for side in name.partition(':')[2].split('x'))


def ici_bandwidth(name: str, chips: int) -> float:
    """Bytes a second that each chip of a group in a slice can send to the others.

    A group of all chips sends along every side of the slice, a smaller one along one side; in both directions where the
    side is a ring, else in one.

    Args:
      name: of the slice, 'v5e:4x4'.
      chips: of the group.
    """
    generation, _, shape = name.partition(':')
    has = GENERATIONS[generation]
    sides = [int(side) for side in shape.split('x') if int(side) > 1]
    closes = [side % has.closed == 0 for side in sides]
    if generation in _WHOLE_CUBES and not all(closes):
        closes = [False] * len(sides)
    links = [2 if ring else 1 for ring in closes] or [1]
    return has.link_bandwidth * (sum(links) if chips >= slice_chips(name) else max(links))


def topology_devices(name: str) -> list[Any]:
    """Abstract devices of a TPU slice such as 'v5e:4x4' or 'v5p:2x2x4' (chips along each side), as JAX has them there.

    They come from the compiler, libtpu, without any hardware, and serve `.lower().compile()` only.

    Raises:
      UserError: a name that libtpu does not know, or no libtpu.
    """
    example = 'v5e:4x4, v6e:16x16 or v5p:2x2x4 (generation, then chips along each side)'
    generation = name.partition(':')[0]
    if generation not in GENERATIONS or ':' not in name:
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
