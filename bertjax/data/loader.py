"""From example numbers to global arrays on the mesh, a few batches ahead of the training step."""

import dataclasses
import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Protocol

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


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
    return NumberedBatch(first, count, jax.device_put(np.uint32(first % 2**32), whole), arrays)


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
    """Endless batches of consecutive examples, made and sent to the devices by a background thread.

    A thread is enough: making a batch is a few large numpy operations, which release the interpreter's lock, and
    several times faster than a device consumes them (benchmarks/input_pipeline.py).
    """

    def __init__(self, examples: Examples, *, first: int, batch_size: int, sharding: NamedSharding, ahead: int = 2):
        self._examples = examples
        self._batch_size = batch_size
        self._sharding = sharding
        self._rows = local_rows(sharding, batch_size)
        self._queue: queue.Queue = queue.Queue(maxsize=ahead)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce, args=(first,), name='loader', daemon=True)
        self._thread.start()

    def _make(self, first: int) -> NumberedBatch:
        rows = self._examples.batch(first + self._rows.astype(np.int64))
        arrays = global_arrays(rows, self._sharding, self._batch_size)
        return numbered(first, arrays, self._sharding, self._batch_size)

    def _produce(self, first: int) -> None:
        while not self._stop.is_set():
            try:
                item = self._make(first)
            except BaseException as error:  # handed over: the training loop raises it
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return
            first += self._batch_size

    def __iter__(self) -> Iterator[NumberedBatch]:
        return self

    def __next__(self) -> NumberedBatch:
        item = self._queue.get()
        if isinstance(item, BaseException):
            self._queue.put(item)  # nothing follows it: asking again raises again, and does not block
            raise item
        return item

    def close(self) -> None:
        """Stops the thread and drops the batches that were not taken."""
        self._stop.set()
        self._thread.join()
