"""The programs that the launchers call."""

import pathlib

import pytest
from cloud import Cloud


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Cloud:
    return Cloud(tmp_path)
