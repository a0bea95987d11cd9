"""Steps that are compiled once for all tests."""

import pytest
from train_fakes import MESH_RECIPE, NO_DROPOUT, Run, host, tiny_config


@pytest.fixture(scope='session')
def plain_run():
    """One device, no dropout, a warm-up that is still rising at every step of the tests."""
    return Run(tiny_config(model=NO_DROPOUT, warmup_fraction=0.5))


@pytest.fixture(scope='session')
def accumulating_run():
    """The same, a batch worked through in four parts."""
    return Run(tiny_config(model=NO_DROPOUT, warmup_fraction=0.5, accumulate=4))


@pytest.fixture(scope='session')
def fresh(plain_run):
    """The state at step 0, on the host; the same for every tiny recipe."""
    return host(plain_run.init())


@pytest.fixture(scope='session')
def dropout_run():
    """One device, dropout as BERT has it."""
    return Run(tiny_config(**MESH_RECIPE))
