"""TPU slices, and machines with GPUs, by name: for compiling without having one."""

import dataclasses
import importlib.util
import math
import os
import re
from typing import Any

from bertjax.errors import UserError
from bertjax.parallel.gpu_targets import GPUS, gpu_devices


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a device of a TPU generation has: a chip; of a v3 one of a chip's two cores, with half of all of it.

    Attributes:
      hbm_bytes: high-bandwidth memory.
      hbm_bandwidth: bytes a second.
      link_bandwidth: bytes a second in one direction of one link to a neighbour.
      closed: sides of a slice that are a multiple of this are rings; of v4 and v5p, where all sides are.
      clock_hz: of a TensorCore.
      network_bandwidth: bytes a second that a chip has of the data centre's network, between slices; 0 where no figure
        is published.
    """

    hbm_bytes: int
    hbm_bandwidth: float
    link_bandwidth: float
    closed: int
    clock_hz: float
    network_bandwidth: float = 0.0


# Memory, its bandwidth, the bandwidth of all links ("bidirectional ICI": both directions of four or six links) and of
# the network ("data center network": 6.4 and 25.6 Tbit/s for the 256 chips of a v5e and a v6e pod, 50 Gbit/s a chip of
# v5p): Google Cloud's pages on each generation (docs.cloud.google.com/tpu/docs/v5e, v5p, v6e, v4). Links of v3 and v4:
# Jouppi et al., arXiv 2304.01433, table 4. Clocks: peak by the FLOPs of a cycle, two for each multiplier of 4 (v3, v5e)
# or 8 (v4, v5p) units of 128 x 128, and of 4 x 256 x 256 (v6e: its page has two units, but with twice the clock the
# compiler's own estimate of a large product would be 1.4 times the peak).
GENERATIONS = {
    'v3': Generation(16 * 2**30, 450e9, 35e9, 32, 0.94e9),
    'v4': Generation(32 * 2**30, 1200e9, 50e9, 4, 1.05e9),
    'v5e': Generation(16 * 2**30, 819e9, 50e9, 16, 1.5e9, 25e9 / 8),
    'v5p': Generation(95 * 2**30, 2765e9, 100e9, 4, 1.75e9, 50e9 / 8),
    'v6e': Generation(32 * 2**30, 1638e9, 100e9, 16, 1.75e9, 100e9 / 8),
}
# Three quarters of the memory, which is what JAX takes of a GPU unless it is told otherwise. XLA gives no cycles for
# GPUs, so that no time is reckoned; a switch joins those of a machine, which no number of them makes a ring.
_GPUS = {
    name: Generation(gpu.memory * 3 // 4, gpu.bandwidth, gpu.links, 1 << 30, gpu.clock_ghz * 1e9)
    for name, gpu in GPUS.items()
}
_WHOLE_CUBES = ('v4', 'v5p')
_NAME = re.compile(r'(?:([1-9]\d*)\*)?(\w+):[1-9]\d*(?:x[1-9]\d*)*')


def parse_topology(name: str) -> tuple[int, str, str]:
    """(slices, generation, chips along each side) of 'v5e:4x4', one slice, or of '2*v5e:4x4', two of them."""
    count, _, one = name.rpartition('*')
    generation, _, shape = one.partition(':')
    return int(count or 1), generation, shape


def generation_of(name: str) -> Generation:
    """That of a slice such as 'v5e:4x4', or of several."""
    return {**GENERATIONS, **_GPUS}[parse_topology(name)[1]]


def slice_chips(name: str) -> int:
    """Chips of a slice such as 'v5e:4x4', or of each where there are several."""
    return math.prod(int(side) for side in parse_topology(name)[2].split('x'))


def ici_bandwidth(name: str, chips: int) -> float:
    """Bytes a second that each chip of a group in a slice can send to the others.

    A group of all chips sends along every side of the slice, a smaller one along one side; in both directions where the
    side is a ring, else in one.

    Args:
      name: of the slice, 'v5e:4x4', or of several.
      chips: of the group, which are all in one slice.
    """
    _, generation, shape = parse_topology(name)
    has = generation_of(name)
    sides = [int(side) for side in shape.split('x') if int(side) > 1]
    closes = [side % has.closed == 0 for side in sides]
    if generation in _WHOLE_CUBES and not all(closes):
        closes = [False] * len(sides)
    links = [2 if ring else 1 for ring in closes] or [1]
    return has.link_bandwidth * (sum(links) if chips >= slice_chips(name) else max(links))


def topology_devices(name: str) -> list[Any]:
    """Abstract devices of a TPU slice such as 'v5e:4x4' or 'v5p:2x2x4' (chips along each side), as JAX has them there;
    of '2*v5e:16x16' those of two slices that the data centre's network joins; of 'h200:8' the GPUs of a machine.

    They come from the compiler, libtpu or JAX's plug-in for CUDA, without any hardware, and serve `.lower().compile()`
    only.

    Raises:
      UserError: a name that the compiler does not know, or no compiler.
    """
    example = 'v5e:4x4, v5p:2x2x4 (generation, then chips along each side), several: 2*v5e:16x16, or GPUs: h200:8'
    named = _NAME.fullmatch(name)
    if not named or named.group(2) not in {**GENERATIONS, **GPUS}:
        raise UserError('config.topology', repr(name), example, 'for example --config.topology=v5e:4x4')
    slices, generation, shape = parse_topology(name)
    if generation in GPUS:
        return _gpus(name, example)
    if slices > 1 and not GENERATIONS[generation].network_bandwidth:
        known = ', '.join(name for name, one in GENERATIONS.items() if one.network_bandwidth)
        raise UserError('config.topology', repr(name), f'several slices of {known}', 'choose one of them, or one slice')
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')  # do not wait for a cloud metadata server
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # compiling takes no chip from another process
    from jax.experimental import topologies

    # Both cores of a chip are one device, as on a v5p; on a v4 libtpu has to be told.
    options: dict[str, Any] = {'chip_config_name': 'megacore'} if generation == 'v4' else {}
    if slices > 1:
        options['num_slices'] = slices
    try:
        # Hosts of 2 x 2 chips, as the single-host slices of every generation have; libtpu has to be told.
        options['chips_per_host_bounds'] = (2, 2, 1)
        topology = topologies.get_topology_desc(f'{generation}:{shape}', 'tpu', **options)
    except Exception as error:  # libtpu raises several classes of RuntimeError
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        if importlib.util.find_spec('libtpu') is None:
            fix = "install the extra 'tpu': pip install -e '.[tpu]'"
            raise UserError('config.topology', reason, 'libtpu, the TPU compiler', fix) from None
        raise UserError('config.topology', f'{name!r} ({reason})', example, 'correct the name') from None
    return list(topology.devices)


def _gpus(name: str, example: str) -> list[Any]:
    machines, gpu, count = parse_topology(name)
    if machines > 1 or 'x' in count:
        raise UserError('config.topology', repr(name), example, f'say how many GPUs one machine has: {gpu}:8')
    try:
        return gpu_devices(gpu, int(count))
    except Exception as error:  # the plug-in, too, raises what it likes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = "install the extra 'cuda': pip install -e '.[cuda]'"
        raise UserError('config.topology', f'{name!r} ({reason})', "JAX's compiler for CUDA", fix) from None
