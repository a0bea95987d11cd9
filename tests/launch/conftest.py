"""The programs that the launchers call."""

import pathlib
import signal
from collections.abc import Iterator

import pytest
from cloud import Cloud


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Ctrl-C is not ignored: bash has what runs in its background ignore it, and what ignores it from the start cannot
    trap it in bash."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
