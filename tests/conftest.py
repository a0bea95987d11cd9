"""Fixtures that every test may use."""

import os
import pathlib

# Before jax is imported anywhere: the tests need a mesh of several devices, and never another platform than CPU.
os.environ['JAX_PLATFORMS'] = 'cpu'
# Small models spend their time in the compiler: its cheaper half is enough for them.
os.environ['XLA_FLAGS'] = (
    '--xla_force_host_platform_device_count=8 '
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'
)

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='session')
def repository() -> pathlib.Path:
    """The checkout's top folder."""
    return REPOSITORY


@pytest.fixture(scope='session')
def shared() -> pathlib.Path:
    """Real text, vocabularies and tasks that lie beside a developer's checkout; not part of the project."""
    path = REPOSITORY.parent / 'shared' / 'data'
    if not path.is_dir():
        pytest.skip(f'no real data at {path}: this test compares with it')
    return path
