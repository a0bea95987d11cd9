"""bertjax/cores.py: the number of usable cores."""

import os
import pathlib

import pytest

from bertjax import cores


@pytest.mark.parametrize(
    ('limit', 'allowed'), [('50000 100000', 1), ('150000 100000', 2), ('9900000 100000', 99), ('max 100000', 99)]
)
def test_a_container_limits_the_cores(
    limit: str, allowed: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / 'cpu.max'
    path.write_text(limit + '\n')
    monkeypatch.setattr(cores, 'CPU_MAX', path)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
    assert cores.available_cores() == min(8, allowed)
    assert cores.schedulable_cores() == 8
    path.unlink()
    assert cores.available_cores() == 8
