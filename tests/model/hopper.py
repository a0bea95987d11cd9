"""The compiler for NVIDIA GPUs without a GPU: the extra 'cuda' compiles for an H200 on any Linux machine."""

import importlib.util
from collections.abc import Callable

import jax
import pytest

from bertjax.parallel.topology import topology_devices


@pytest.fixture(scope='session')
def hopper() -> Callable[[int], list[jax.Device]]:
    """hopper(count) -> abstract devices of H200s in one machine."""
    plugins = importlib.util.find_spec('jax_plugins')  # of which the others are parts, and cannot be asked for without
    if not plugins or not any(importlib.util.find_spec(f'jax_plugins.xla_cuda{version}') for version in (12, 13)):
        pytest.skip("the compiler for NVIDIA's GPUs is not installed: the extra 'cuda'")
    return lambda count: topology_devices(f'h200:{count}')
