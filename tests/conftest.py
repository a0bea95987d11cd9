"""Fixtures that every test may use."""

import fcntl
import gc
import importlib.metadata
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

# Set before the first import of jax: the tests run on CPU only, with a mesh of several devices.
os.environ['JAX_PLATFORMS'] = 'cpu'
# Tests of small models spend most of their time in the compiler, which takes a third of the time without optimizations.
os.environ['XLA_FLAGS'] = (
    '--xla_force_host_platform_device_count=8 --xla_cpu_parallel_codegen_split_count=1 '
    '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true '
    # Later versions of XLA abort because they do not have this flag.
    + ('--xla_cpu_use_fusion_emitters=false' if importlib.metadata.version('jaxlib').startswith('0.10.') else '')
)

import jax
import numpy as np
import pytest
from browsing import Browser, launch_browser
from flax import linen as nn

from bertjax.parallel.compile_cache import machine_name, prune

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# JAX and the tests are hundreds of thousands of permanent objects. Garbage collections that scan them again and again
# would take a large part of the test time.
gc.freeze()
gc.set_threshold(100_000, 20, 50)


# Fixtures that need packages of the extra `test-all`; the default suite runs without these packages.
SLOW_FIXTURES = {'browser', 'dask_cluster', 'google', 'object_server'}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks a test as slow if it uses one of SLOW_FIXTURES."""
    for item in items:
        if SLOW_FIXTURES.intersection(getattr(item, 'fixturenames', ())):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Makes pytest's garbage collections at the end of a session short: they would scan all that JAX has cached."""
    gc.freeze()


@pytest.fixture(scope='session')
def repository() -> pathlib.Path:
    """The top folder of the checkout."""
    return REPOSITORY


@pytest.fixture(scope='session')
def shared() -> pathlib.Path:
    """A folder beside the checkout with real text, vocabularies and tasks, which only developers may have."""
    path = REPOSITORY.parent / 'shared' / 'data'
    if not path.is_dir():
        pytest.skip(f'needs the real data in {path}')
    return path


@pytest.fixture(scope='session')
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A temporary folder that all workers of a session share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / 'shared'
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope='session')
def once(session_folder: pathlib.Path) -> Callable[[str, Callable[[pathlib.Path], object]], pathlib.Path]:
    """once(name, fill) -> the folder `name`, which the first worker that needs it fills; tests must not change it."""

    def fill_once(name: str, fill: Callable[[pathlib.Path], object]) -> pathlib.Path:
        folder, done = session_folder / name, session_folder / f'{name}.done'
        with (session_folder / f'{name}.lock').open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # left by a worker that failed
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return fill_once


@pytest.fixture(scope='session')
def object_server() -> Iterator[Any]:
    """A server for s3://bucket; see `object_server.ObjectServer`."""
    for needed in ('moto.server', 's3fs'):
        pytest.importorskip(needed, reason="needs the extra 'test-all'")
    import object_server

    with object_server.started() as server:
        yield server


@pytest.fixture(scope='session')
def dask_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Dask cluster with two workers; see `dask_cluster.Cluster`."""
    for needed in ('apache_beam', 'dask', 'distributed'):
        pytest.importorskip(needed, reason="needs the extra 'dask'")
    import dask_cluster

    with dask_cluster.started(tmp_path_factory.mktemp('dask')) as cluster:
        yield cluster


@pytest.fixture
def bucket(object_server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Any:
    """The S3 server with an empty bucket; the test has its own cache and short pauses between retries."""
    from bertjax.remote import cache, retry

    monkeypatch.setenv('BERTJAX_CACHE', str(tmp_path / 'cache'))
    monkeypatch.setattr(retry, 'PAUSES', (0.01,) * 3)
    monkeypatch.setattr(retry, 'FIRST_CONTACT', 0.2)
    monkeypatch.setattr(retry, 'PATIENCE', 0.2)
    cache.copy_object.cache_clear()
    object_server.clear()
    return object_server


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[Any]:
    """A client of gs://bucket, an empty bucket of a local server; the test has its own cache."""
    pytest.importorskip('gcsfs', reason="needs the extra 'gcs'")
    pytest.importorskip('gcp_storage_emulator.server', reason="needs the extra 'test-all'")
    import google_server

    from bertjax.remote import cache

    cache.copy_object.cache_clear()
    monkeypatch.setenv('BERTJAX_CACHE', str(tmp_path / 'cache'))
    with google_server.started() as client:
        yield client


@pytest.fixture(scope='session')
def browser() -> Iterator[Browser]:
    """A browser that opens the HTML pages of the package."""
    yield from launch_browser()


@pytest.fixture(scope='session', autouse=True)
def compile_cache(request: pytest.FixtureRequest, session_folder: pathlib.Path) -> pathlib.Path:
    """The folder of JAX's persistent compilation cache, which all tests share.

    It is in pytest's cache, so the slow tests and later sessions load what the default suite compiled;
    `pytest --cache-clear` removes it. Without pytest's cache, only the tests of this session share it.
    """
    cache = getattr(request.config, 'cache', None)  # None with `-p no:cacheprovider`
    folder = (cache.mkdir('compiled') if cache else session_folder / 'compiled') / machine_name()
    folder.mkdir(parents=True, exist_ok=True)
    prune(folder, max_bytes=2**30)  # 1 GiB; a run of all tests adds about 0.13 GiB
    jax.config.update('jax_compilation_cache_dir', str(folder))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    return folder


@pytest.fixture(scope='session')
def one_device(compile_cache: pathlib.Path) -> dict[str, str]:
    """The environment of processes that have one device and share the compilation cache of the tests."""
    xla_flags = [flag for flag in os.environ['XLA_FLAGS'].split() if 'device_count' not in flag]
    return os.environ | {
        'XLA_FLAGS': ' '.join(xla_flags),
        'JAX_COMPILATION_CACHE_DIR': str(compile_cache),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }


@pytest.fixture(scope='session')
def draw_params() -> Callable:
    """draw_params(init, stddev=0.02, seed=0) -> normally distributed parameters of the shapes of init(key).

    The mean is 1 for leaves named `scale` and 0 for all others. Compiling the real initialization would take longer
    than the rest of a test.
    """

    def draw(init: Callable, stddev: float = 0.02, seed: int = 0):
        rng = np.random.default_rng(seed)

        def leaf(path, x: jax.ShapeDtypeStruct) -> np.ndarray:
            return (stddev * rng.standard_normal(x.shape) + (path[-1].key == 'scale')).astype(x.dtype)

        shapes = jax.eval_shape(lambda key: nn.unbox(init(key)), jax.random.key(0))
        return jax.tree_util.tree_map_with_path(leaf, shapes)

    return draw
