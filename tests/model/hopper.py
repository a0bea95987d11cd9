"""A fixture of abstract H200 devices: the extra 'cuda' compiles for them on any Linux machine without a GPU."""

import importlib.util
from collections.abc import Callable

import jax
import pytest

from bertjax.parallel.topology import topology_devices


@pytest.fixture(scope='session')
def hopper() -> Callable[[int], list[jax.Device]]:
    """hopper(count) -> abstract devices of `count` H200s in one machine."""
    plugins = importlib.util.find_spec('jax_plugins')  # `find_spec` of a submodule fails without its parent package.
    if not plugins or not any(importlib.util.find_spec(f'jax_plugins.xla_cuda{version}') for version in (12, 13)):
        pytest.skip("the compiler for NVIDIA GPUs is not installed: it is in the extra 'cuda'")
    return lambda count: topology_devices(f'h200:{count}')
