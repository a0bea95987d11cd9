"""Flags that any process may raise."""

import collections
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.parallel.distributed import is_multiprocess

DELAY = 2  # flags are read this many steps later, so that no step waits for them


class AnyProcessFlags:
    """Combines the flags of all processes: a combined flag is True if the flag of any process is True.

    Call the object once per step with the flags of this process. A call returns the combined flags of DELAY steps
    earlier, which are the same in all processes. These flags are False in the first DELAY steps and in as many
    steps after `clear`. If there is only one process, a call returns the current flags.
    """

    def __init__(self):
        self._unread: collections.deque[jax.Array] = collections.deque()
        self._any = _make_any() if is_multiprocess() else None

    def __call__(self, *flags: bool) -> tuple[bool, ...]:
        if self._any is None:
            return flags
        self._unread.append(self._any(np.asarray(flags)))
        if len(self._unread) <= DELAY:
            return (False,) * len(flags)
        return tuple(map(bool, np.asarray(self._unread.popleft())))

    def clear(self) -> None:
        """Discards the flags that were not returned yet. All processes must call this method at the same step."""
        self._unread.clear()


def _make_any() -> Callable[[np.ndarray], jax.Array]:
    """Builds a function (flags of this process, bool [N]) -> combined flags of all processes, bool [N]."""
    mesh = Mesh(np.asarray(jax.devices()), ('all',))
    sharded, replicated = NamedSharding(mesh, PartitionSpec('all')), NamedSharding(mesh, PartitionSpec())
    reduce = jax.jit(lambda flags: flags.any(0), out_shardings=replicated)

    def any_of(flags: np.ndarray) -> jax.Array:
        local = np.broadcast_to(flags, (jax.local_device_count(), *flags.shape))
        return reduce(jax.make_array_from_process_local_data(sharded, local, (mesh.size, *flags.shape)))

    return any_of
