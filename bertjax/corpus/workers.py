"""Encodes shards, in this process or in worker processes."""

import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import pathlib
import signal
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator
from multiprocessing import connection

from rich import filesize
from rich import progress as rich_progress
from rich.table import Column

from bertjax.cores import available_cores
from bertjax.corpus.shard_writer import encode_shard
from bertjax.corpus.shards import EXPANSION
from bertjax.corpus.sources import CorpusOptions, TextPart, TextSource
from bertjax.files.streams import has_compression_suffix
from bertjax.progress import make_bar
from bertjax.terminal import Console
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

SMALL = 16 << 20  # bytes; by default, a smaller text gets no workers, because they take too long to start
LOG_EVERY = 20.0  # in seconds

_RECORD = 1000  # the estimated bytes of text in a record from TFDS

_worker: tuple = ()  # in a worker process: the values that `_encode` uses


class _Stopped(Exception):  # noqa: N818  not an error: another shard has failed
    pass


def load_saved_tokenizer(folder: pathlib.Path, fingerprint: str) -> Tokenizer:
    """Loads the tokenizer that was saved for the workers. `folder` is STORE/partial."""
    tokenizer = load_tokenizer(folder / 'tokenizer')
    if tokenizer.fingerprint != fingerprint:
        raise RuntimeError('the tokenizer that was saved for the workers changed when it was loaded')
    return tokenizer


def _start_worker(directory: pathlib.Path, fingerprint: str, options: CorpusOptions, counters) -> None:
    """Prepares a worker process. The process exits when its parent dies, so that it does not wait forever."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also gets Ctrl-C, and stops the workers
    parent = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _worker = directory, load_saved_tokenizer(directory / 'partial', fingerprint), options, counters


def _encode(shard: int, parts: list[TextPart]) -> None:
    directory, tokenizer, options, counters = _worker

    def count(documents: int, size: int) -> None:
        with counters.get_lock():
            counters[0] += documents
            counters[1] += size
        if counters[2]:
            raise _Stopped

    encode_shard(directory, shard, parts, tokenizer, options, count)


class Progress:
    """A context manager that shows the progress: a bar on a terminal, otherwise a line at most every LOG_EVERY seconds.

    Args:
      total: The total number of bytes or records.
      enabled: Whether to show the bar or print the lines.
      in_bytes: Whether sizes are in bytes. If False, they are in records of datasets.
      title: The description of the work.
    """

    def __init__(self, total: int, *, enabled: bool, in_bytes: bool = True, title: str = 'reading the corpus'):
        self._total, self._enabled, self._in_bytes, self._title = max(total, 1), enabled, in_bytes, title
        self._documents = self._size = 0
        self._start_time = self._logged = time.monotonic()
        self._bar = None
        console = Console(stderr=True)
        # rich also calls a file a terminal if FORCE_COLOR is set, as it often is in CI.
        if enabled and console.is_terminal and sys.stderr.isatty():
            columns = [
                rich_progress.TextColumn('{task.fields[documents]}'),
                rich_progress.DownloadColumn(table_column=Column(no_wrap=True)),
                rich_progress.TransferSpeedColumn(table_column=Column(no_wrap=True)),
            ]
            if not in_bytes:
                columns = [rich_progress.MofNCompleteColumn(), rich_progress.TextColumn('records')]
            self._bar = make_bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task(title, total=self._total, documents='')

    def __enter__(self) -> 'Progress':
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error) -> None:
        if self._bar:
            self._bar.stop()

    def add(self, documents: int, size: int) -> None:
        """Adds documents, and bytes or records, to the counts."""
        self.set_counts(self._documents + documents, self._size + size)

    def set_counts(self, documents: int, size: int) -> None:
        """Sets the counts of documents, and of bytes or records."""
        self._documents, self._size = documents, size
        now = time.monotonic()
        counted = f'{documents:,} document{"s"[: documents != 1]}' if documents else ''
        if self._bar:
            self._bar.update(self._task, completed=size, documents=counted)
        elif self._enabled and now - self._logged > LOG_EVERY:
            self._logged = now
            rate = size / (now - self._start_time)
            remaining_time = f'about {(self._total - size) / rate:,.0f} s left' if rate else ''
            parts = (
                counted,
                f'{self._amount(size)} of {self._amount(self._total)}',
                f'{self._amount(rate)}/s',
                remaining_time,
            )
            print(f'{self._title}: {", ".join(filter(None, parts))}', file=sys.stderr)

    def _amount(self, size: float) -> str:
        return filesize.decimal(int(size)) if self._in_bytes else f'{size:,.0f} records'


def text_bytes(parts: Iterable[TextPart | TextSource]) -> float:
    """Returns the estimated bytes of text in parts of a corpus or in sources."""
    total = 0.0
    for part in parts:
        size = part.size if isinstance(part, TextSource) else (part.end - part.begin) / part.of
        factor = EXPANSION if has_compression_suffix(part.path) else 1
        total += size * (_RECORD if part.kind == 'tfds' else factor)
    return total


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hides the main module, so that processes started in the block do not import it.

    They do not need the main module, which may import JAX, or may be a script that would start the same work again.
    """
    main = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        yield
    finally:
        sys.modules['__main__'] = main


def encode_shards(
    directory: pathlib.Path,
    shards: dict[int, list[TextPart]],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    progress: Progress,
) -> None:
    """Encodes the shards {number: parts}, in this process or in several workers.

    Raises:
      UserError: See `shard_writer.encode_shard`.
      RuntimeError: A worker died.
    """
    size = text_bytes(itertools.chain.from_iterable(shards.values()))
    number = min(options.workers or (1 if size < SMALL else available_cores()), len(shards))
    if number == 1:
        for shard, parts in shards.items():
            encode_shard(directory, shard, parts, tokenizer, options, progress.add)
        return
    # Workers load the tokenizer from disk, because a large argument would block this process until they have started.
    tokenizer.save(directory / 'partial' / 'tokenizer')
    context = multiprocessing.get_context('spawn')  # a fork is unsafe if threads of JAX run
    counters = context.Array('q', 3)  # documents, bytes or records, whether to stop
    arguments = (directory, tokenizer.fingerprint, options, counters)
    pool = concurrent.futures.ProcessPoolExecutor(number, context, _start_worker, arguments)
    try:
        with _without_main():
            futures = {pool.submit(_encode, shard, parts) for shard, parts in shards.items()}
        while futures:
            done, futures = concurrent.futures.wait(futures, 0.2, concurrent.futures.FIRST_COMPLETED)
            progress.set_counts(*counters[:2])
            for future in done:
                future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        fix = 'memory may be too small; run the same command again, if necessary with config.corpus_options.workers=1'
        raise RuntimeError(f'a worker process died; {fix}') from error
    finally:
        counters[2] = 1
        pool.shutdown(wait=True, cancel_futures=True)
