"""bertjax/cores.py and bertjax/memory.py: the cores and the memory that a container or a Slurm job allows."""

import os
import pathlib
import subprocess
import sys

import psutil
import pytest

from bertjax import cores
from bertjax.memory import host_memory

NAMESPACE = '0::/\n'
V2 = '0::/system.slice/job_7/step_0\n'
V1 = '9:name=systemd:/x\n5:cpu,cpuacct:/docker/4f:a\n4:memory:/docker/4f:a\n0::/x\n'
LIMIT, UNLIMITED = 'memory.limit_in_bytes', '9223372036854771712'


@pytest.mark.parametrize(
    ('groups', 'files', 'expected_cores', 'gigabytes'),
    [
        (NAMESPACE, {'cpu.max': '50000 100000', 'memory.max': '8000000000'}, 1, 8),
        (NAMESPACE, {'cpu.max': '150000 100000', 'memory.max': 'max'}, 2, 64),
        (NAMESPACE, {'cpu.max': '9900000 100000', 'memory.max': '99000000000'}, 8, 64),
        (NAMESPACE, {'cpu.max': 'max 100000'}, 8, 64),
        # Slurm limits the job; the step has no further limit.
        (V2, {'system.slice/job_7/memory.max': '8000000000', 'system.slice/job_7/step_0/memory.max': 'max'}, 8, 8),
        (V2, {'system.slice/job_7/cpu.max': '300000 100000', 'system.slice/job_7/step_0/cpu.max': 'max 100000'}, 3, 64),
        # The container sees its own group at the top.
        (V1, {'cpu/cpu.cfs_quota_us': '200000', 'cpu/cpu.cfs_period_us': '100000'}, 2, 64),
        (V1, {f'memory/{LIMIT}': '8000000000'}, 8, 8),
        # The file system is that of the host.
        (V1, {f'memory/{LIMIT}': UNLIMITED, f'memory/docker/4f:a/{LIMIT}': '8000000000'}, 8, 8),
        (V1, {'cpu/docker/4f:a/cpu.cfs_quota_us': '-1', 'cpu/docker/4f:a/cpu.cfs_period_us': '100000'}, 8, 64),
        ('', {}, 8, 64),
    ],
)  # fmt: skip
def test_a_container_limits_the_cores_and_the_memory(
    groups: str,
    files: dict[str, str],
    expected_cores: int,
    gigabytes: int,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for name, text in {'proc/self/cgroup': groups, **{f'sys/fs/cgroup/{name}': files[name] for name in files}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'{text}\n' if name.startswith('sys') else text)
    memory = psutil.virtual_memory()._replace(total=64_000_000_000)
    monkeypatch.setattr(psutil, 'virtual_memory', lambda: memory)
    monkeypatch.setattr(cores, 'ROOT', tmp_path)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
    assert cores.available_cores() == expected_cores
    assert host_memory() == gigabytes * 1_000_000_000
    assert cores.schedulable_cores() == 8


def test_a_system_without_control_groups_has_no_limits(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cores, 'ROOT', tmp_path)
    assert cores.available_cores() == cores.schedulable_cores()
    assert host_memory() == psutil.virtual_memory().total


USE_OF_FREED_MEMORY = """
import numpy as np, psutil
from bertjax.memory import keep_freed_memory, return_freed_memory

def kept():
    start = psutil.Process().memory_info().rss
    arrays = [np.ones(2**20) for _ in range(16)]
    arrays = [arrays[-1][:1].copy()]
    return psutil.Process().memory_info().rss - start

for _ in range(2):
    with return_freed_memory():
        keep_freed_memory()
        returned = kept()
    keep_freed_memory()
    print(returned < 2**24 and kept() > 2**26)
"""


@pytest.mark.skipif(sys.platform != 'linux', reason='sets options of glibc')
def test_freed_memory_is_kept_except_in_the_context_that_returns_it():
    done = subprocess.run([sys.executable, '-c', USE_OF_FREED_MEMORY], capture_output=True, text=True, check=True)
    assert done.stdout == 'True\nTrue\n'
