"""Loads examples by number as global arrays on the mesh, and prefetches a few batches."""

import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.cores import available_cores

_MAX_LATE = 8  # another thread starts after the training loop has waited for this many batches
_MAX_THREADS = 8


class Examples(Protocol):
    """A source of examples. Example n is a pure function of n."""

    def batch(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the arrays of the examples `indices`, int64 [B]. Each array has B rows."""
        ...


@dataclasses.dataclass(frozen=True)
class NumberedBatch:
    """A batch on the devices. It contains the examples first, first + 1, ..., first + count - 1.

    Attributes:
      first: The number of the first example.
      count: The number of examples.
      number: The low 32 bits of `first`, uint32 [], replicated over the devices.
      arrays: The arrays by name, `count` rows each.
    """

    first: int
    count: int
    number: jax.Array
    arrays: Mapping[str, jax.Array]


def make_numbered_batch(
    first: int, arrays: Mapping[str, jax.Array], sharding: NamedSharding, count: int
) -> NumberedBatch:
    """Makes the `NumberedBatch` of the examples `first` to `first + count - 1` on the mesh of `sharding`."""
    replicated = NamedSharding(sharding.mesh, PartitionSpec())
    # jax.device_put would compare the numbers of all processes, but a background thread must not communicate.
    number = jax.make_array_from_process_local_data(replicated, np.uint32(first % 2**32), ())
    return NumberedBatch(first, count, number, arrays)


def local_rows(sharding: NamedSharding, rows: int) -> np.ndarray:
    """Returns the indices (ascending) of this process's rows in a global batch of `rows` rows."""
    slices = sharding.addressable_devices_indices_map((rows,)).values()
    return np.unique(np.concatenate([np.arange(rows)[index[0]] for index in slices]))


def global_arrays(rows: Mapping[str, np.ndarray], sharding: NamedSharding, total: int) -> dict[str, jax.Array]:
    """Makes global arrays of `total` rows from this process's rows (see `local_rows`)."""
    return {
        name: jax.make_array_from_process_local_data(sharding, x, (total, *x.shape[1:])) for name, x in rows.items()
    }


class Loader:
    """An endless iterator over batches of consecutive examples, which background threads make and copy to the devices.

    One thread is enough for most devices (benchmarks/input_pipeline.py). Each time the training loop has waited for
    _MAX_LATE more batches, another thread starts, up to `threads`. Threads run in parallel, because large numpy
    operations release the GIL. Each thread makes whole batches, so the examples do not depend on the number of threads.

    Args:
      examples: The source of the examples. Several threads may call it at the same time.
      first: The number of the first example.
      batch_size: The rows of a batch over all processes.
      sharding: The sharding of the rows.
      ahead: The number of batches to prefetch, in addition to one batch per thread.
      threads: The maximum number of threads; 0 means half of the cores, up to _MAX_THREADS.
    """

    def __init__(
        self, examples: Examples, *, first: int, batch_size: int, sharding: NamedSharding, ahead: int = 2,
        threads: int = 0,
    ):  # fmt: skip
        self._examples = examples
        self._first, self._batch_size = first, batch_size
        self._sharding = sharding
        self._rows = local_rows(sharding, batch_size)
        self._ahead, self._max_threads = ahead, threads or max(1, min(_MAX_THREADS, available_cores() // 2))
        self._changed = threading.Condition()
        self._ready: dict[int, NumberedBatch | BaseException] = {}  # by the index of the batch: 0, 1, 2, ...
        self._num_started = self._num_delivered = self._num_late = 0
        self._stop = False
        self._threads: list[threading.Thread] = []
        self._start_thread()

    def _start_thread(self) -> None:
        self._threads.append(threading.Thread(target=self._produce, name='loader', daemon=True))
        self._threads[-1].start()

    def _make(self, first: int) -> NumberedBatch:
        rows = self._examples.batch(first + self._rows.astype(np.int64))
        arrays = global_arrays(rows, self._sharding, self._batch_size)
        return make_numbered_batch(first, arrays, self._sharding, self._batch_size)

    def _produce(self) -> None:
        def may_begin() -> bool:
            return self._stop or self._num_started < self._num_delivered + self._ahead + len(self._threads)

        while True:
            with self._changed:
                self._changed.wait_for(may_begin)
                if self._stop:
                    return
                index, self._num_started = self._num_started, self._num_started + 1
            try:
                item = self._make(self._first + index * self._batch_size)
            except BaseException as error:  # the training loop raises it
                item = error
            with self._changed:
                self._ready[index] = item
                self._changed.notify_all()
            if isinstance(item, BaseException):
                return

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self

    def __next__(self) -> NumberedBatch:
        with self._changed:
            # The first batches do not count, because the loop always waits for them.
            self._num_late += self._num_delivered not in self._ready and self._num_delivered > self._ahead
            if self._num_late == _MAX_LATE and len(self._threads) < self._max_threads:
                self._num_late = 0
                self._start_thread()
            self._changed.wait_for(lambda: self._num_delivered in self._ready)
            item = self._ready[self._num_delivered]
            if isinstance(item, BaseException):  # the error stays, so that another call raises it instead of blocking
                raise item
            del self._ready[self._num_delivered]
            self._num_delivered += 1
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Stops the threads and waits until they have ended."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
