"""Worker processes for units: spawned, never forked (the parent may hold jax's threads), and never importing jax."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import signal
import threading
from multiprocessing import connection

from bertjax.corpus.options import CorpusOptions
from bertjax.corpus.progress import Progress
from bertjax.corpus.readers import Part
from bertjax.corpus.reading import run_unit
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

SMALL = 4 << 20  # Bytes that one process reads sooner than another one starts.

_RECORD = 1000  # Bytes that a record of a tfds dataset is taken for.

_worker: dict = {}


class _Stopped(Exception):  # noqa: N818  No error: the parent wants no more.
    pass


def _start_worker(directory: str, fingerprint: str, settings: dict, strict: bool, counters) -> None:
    """Prepares a worker process, and ends it when its parent dies: else it would wait for work for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, who stops the workers.
    parent = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    tokenizer = load_tokenizer(pathlib.Path(directory) / 'partial' / 'tokenizer')
    if tokenizer.fingerprint != fingerprint:
        raise RuntimeError('a saved tokenizer reads back as another one')
    _worker.update(
        directory=pathlib.Path(directory), tokenizer=tokenizer, settings=settings, strict=strict, counters=counters
    )


def _count(documents: int, size: int) -> None:
    counters = _worker['counters']
    with counters.get_lock():
        counters[0] += documents
        counters[1] += size
        if counters[2]:
            raise _Stopped


def _run(number: int, parts: list[Part]) -> None:
    run_unit(_worker['directory'], number, parts, _worker['tokenizer'], _worker['settings'], _worker['strict'], _count)


def _how_many(units: dict[int, list[Part]], wanted: int) -> int:
    """Worker processes for the units: few bytes are read sooner than a process starts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    parts = [part for some in units.values() for part in some]
    size = sum((part.end - part.begin) * (_RECORD if part.kind == 'tfds' else 1) for part in parts)
    return min(wanted or (1 if size < SMALL else cores), len(units))


def run_units(
    directory: pathlib.Path,
    units: dict[int, list[Part]],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    progress: Progress,
) -> None:
    """Runs the units by number, in this process or in as many workers as the options say.

    Raises:
      UserError: broken input, when strict.
      RuntimeError: a worker died.
    """
    number = _how_many(units, options.workers)
    if number == 1:
        for unit, parts in units.items():
            run_unit(directory, unit, parts, tokenizer, options.settings(), options.strict, progress.add)
        return
    context = multiprocessing.get_context('spawn')
    counters = context.Array('q', 3)  # Documents, bytes, whether to stop.
    tokenizer.save(directory / 'partial' / 'tokenizer')
    arguments = (str(directory), tokenizer.fingerprint, options.settings(), options.strict, counters)
    pool = concurrent.futures.ProcessPoolExecutor(
        number, mp_context=context, initializer=_start_worker, initargs=arguments
    )
    try:
        waiting = {pool.submit(_run, unit, parts) for unit, parts in units.items()}
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, 0.2, concurrent.futures.FIRST_COMPLETED)
            progress.at(*counters[:2])
            for future in done:
                future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        mend = 'was memory short? The same command continues; config.corpus_options.workers=1 needs the least'
        raise RuntimeError(f'a worker process died; {mend}') from error
    finally:
        counters[2] = 1
        pool.shutdown(wait=True, cancel_futures=True)
