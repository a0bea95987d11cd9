"""The number of processor cores that this process may use."""

import os


def available_cores() -> int:
    """Returns the number of cores that this process may run on; `taskset` or a cpuset may allow fewer than exist."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
