"""The number of processor cores that this process may use."""

import math
import os
import pathlib

CPU_MAX = pathlib.Path('/sys/fs/cgroup/cpu.max')  # the CPU quota of a container and its period (Linux, cgroup v2)


def schedulable_cores() -> int:
    """Returns the number of cores that threads may run on; `taskset` or a cpuset may allow fewer cores than exist."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def available_cores() -> int:
    """Returns the number of schedulable cores, limited by the CPU quota of the container."""
    cores = schedulable_cores()
    try:
        quota, period = CPU_MAX.read_text().split()
        return min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no container, or the quota is `max`
        return cores
