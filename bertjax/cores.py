"""The number of processor cores that this process may use, and the limits of its control group."""

import math
import os
import pathlib
from collections.abc import Iterator

ROOT = pathlib.Path('/')  # tests replace it


def schedulable_cores() -> int:
    """Returns the number of cores that threads may run on; `taskset` or a cpuset may allow fewer cores than exist."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def available_cores() -> int:
    """Returns the number of schedulable cores, limited by the CPU quota of a container or a Slurm job."""
    quotas = [*cgroup_limits('cpu', 'cpu.max'), *cgroup_limits('cpu', 'cpu.cfs_quota_us', 'cpu.cfs_period_us')]
    # cgroup v1 writes -1 for no quota.
    return min([schedulable_cores(), *(math.ceil(quota / period) for quota, period in quotas if quota > 0)])


def cgroup_limits(controller: str, *names: str) -> Iterator[list[int]]:
    """Yields a limit of the control group of this process, and of each parent group (Linux).

    In a container, the folder of the group may be missing; then the files of the group are in the top folder.

    Args:
      controller: The controller of cgroup v1, for example 'memory'.
      names: The files whose numbers form a limit, either of cgroup v1 or of v2. Groups without a limit are skipped.
    """
    try:
        lines = (ROOT / 'proc/self/cgroup').read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(':', 2)  # the controllers are empty for cgroup v2
        if controllers and controller not in controllers.split(','):
            continue
        top = ROOT / 'sys/fs/cgroup' / (controller if controllers else '')
        group = top / path.lstrip('/')
        for folder in (group, *group.parents):
            try:
                yield [int(word) for name in names for word in (folder / name).read_text().split()]
            except (OSError, ValueError):  # no such file, or `max`
                continue
