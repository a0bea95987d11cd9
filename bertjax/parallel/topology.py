"""TPU slices and machines with GPUs by name, for compilation without the hardware."""

import dataclasses
import importlib.util
import math
import os
import platform
import re
import sys
from typing import Any

import jax
from jax.experimental import topologies

from bertjax.errors import UserError, first_line


@dataclasses.dataclass(frozen=True)
class Generation:
    """The properties of a device of a TPU generation, or of a GPU.

    A device is a chip, but on v3 it is one of the two cores of a chip and has half of the chip's memory and bandwidth.
    Bandwidths are in bytes per second.
    """

    hbm_bytes: int  # high-bandwidth memory
    hbm_bandwidth: float
    link_bandwidth: float  # of one link to a neighbor in one direction
    # A side of a slice is a ring if its length is a multiple of this number. On v4 and v5p, either all sides longer
    # than 1 are rings, or none is.
    closed: int
    clock_hz: float  # of a TensorCore
    network_bandwidth: float = 0.0  # of a chip, between slices; 0 if it is not published


# Sources:
# - Memory, its bandwidth, links and network: docs.cloud.google.com/tpu/docs/v5e, v5p, v6e, v4. "Bidirectional ICI" is
#   the sum of both directions of four or six links. The network has 6.4 and 25.6 Tbit/s for 256 chips of v5e and v6e,
#   and 50 Gbit/s for a chip of v5p.
# - Links of v3 and v4: Jouppi et al., arXiv 2304.01433, table 4.
# - Clocks: the peak FLOPs per second of a chip, divided by its FLOPs per cycle (two for each multiplier). A
#   chip has 4 (v3, v5e) or 8 (v4, v5p) units of 128 x 128 multipliers. A v6e chip has 4 units of 256 x 256. Google's
#   page mentions 2 units, but then the compiler's estimate of a large product would be 1.4 times the peak.
GENERATIONS = {
    'v3': Generation(16 * 2**30, 450e9, 35e9, 32, 0.94e9),
    'v4': Generation(32 * 2**30, 1200e9, 50e9, 4, 1.05e9),
    'v5e': Generation(16 * 2**30, 819e9, 50e9, 16, 1.5e9, 25e9 / 8),
    'v5p': Generation(95 * 2**30, 2765e9, 100e9, 4, 1.75e9, 50e9 / 8),
    'v6e': Generation(32 * 2**30, 1638e9, 100e9, 16, 1.75e9, 100e9 / 8),
}
_HOPPER: dict[str, Any] = {
    'major': 9, 'minor': 0, 'features': 'feature_extension: ACCELERATED_FEATURES',
    'multiprocessors': 132, 'lanes': 128, 'clock_ghz': 1.98,
    'shared_block': 232448, 'shared_processor': 233472, 'links': 450_000_000_000,
}  # fmt: skip
_AMPERE: dict[str, Any] = {
    'major': 8, 'minor': 0, 'features': '',
    'multiprocessors': 108, 'lanes': 64, 'clock_ghz': 1.41,
    'shared_block': 166912, 'shared_processor': 167936, 'links': 300_000_000_000,
}  # fmt: skip
# Sources: NVIDIA's whitepapers and data sheets, and for shared memory the tables of compute capabilities in the CUDA
# C++ programming guide. Sizes are in bytes, and `cache` is the L2 cache. `bandwidth` (of the memory) and `links`
# (NVLink, in one direction) are in bytes per second.
GPUS: dict[str, dict[str, Any]] = {
    'h200': {
        **_HOPPER, 'name': 'NVIDIA H200',
        'cache': 62914560, 'bandwidth': 4_800_000_000_000, 'memory': 150_000_000_000,
    },
    'h100': {
        **_HOPPER, 'name': 'NVIDIA H100 80GB HBM3',
        'cache': 52428800, 'bandwidth': 3_350_000_000_000, 'memory': 85_000_000_000,
    },
    'a100': {
        **_AMPERE, 'name': 'NVIDIA A100-SXM4-80GB',
        'cache': 41943040, 'bandwidth': 2_039_000_000_000, 'memory': 85_000_000_000,
    },
}  # fmt: skip
_TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} {features} }}
  core_count: {multiprocessors} fpus_per_core: {lanes} clock_rate_ghz: {clock_ghz}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {shared_block}
  shared_memory_per_core: {shared_processor}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: {cache} memory_bandwidth: {bandwidth} device_memory_size: {memory}
}}
platform_name: "CUDA" device_description_str: "{name}"
dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 9 }}
"""
# Compiler options that switch off autotuning, which needs a GPU. XLA then uses its defaults.
UNTIMED = {'xla_gpu_autotune_level': 0}
# By default, JAX uses three quarters of a GPU's memory. A switch connects the GPUs of a machine, so no side is a ring.
GENERATIONS |= {
    name: Generation(gpu['memory'] * 3 // 4, gpu['bandwidth'], gpu['links'], 1 << 30, gpu['clock_ghz'] * 1e9)
    for name, gpu in GPUS.items()
}
_WHOLE_CUBES = ('v4', 'v5p')
_NAME = re.compile(r'(?:([1-9]\d*)\*)?(\w+):[1-9]\d*(?:x[1-9]\d*)*')


def parse_topology(name: str) -> tuple[int, str, str]:
    """Parses 'v5e:4x4' (one slice) or '2*v5e:4x4' (two slices) to (slices, generation, chips along each side)."""
    count, _, slice_name = name.rpartition('*')
    generation, _, shape = slice_name.partition(':')
    return int(count or 1), generation, shape


def generation_of(name: str) -> Generation:
    """Returns the generation of a topology such as 'v5e:4x4'."""
    return GENERATIONS[parse_topology(name)[1]]


def slice_chips(name: str) -> int:
    """Returns the number of chips of each slice of a topology such as 'v5e:4x4'."""
    return math.prod(int(side) for side in parse_topology(name)[2].split('x'))


def ici_bandwidth(name: str, chips: int) -> float:
    """Returns the bytes per second that a chip can send to the others of a group of `chips` chips in one slice.

    If the group is the whole slice, a chip sends along every side of the slice, else along one side. The chip sends in
    both directions along a ring, and in one direction along other sides.
    """
    _, generation, shape = parse_topology(name)
    spec = generation_of(name)
    sides = [int(side) for side in shape.split('x') if int(side) > 1]
    closes = [side % spec.closed == 0 for side in sides]
    if generation in _WHOLE_CUBES and not all(closes):
        closes = [False] * len(sides)
    links = [2 if ring else 1 for ring in closes] or [1]
    return spec.link_bandwidth * (sum(links) if chips >= slice_chips(name) else max(links))


def topology_devices(name: str) -> list[Any]:
    """Creates the abstract devices of a topology, for `.lower().compile()` only.

    Args:
      name: A TPU slice such as 'v5e:4x4' or 'v5p:2x2x4' (chips along each side), several slices connected by the
        data center network such as '2*v5e:16x16', or a machine with GPUs such as 'h200:8'.

    Raises:
      UserError: The compiler is missing, the name is unknown, or `network_bandwidth` is 0 for several slices.
    """
    example = 'v5e:4x4, v5p:2x2x4 (generation, chips along each side), 2*v5e:16x16 (two slices) or h200:8 (GPUs)'
    match = _NAME.fullmatch(name)
    if not match or match.group(2) not in GENERATIONS:
        raise UserError('config.topology', repr(name), example, 'for example --config.topology=v5e:4x4')
    slices, generation, shape = parse_topology(name)
    if generation in GPUS:
        return _make_gpus(name, example)
    if slices > 1 and not GENERATIONS[generation].network_bandwidth:
        generations = ', '.join(key for key, spec in GENERATIONS.items() if spec.network_bandwidth)
        expected, fix = f'several slices of {generations}', 'choose one of these generations, or one slice'
        raise UserError('config.topology', repr(name), expected, fix)
    os.environ.setdefault('TPU_SKIP_MDS_QUERY', '1')  # without it, libtpu waits for a cloud metadata server
    os.environ.setdefault('ALLOW_MULTIPLE_LIBTPU_LOAD', '1')  # compiling needs no exclusive use of the chips
    # On v4, libtpu needs an option to treat both cores of a chip as one device, as on v5p.
    options: dict[str, Any] = {'chip_config_name': 'megacore'} if generation == 'v4' else {}
    if slices > 1:
        options['num_slices'] = slices
    try:
        # Each host has 2 x 2 chips, as in the single-host slices of every generation, or the only chip of the slice.
        options['chips_per_host_bounds'] = (1, 1, 1) if slice_chips(name) == 1 else (2, 2, 1)
        topology = topologies.get_topology_desc(f'{generation}:{shape}', 'tpu', **options)
    except Exception as error:  # libtpu raises several kinds of RuntimeError
        reason = first_line(error)
        if importlib.util.find_spec('libtpu') is None:
            fix = "install the extra 'tpu': pip install 'bertjax[tpu]'"
            if (sys.platform, platform.machine()) != ('linux', 'x86_64'):
                fix = 'compile for TPUs on Linux on x86-64, because libtpu does not exist for this machine'
            raise UserError('config.topology', reason, 'libtpu, the TPU compiler', fix) from None
        raise UserError('config.topology', f'{name!r} ({reason})', example, 'correct the name') from None
    return list(topology.devices)


def _make_gpus(name: str, example: str) -> list[Any]:
    """Creates the abstract devices of a machine with GPUs."""
    machines, gpu, count = parse_topology(name)
    if machines > 1 or 'x' in count:
        raise UserError('config.topology', repr(name), example, f'give the number of GPUs of one machine: {gpu}:8')
    os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')  # compiling needs no driver
    shape, target = f'1x1x{count}', _TARGET.format(**GPUS[gpu])  # partitions, hosts per partition, GPUs per host
    try:
        jax.devices('cpu')  # starting JAX registers the plug-ins
        return list(topologies.get_topology_desc(gpu, 'cuda', topology=shape, target_config=target).devices)
    except Exception as error:  # the plug-in raises various errors
        reason = first_line(error)
        fix = "install the extra 'cuda': pip install 'bertjax[cuda]'"
        raise UserError('config.topology', f'{name!r} ({reason})', "JAX's compiler for CUDA", fix) from None
