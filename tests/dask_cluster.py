"""A local Dask cluster: a scheduler and worker processes that a test may kill."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# Each worker runs this at its start, perhaps twice: a worker that encodes a shard leaves a file named after its process
# id.
_PRELOAD = """
import os, pathlib
from bertjax.corpus import shard_writer
from bertjax.corpus.beam import store
def encode_shard(*arguments):
    pathlib.Path({folder!r}, 'encoded', str(os.getpid())).touch()
    return shard_writer.encode_shard(*arguments)
store.encode_shard = encode_shard
"""


def environment() -> dict[str, str]:
    """The environment of processes that import bertjax from this checkout."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get('PYTHONPATH')])])
    return {**os.environ, 'PYTHONPATH': path}


class Cluster:
    """A scheduler and workers.

    Attributes:
      flags: The value of config.beam for this cluster.
      workers: The worker processes.
      scheduler: The scheduler process.
    """

    def __init__(self, folder: pathlib.Path, stack: contextlib.ExitStack, workers: int):
        self._folder, self._stack = folder, stack
        (folder / 'encoded').mkdir()
        (folder / 'preload.py').write_text(_PRELOAD.format(folder=str(folder)))
        file = folder / 'scheduler.json'
        self.flags = f'--runner=DaskRunner --dask_scheduler_file={file}'
        self.scheduler = self._start('scheduler', f'--scheduler-file={file}', '--port=0')
        deadline = time.monotonic() + 120
        while not (file.exists() and file.stat().st_size):
            assert self.scheduler.poll() is None and time.monotonic() < deadline, (folder / 'log').read_text()
            time.sleep(0.02)
        self.workers = [self.start_worker() for _ in range(workers)]

    def start_worker(self) -> subprocess.Popen:
        """Starts a worker process, which joins the cluster when it is ready."""
        file, preload = self._folder / 'scheduler.json', self._folder / 'preload.py'
        return self._start('worker', f'--scheduler-file={file}', f'--preload={preload}', '--nthreads=1', '--no-nanny')

    def encoders(self) -> set[int]:
        """Returns the process ids of the workers that have encoded a shard since the last call."""
        paths = list((self._folder / 'encoded').iterdir())
        for path in paths:
            path.unlink()
        return {int(path.name) for path in paths}

    def wait_for_workers(self, count: int) -> None:
        """Waits until `count` workers have joined."""
        import distributed

        file = str(self._folder / 'scheduler.json')
        with distributed.Client(scheduler_file=file, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=120)

    def _start(self, what: str, *options: str) -> subprocess.Popen:
        with (self._folder / 'log').open('ab') as log:
            process = subprocess.Popen(
                [sys.executable, '-m', 'dask', what, '--host=127.0.0.1', '--no-dashboard', *options],
                env=environment(),
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


@contextlib.contextmanager
def started(folder: pathlib.Path, workers: int = 2) -> Iterator[Cluster]:
    """Runs a cluster whose files are in `folder`, which must be empty."""
    with contextlib.ExitStack() as stack:
        yield Cluster(folder, stack, workers)
