"""From example numbers to global arrays on the mesh, a few batches ahead of the training step."""

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.cores import available_cores

_LATE = 8  # Batches that were not ready when they were asked for, for which another thread starts.
_MOST_THREADS = 8


class Examples(Protocol):
    """Anything whose example n is a pure function of n."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """int64 [B] -> arrays with B rows each."""
        ...


@dataclasses.dataclass(frozen=True)
class NumberedBatch:
    """A batch on the devices and the example numbers that are in it: first, first + 1, ... first + count - 1.

    Attributes:
      first, count: these.
      number: the low 32 bits of `first` on every device, uint32 [].
      arrays: by name, of `count` rows.
    """

    first: int
    count: int
    number: jax.Array
    arrays: Mapping[str, jax.Array]


def numbered(first: int, arrays: Mapping[str, jax.Array], sharding: NamedSharding, count: int) -> NumberedBatch:
    """A batch of `count` rows, which `sharding` splits, from example `first` on."""
    whole = NamedSharding(sharding.mesh, PartitionSpec())
    # jax.device_put would ask the other processes whether they have the same number, from a thread.
    number = jax.make_array_from_process_local_data(whole, np.uint32(first % 2**32), ())
    return NumberedBatch(first, count, number, arrays)


def local_rows(sharding: NamedSharding, rows: int) -> np.ndarray:
    """The rows of a global batch of `rows` that this process's devices hold, ascending."""
    slices = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index[0]] for index in slices]))


def global_arrays(rows: Mapping[str, np.ndarray], sharding: NamedSharding, total: int) -> dict[str, jax.Array]:
    """Arrays of `total` rows over the mesh, from the rows that `local_rows` names."""
    return {
        name: jax.make_array_from_process_local_data(sharding, x, (total, *x.shape[1:])) for name, x in rows.items()
    }


class Loader:
    """Endless batches of consecutive examples, made and sent to the devices by background threads, in their order.

    One thread is enough for most devices: it makes batches of large numpy operations, which release the interpreter's
    lock (benchmarks/input_pipeline.py). When the training loop has come _LATE times for a batch that was not ready,
    another joins, up to `threads`; each makes whole batches, so that no example depends on how many there are.

    Args:
      examples: what is loaded; asked by several threads at once.
      first: the number of the first example.
      batch_size: rows of a batch, of all processes together.
      sharding: how rows are split.
      ahead: how many finished batches wait for the loop.
      threads: at most; 0 is a half of the cores, up to _MOST_THREADS.
    """

    def __init__(
        self, examples: Examples, *, first: int, batch_size: int, sharding: NamedSharding, ahead: int = 2,
        threads: int = 0,
    ):  # fmt: skip
        self._examples = examples
        self._first, self._batch_size = first, batch_size
        self._sharding = sharding
        self._rows = local_rows(sharding, batch_size)
        self._ahead, self._most = ahead, threads or _threads()
        self._changed = threading.Condition()
        self._ready: dict[int, NumberedBatch | BaseException] = {}  # by the batch's place: 0, 1, 2, ...
        self._begun = self._taken = self._late = 0
        self._stop = False
        self._threads: list[threading.Thread] = []
        self._start_thread()

    def _start_thread(self) -> None:
        self._threads.append(threading.Thread(target=self._produce, name='loader', daemon=True))
        self._threads[-1].start()

    def _make(self, first: int) -> NumberedBatch:
        rows = self._examples.batch(first + self._rows.astype(np.int64))
        arrays = global_arrays(rows, self._sharding, self._batch_size)
        return numbered(first, arrays, self._sharding, self._batch_size)

    def _produce(self) -> None:
        def may_begin() -> bool:
            return self._stop or self._begun < self._taken + self._ahead + len(self._threads)

        while True:
            with self._changed:
                self._changed.wait_for(may_begin)
                if self._stop:
                    return
                place, self._begun = self._begun, self._begun + 1
            try:
                item = self._make(self._first + place * self._batch_size)
            except BaseException as error:  # handed over: the training loop raises it
                item = error
            with self._changed:
                self._ready[place] = item
                self._changed.notify_all()
            if isinstance(item, BaseException):
                return

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self

    def __next__(self) -> NumberedBatch:
        with self._changed:
            # The first batches are waited for whatever the speed: what is ahead is not there yet.
            self._late += self._taken not in self._ready and self._taken > self._ahead
            if self._late == _LATE and len(self._threads) < self._most:
                self._late = 0
                self._start_thread()
            self._changed.wait_for(lambda: self._taken in self._ready)
            item = self._ready[self._taken]
            if isinstance(item, BaseException):  # it stays: asking again raises again, and does not block
                raise item
            del self._ready[self._taken]
            self._taken += 1
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Stops the threads and drops the batches that were not taken."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()


def _threads() -> int:
    return max(1, min(_MOST_THREADS, available_cores() // 2))
