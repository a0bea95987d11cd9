"""Loads examples by number as global arrays on the mesh, and prefetches a few batches."""

import collections
import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bertjax.cores import available_cores

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

    Threads run in parallel, because large numpy operations release the GIL. Each thread makes whole batches, so the
    examples do not depend on the number of threads. One thread is enough for most devices
    (benchmarks/input_pipeline.py). Each time the training loop has to wait, another batch is prefetched, so that
    another thread works.

    Args:
      examples: The source of the examples. Several threads may call `batch` of the source at the same time.
      first: The number of the first example.
      batch_size: The rows of a batch over all processes.
      sharding: The sharding of the rows.
      ahead: The number of batches to prefetch, in addition to one batch per working thread.
      threads: The number of threads; 0 means half of the cores, up to _MAX_THREADS.
    """

    def __init__(
        self, examples: Examples, *, first: int, batch_size: int, sharding: NamedSharding, ahead: int = 2,
        threads: int = 0,
    ):  # fmt: skip
        self._examples = examples
        self._next, self._batch_size = first, batch_size
        self._sharding = sharding
        self._rows = local_rows(sharding, batch_size)
        threads = threads or max(1, min(_MAX_THREADS, available_cores() // 2))
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix='loader')
        self._batches: collections.deque[concurrent.futures.Future[NumberedBatch]] = collections.deque()
        self._max_batches = ahead + threads
        for _ in range(ahead + 1):
            self._submit()

    def _submit(self) -> None:
        self._batches.append(self._pool.submit(self._make, self._next))
        self._next += self._batch_size

    def _make(self, first: int) -> NumberedBatch:
        rows = self._examples.batch(first + self._rows.astype(np.int64))
        arrays = global_arrays(rows, self._sharding, self._batch_size)
        return make_numbered_batch(first, arrays, self._sharding, self._batch_size)

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self

    def __next__(self) -> NumberedBatch:
        if not self._batches[0].done() and len(self._batches) < self._max_batches:
            self._submit()
        batch = self._batches[0].result()  # an error stays, so that another call raises it again
        self._batches.popleft()
        self._submit()
        return batch

    def close(self) -> None:
        """Stops the threads and waits until they have ended."""
        self._pool.shutdown(cancel_futures=True)
