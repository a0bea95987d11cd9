"""Fixtures with train steps that are compiled once for all tests."""

import pytest
from train_fakes import MESH_RECIPE, NO_DROPOUT, Run, host, tiny_config


@pytest.fixture(scope='session')
def plain_run():
    """A run on one device without dropout, whose warm-up is longer than the tests."""
    return Run(tiny_config(model=NO_DROPOUT, warmup_fraction=0.5))


@pytest.fixture(scope='session')
def accumulating_run():
    """A run like `plain_run` with four microbatches."""
    return Run(tiny_config(model=NO_DROPOUT, warmup_fraction=0.5, grad_accum_steps=4))


@pytest.fixture(scope='session')
def fresh(plain_run):
    """The state at step 0 on the host, which is the same for every tiny config."""
    return host(plain_run.init())


@pytest.fixture(scope='session')
def dropout_run():
    """A run on one device with BERT's dropout."""
    return Run(tiny_config(**MESH_RECIPE))


@pytest.fixture(scope='session')
def one_device_rows(dropout_run, fresh):
    """The metrics of the first ten steps of `dropout_run`."""
    return dropout_run.steps(dropout_run.place(fresh), 0, 10)[1]
