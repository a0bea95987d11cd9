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
import types
from collections.abc import Iterable, Iterator
from multiprocessing import connection

from bertjax.cores import available_cores
from bertjax.corpus.shard_writer import encode_shard
from bertjax.corpus.shards import EXPANSION
from bertjax.corpus.sources import CorpusOptions, TextPart, TextSource
from bertjax.errors import StoppedError
from bertjax.files.streams import has_compression_suffix
from bertjax.progress import Advance
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

SMALL = 16 << 20  # bytes; by default, a smaller text gets no workers, because they take too long to start
_RECORD = 1000  # the estimated bytes of text in a record from TFDS

_worker: tuple = ()  # in a worker process: the values that `_encode` uses


class _Stopped(Exception):  # noqa: N818  not an error: the build stops
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

    def advance(size: int) -> None:
        with counters.get_lock():
            counters[0] += size
        if counters[1]:
            raise _Stopped

    encode_shard(directory, shard, parts, tokenizer, options, advance)


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

    The processes do not need the main module, which may import JAX, or may be a script that would start the work again.
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
    advance: Advance,
) -> None:
    """Encodes the shards {number: parts}, in this process or in several workers.

    Raises:
      UserError: See `shard_writer.encode_shard`.
      StoppedError: A worker died.
    """
    size = text_bytes(itertools.chain.from_iterable(shards.values()))
    number = min(options.workers or (1 if size < SMALL else available_cores()), len(shards))
    if number == 1:
        for shard, parts in shards.items():
            encode_shard(directory, shard, parts, tokenizer, options, advance)
        return
    # Workers load the tokenizer from disk, because a large argument would block this process until they have started.
    tokenizer.save(directory / 'partial' / 'tokenizer')
    context = multiprocessing.get_context('spawn')  # a fork is unsafe if threads of JAX run
    counters, done = context.Array('q', 2), 0  # counters: [bytes or records, whether to stop]
    arguments = (directory, tokenizer.fingerprint, options, counters)
    pool = concurrent.futures.ProcessPoolExecutor(number, context, _start_worker, arguments)
    try:
        with _without_main():
            futures = {pool.submit(_encode, shard, parts) for shard, parts in shards.items()}
        while futures:
            finished, futures = concurrent.futures.wait(futures, 0.2, concurrent.futures.FIRST_COMPLETED)
            done, previous = counters[0], done
            advance(done - previous)
            for future in finished:
                future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        fix = 'memory may be too small; run the same command again, if necessary with config.corpus_options.workers=1'
        raise StoppedError(f'stopped: a worker process died; {fix}') from error
    finally:
        counters[1] = 1
        pool.shutdown(wait=True, cancel_futures=True)
