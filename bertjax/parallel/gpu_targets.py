"""NVIDIA GPUs by name, with the properties that XLA needs to compile without a GPU."""

import os
from typing import Any

_HOPPER: dict[str, Any] = {
    'major': 9,
    'minor': 0,
    'features': 'feature_extension: ACCELERATED_FEATURES',
    'multiprocessors': 132,
    'lanes': 128,
    'clock_ghz': 1.98,
    'shared_block': 232448,
    'shared_processor': 233472,
    'links': 450_000_000_000,
}
_AMPERE: dict[str, Any] = {
    'major': 8,
    'minor': 0,
    'features': '',
    'multiprocessors': 108,
    'lanes': 64,
    'clock_ghz': 1.41,
    'shared_block': 166912,
    'shared_processor': 167936,
    'links': 300_000_000_000,
}
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


def gpu_devices(name: str, count: int) -> list[Any]:
    """Creates the abstract devices of a machine with `count` GPUs, for `.lower().compile()` only.

    `name` is the kind of the GPUs, a key of GPUS.

    Raises:
      RuntimeError: JAX's plug-in for CUDA is not installed.
    """
    os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')  # compiling needs no driver
    import jax
    from jax.experimental import topologies

    jax.devices('cpu')  # starting JAX registers the plug-ins
    shape, target = f'1x1x{count}', _TARGET.format(**GPUS[name])  # partitions, hosts per partition, GPUs per host
    return list(topologies.get_topology_desc(name, 'cuda', topology=shape, target_config=target).devices)
