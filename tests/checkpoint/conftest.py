"""Fixtures that open and save checkpoints in a temporary folder."""

import pytest
from checkpoint_states import CONFIG, state_at

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.checkpoint.position import Position


@pytest.fixture
def open_checkpoints(tmp_path):
    """open_checkpoints(keep=3) -> (Checkpoints, list of its log lines). Every call opens the same folder."""
    opened = []

    def make(keep=3):
        logged = []
        opened.append(Checkpoints(tmp_path / 'checkpoints', keep=keep, log=logged.append))
        return opened[-1], logged

    yield make
    for checkpoints in opened:
        checkpoints.close()


@pytest.fixture
def saved_steps(open_checkpoints):
    """saved_steps({step: held-out loss or None}, keep=3) saves these steps and returns the folder."""

    def save(losses, keep=3):
        checkpoints, _ = open_checkpoints(keep)
        for step, loss in losses.items():
            checkpoints.save(state_at(step), Position(step, 0, 16 * step), CONFIG, loss)
        checkpoints.close()
        return checkpoints.directory

    return save
