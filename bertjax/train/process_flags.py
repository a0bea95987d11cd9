"""What any of several processes wishes, as all of them learn it at one step."""

import collections
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.parallel.distributed import is_multiprocess

READ_BEHIND = 2  # what is asked for is known so many steps later, so that no step waits for it


class AnyProcessFlags:
    """What any of the processes asks for, as all of them learn it at one and the same step.

    Called once a step with the wishes of this process, it says what was wished by any of them READ_BEHIND steps before;
    where there is one process, what it wishes now.
    """

    def __init__(self):
        self._unread: collections.deque[jax.Array] = collections.deque()
        self._any = _make_any() if is_multiprocess() else None

    def __call__(self, *wishes: bool) -> tuple[bool, ...]:
        if self._any is None:
            return wishes
        self._unread.append(self._any(np.asarray(wishes)))
        if len(self._unread) <= READ_BEHIND:
            return (False,) * len(wishes)
        return tuple(map(bool, np.asarray(self._unread.popleft())))

    def forget(self) -> None:
        """What was wished and not said yet is void: for all, who do this at the same step."""
        self._unread.clear()


def _make_any() -> Callable[[np.ndarray], jax.Array]:
    """bool [N] of this process -> bool [N], the same in all of them."""
    mesh = Mesh(np.asarray(jax.devices()), ('all',))
    each, everywhere = NamedSharding(mesh, PartitionSpec('all')), NamedSharding(mesh, PartitionSpec())
    reduce = jax.jit(lambda wishes: wishes.any(0), out_shardings=everywhere)

    def any_of(wishes: np.ndarray) -> jax.Array:
        own = np.broadcast_to(wishes, (jax.local_device_count(), *wishes.shape))
        return reduce(jax.make_array_from_process_local_data(each, own, (mesh.size, *wishes.shape)))

    return any_of
