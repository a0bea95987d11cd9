"""Tests the loader: the order of batches, starts at any example, errors, and the rows of a process."""

import threading
import time

import jax
import numpy as np
import pytest

from bertjax.data.loader import Loader, global_arrays, local_rows
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import batch_sharding


class Numbers:
    """Examples in which example n is the row [n, n + 1, n + 2]. A batch with an n above `broken` raises an error."""

    def __init__(self, broken=10**9):
        self.broken, self.requests = broken, []

    def batch(self, indices):
        self.requests.append(np.array(indices))
        if indices.max() > self.broken:
            raise ValueError(f'example {indices.max()} is broken')
        return {'x': (indices[:, None] + np.arange(3)).astype(np.int32), 'y': indices.astype(np.float32)}


@pytest.fixture(scope='module', params=[(1, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8)])
def sharding(request):
    data, fsdp, tensor = request.param
    devices = jax.devices()[: data * fsdp * tensor]
    return batch_sharding(make_mesh({'data': data, 'fsdp': fsdp, 'tensor': tensor}, devices))


@pytest.fixture
def loaders():
    """loaders(*args, **options) -> a Loader, which is closed at the end of the test."""
    created = []

    def make(*args, **options):
        created.append(Loader(*args, **options))
        return created[-1]

    yield make
    for loader in created:
        loader.close()


def test_consecutive_batches_on_every_mesh(sharding, loaders):
    loader = loaders(Numbers(), first=0, batch_size=16, sharding=sharding)
    for i, batch in zip(range(5), loader, strict=False):
        assert (batch.first, batch.count) == (16 * i, 16)
        assert batch.arrays['x'].sharding == sharding
        np.testing.assert_array_equal(batch.arrays['y'], np.arange(16 * i, 16 * (i + 1)))
        np.testing.assert_array_equal(batch.arrays['x'], np.arange(16 * i, 16 * (i + 1))[:, None] + np.arange(3))


def test_a_start_at_any_example_gives_the_same_batches(sharding, loaders):
    first = 16 * 10**6
    examples = Numbers()
    batch = next(loaders(examples, first=first, batch_size=16, sharding=sharding))
    assert batch.first == first
    np.testing.assert_array_equal(batch.arrays['x'][:, 0], first + np.arange(16))
    assert min(request.min() for request in examples.requests) == first  # Earlier examples were not made.


def test_example_numbers_may_exceed_32_bits(sharding, loaders):
    examples = Numbers(broken=2**62)
    next(loaders(examples, first=5 * 10**9, batch_size=16, sharding=sharding))
    assert examples.requests[0].dtype == np.int64
    assert examples.requests[0][0] == 5 * 10**9


def test_an_exception_is_raised_at_its_batch(sharding, loaders):
    loader = loaders(Numbers(broken=40), first=0, batch_size=16, sharding=sharding)
    assert next(loader).first == 0
    assert next(loader).first == 16
    for _ in range(2):  # The second call must raise again, not block.
        with pytest.raises(ValueError, match='example 47 is broken'):
            next(loader)


def test_close_ends_all_threads(sharding):
    before = threading.active_count()
    untouched = Loader(Numbers(), first=0, batch_size=16, sharding=sharding)
    used = Loader(Numbers(), first=0, batch_size=16, sharding=sharding)
    next(used)
    failed = Loader(Numbers(broken=-1), first=0, batch_size=16, sharding=sharding)
    assert threading.active_count() > before
    for loader in (untouched, used, failed):
        loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith('loader')]


def test_the_number_of_batches_made_ahead_is_bounded(loaders):
    sharding = batch_sharding(make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1]))
    examples = Numbers()
    loaders(examples, first=0, batch_size=4, sharding=sharding, ahead=2, threads=1)
    deadline = time.monotonic() + 20
    while len(examples.requests) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    assert len(examples.requests) == 3


@pytest.fixture
def one_device():
    return batch_sharding(make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1]))


def test_several_threads_do_not_change_the_order(one_device, loaders):
    threads = set()

    class Slow(Numbers):
        def batch(self, indices):
            threads.add(threading.get_ident())
            time.sleep(0.01 if indices[0] % 8 else 0.02)  # Later batches overtake some batches.
            return super().batch(indices)

    loader = loaders(Slow(), first=40, batch_size=4, sharding=one_device, threads=3)
    for i, batch in zip(range(60), loader, strict=False):
        assert batch.first == 40 + 4 * i
        np.testing.assert_array_equal(batch.arrays['y'], np.arange(batch.first, batch.first + 4))
    assert len(threads) == 3


def test_an_exception_is_raised_at_its_batch_with_several_threads(one_device, loaders):
    loader = loaders(Numbers(broken=40), first=0, batch_size=4, sharding=one_device, threads=4)
    assert [next(loader).first for _ in range(10)] == list(range(0, 40, 4))
    for _ in range(2):
        with pytest.raises(ValueError, match='example 43 is broken'):
            next(loader)


def test_a_single_process_makes_all_rows(sharding):
    np.testing.assert_array_equal(local_rows(sharding, 16), np.arange(16))


def test_rows_of_another_process_are_not_made(monkeypatch):
    """There are two processes of four devices each; this is the second one."""
    sharding = batch_sharding(make_mesh({'data': 4, 'fsdp': 2, 'tensor': 1}))
    all_indices = sharding.devices_indices_map

    class SecondProcess:
        def addressable_devices_indices_map(self, shape):
            return dict(list(all_indices(shape).items())[4:])

    np.testing.assert_array_equal(local_rows(SecondProcess(), 16), np.arange(8, 16))


def test_global_arrays_keep_dtypes_and_shapes(sharding):
    rows = {'a': np.zeros((8, 2, 3), np.float32), 'b': np.arange(8, dtype=np.int32)}
    arrays = global_arrays(rows, sharding, 8)
    assert {name: (x.shape, x.dtype) for name, x in arrays.items()} == {
        name: (x.shape, x.dtype) for name, x in rows.items()
    }
