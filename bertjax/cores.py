"""How many processor cores this process may use."""

import os


def available_cores() -> int:
    """Those that the system lets this process run on (a container, `taskset`), not those that the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
