"""Fixtures: the programs that the launchers call."""

import pathlib
import signal
from collections.abc import Iterator

import pytest
from cloud import Cloud


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


@pytest.fixture(autouse=True)
def _default_sigint() -> Iterator[None]:
    """Restores Python's handler of SIGINT, which pytest ignores if bash started it in the background.

    A bash script that inherits an ignored SIGINT could not trap it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
