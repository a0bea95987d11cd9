"""Boolean flags that are combined over all processes."""

import collections

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.parallel.distributed import is_multiprocess

DELAY = 2  # the combined flags are read this many steps later, so that no step waits for them


class AnyProcessFlags:
    """Combines the flags of all processes: a combined flag is True if the flag of any process is True.

    Call the object once per step with the flags of this process. A call returns the combined flags of `delay` steps
    earlier, which are the same in all processes. In the first `delay` steps, a call returns only False. If there is
    only one process, `delay` is 0, and a call returns the current flags.
    """

    def __init__(self):
        self.delay = DELAY if is_multiprocess() else 0
        mesh = Mesh(np.asarray(jax.devices()), ('all',))
        self._sharding = NamedSharding(mesh, PartitionSpec('all'))
        self._any = jax.jit(lambda flags: flags.any(0), out_shardings=NamedSharding(mesh, PartitionSpec()))
        self._unread: collections.deque[jax.Array] = collections.deque()

    def __call__(self, *flags: bool) -> tuple[bool, ...]:
        if not self.delay:
            return flags
        local = np.broadcast_to(flags, (jax.local_device_count(), len(flags)))
        shape = (jax.device_count(), len(flags))
        self._unread.append(self._any(jax.make_array_from_process_local_data(self._sharding, local, shape)))
        if len(self._unread) <= self.delay:
            return (False,) * len(flags)
        return tuple(map(bool, np.asarray(self._unread.popleft())))
