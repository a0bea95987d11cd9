"""NVIDIA GPUs by name, with the properties that XLA needs to compile for a GPU that is not present."""

import dataclasses
import os
from typing import Any


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The properties of a GPU.

    Sources: NVIDIA's whitepaper on each architecture, its data sheets, and, for shared memory, the tables of compute
    capabilities in the CUDA C++ programming guide.

    Attributes:
      shared_block, shared_processor: Shared memory of a block and of a multiprocessor, in bytes.
      cache, memory: Sizes of the L2 cache and of the memory, in bytes.
      bandwidth: Memory bandwidth in bytes per second.
      links: NVLink bandwidth in one direction, in bytes per second.
    """

    name: str
    capability: tuple[int, int]
    features: str
    multiprocessors: int
    lanes: int
    clock_ghz: float
    shared_block: int
    shared_processor: int
    cache: int
    bandwidth: int
    links: int
    memory: int


_HOPPER: dict[str, Any] = {
    'capability': (9, 0),
    'features': 'feature_extension: ACCELERATED_FEATURES',
    'multiprocessors': 132,
    'lanes': 128,
    'clock_ghz': 1.98,
    'shared_block': 232448,
    'shared_processor': 233472,
    'links': 450_000_000_000,
}
_AMPERE: dict[str, Any] = {
    'capability': (8, 0),
    'features': '',
    'multiprocessors': 108,
    'lanes': 64,
    'clock_ghz': 1.41,
    'shared_block': 166912,
    'shared_processor': 167936,
    'cache': 41943040,
    'links': 300_000_000_000,
}
GPUS = {
    'h200': Gpu('NVIDIA H200', **_HOPPER, cache=62914560, bandwidth=4_800_000_000_000, memory=150_000_000_000),
    'h100': Gpu('NVIDIA H100 80GB HBM3', **_HOPPER, cache=52428800, bandwidth=3_350_000_000_000, memory=85_000_000_000),
    'a100': Gpu('NVIDIA A100-SXM4-80GB', **_AMPERE, bandwidth=2_039_000_000_000, memory=85_000_000_000),
}
# Compiler options that switch off autotuning, which needs a GPU. XLA then uses its defaults.
UNTIMED = {'xla_gpu_autotune_level': 0}


def gpu_devices(name: str, count: int) -> list[Any]:
    """Creates the abstract devices of a machine with `count` GPUs, for `.lower().compile()` only.

    Args:
      name: A key of GPUS.

    Raises:
      RuntimeError: JAX's plug-in for CUDA is not installed.
    """
    os.environ.setdefault('JAX_SKIP_CUDA_CONSTRAINTS_CHECK', '1')  # compiling needs no driver
    import jax
    from jax.experimental import topologies

    jax.devices('cpu')  # starting JAX registers the plug-ins
    gpu = GPUS[name]
    target = f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} {gpu.features} }}
  core_count: {gpu.multiprocessors} fpus_per_core: {gpu.lanes} clock_rate_ghz: {gpu.clock_ghz}
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {gpu.shared_block}
  shared_memory_per_core: {gpu.shared_processor}
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: {gpu.cache} memory_bandwidth: {gpu.bandwidth} device_memory_size: {gpu.memory}
}}
platform_name: "CUDA" device_description_str: "{gpu.name}"
dnn_version_info {{ major: 9 minor: 10 }} runtime_version {{ major: 12 minor: 9 }}
"""
    shape = f'1x1x{count}'  # partitions, hosts per partition, GPUs per host
    return list(topologies.get_topology_desc(name, 'cuda', topology=shape, target_config=target).devices)
