"""The compiler of NVIDIA's GPUs, without one: the extra 'cuda' compiles for an H200 on any machine with Linux."""

import importlib.util
from collections.abc import Callable

import jax
import pytest

# What XLA has to know of a GPU that it cannot ask: from the whitepaper of the H100, with the H200's memory.
TARGET = """
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: 62914560 memory_bandwidth: 4800000000000 device_memory_size: 150000000000
}
platform_name: "CUDA" device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 10 } runtime_version { major: 12 minor: 9 }
"""


@pytest.fixture(scope='session')
def hopper() -> Callable[[int], list[jax.Device]]:
    """hopper(count) -> abstract devices of H200s in one machine."""
    plugins = importlib.util.find_spec('jax_plugins')  # of which the others are parts, and cannot be asked for without
    if not plugins or not any(importlib.util.find_spec(f'jax_plugins.xla_cuda{version}') for version in (12, 13)):
        pytest.skip("the compiler for NVIDIA's GPUs is not installed: the extra 'cuda'")
    from jax.experimental import topologies

    return lambda count: list(
        topologies.get_topology_desc('h200', 'cuda', topology=f'1x1x{count}', target_config=TARGET).devices
    )
