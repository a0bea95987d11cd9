"""Encodes the shards of a store with Apache Beam.

Workers read the text and write the files of shards (see `shard_writer`). The plan and the tokenizer are in the store's
folder `partial`.
"""

import contextlib
import functools
import os
import pathlib
import threading
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam.metrics import Metrics

from bertjax.corpus.beam.job import Job, Step, missing_results_error, run_pipeline
from bertjax.corpus.build_dir import read_record
from bertjax.corpus.shard_writer import encode_shard
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.corpus.workers import load_saved_tokenizer
from bertjax.progress import Advance
from bertjax.text.tokenizer import Tokenizer

_POLL_SECONDS = 2.0  # the time between checks for finished shards


class _StoreJob(Job):
    """The unfinished build of a store. `folder` is the folder `partial` of the store."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return load_saved_tokenizer(self.folder, self.plan['identity']['tokenizer']['fingerprint'])


def _encode(job: _StoreJob, number: int) -> Iterable:
    directory, parts = job.folder.parent, job.parts(number)
    if read_record(directory, number, parts) is None:  # else another worker has already encoded the shard
        options = CorpusOptions(**job.plan['identity']['settings'], strict=job.plan['strict'])
        encode_shard(directory, number, parts, job.tokenizer, options, Metrics.counter('bertjax', 'bytes').inc)
    return ()


def encode_shards(
    flags: str,
    directory: pathlib.Path,
    shards: dict[int, list[TextPart]],
    tokenizer: Tokenizer,
    advance: Advance,
) -> None:
    """Encodes the shards {number: parts} in a pipeline with `flags`, the value of config.beam.

    Raises:
      UserError: The input is broken (if strict) or invalid, the pipeline failed, or files of workers are missing.
    """
    partial = directory / 'partial'
    tokenizer.save(partial / 'tokenizer')
    step = beam.ParDo(Step(_encode, functools.partial(_StoreJob, str(partial.resolve()), os.getcwd())))
    with _report_progress(directory, shards, advance):
        run_pipeline(flags, partial, shards, lambda numbers: numbers | 'encode' >> step)
    missing = [number for number, parts in shards.items() if read_record(directory, number, parts) is None]
    if missing:
        raise missing_results_error(partial, len(missing), len(shards))


@contextlib.contextmanager
def _report_progress(directory: pathlib.Path, shards: dict[int, list[TextPart]], advance: Advance) -> Iterator[None]:
    """While the block runs, a thread reports the bytes (or records) of finished shards."""
    done = threading.Event()

    def follow() -> None:
        waiting = dict(shards)
        while not done.wait(_POLL_SECONDS):
            names = {path.name for path in (directory / 'partial').glob('*.json')}
            for number in [number for number in waiting if f'{number:05d}.json' in names]:
                if read_record(directory, number, waiting[number]):
                    advance(sum(part.end - part.begin for part in waiting.pop(number)))

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
