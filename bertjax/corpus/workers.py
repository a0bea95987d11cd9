"""Worker processes for units: spawned, never forked (the parent may hold jax's threads), and never importing jax."""

import concurrent.futures
import multiprocessing
import os
import pathlib
import threading
from multiprocessing import connection

from bertjax.corpus.options import CorpusOptions
from bertjax.corpus.progress import Progress
from bertjax.corpus.readers import Part
from bertjax.corpus.unit import run_unit
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

SMALL = 4 << 20  # Bytes that one process reads sooner than another one starts.

_worker: dict = {}


def _start_worker(directory: str, tokenizer_path: str, lowercase: bool, settings: dict, strict: bool, counters) -> None:
    """Prepares a worker process, and ends it when its parent dies: else it would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    _worker.update(
        directory=pathlib.Path(directory),
        tokenizer=load_tokenizer(tokenizer_path, lowercase),
        settings=settings,
        strict=strict,
    )
    _worker['counters'] = counters


def _count(documents: int, size: int) -> None:
    counters = _worker['counters']
    with counters.get_lock():
        counters[0] += documents
        counters[1] += size


def _run(number: int, parts: list[Part]) -> int:
    run_unit(_worker['directory'], number, parts, _worker['tokenizer'], _worker['settings'], _worker['strict'], _count)
    return number


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
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    small = sum(part.end - part.begin for parts in units.values() for part in parts if part.kind != 'tfds') < SMALL
    number = min(options.workers or (1 if small else cores), len(units))
    if number == 1:
        for unit, parts in units.items():
            run_unit(directory, unit, parts, tokenizer, options.settings(), options.strict, progress.add)
        return
    context = multiprocessing.get_context('spawn')
    counters = context.Array('q', 2)
    path = directory / 'partial' / 'tokenizer'
    tokenizer.save(path)
    arguments = (str(directory), str(path), tokenizer.lowercase, options.settings(), options.strict, counters)
    pool = concurrent.futures.ProcessPoolExecutor(
        number, mp_context=context, initializer=_start_worker, initargs=arguments
    )
    try:
        waiting = {pool.submit(_run, unit, parts) for unit, parts in units.items()}
        while waiting:
            done, waiting = concurrent.futures.wait(waiting, 0.2, concurrent.futures.FIRST_COMPLETED)
            progress.at(*counters[:])
            for future in done:
                future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        mend = 'was memory short? Start the same command again: it continues; config.corpus_workers=1 needs the least'
        raise RuntimeError(f'a worker process died; {mend}') from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
