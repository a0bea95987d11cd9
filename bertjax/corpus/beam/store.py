"""The backend of Apache Beam: the steps of `backend.Backend` as pipelines.

Workers read the text. In the store's folder, they read the plan and the tokenizer, and write and read the files of
shards (see `shard_writer`). They and the main process also exchange these files in the folder `partial`:
  repeats-B     int64, the indices (over all shards) of the repeated documents with hashes in bucket B
  distinct-B    the number of distinct lines with hashes in bucket B
  K.where       uint8, the destinations of shard K's documents, if its train file must change
  K.kept        the checksum of the new train file of shard K
"""

import contextlib
import functools
import itertools
import os
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator

import apache_beam as beam
import numpy as np
from apache_beam.metrics import Metrics

from bertjax.corpus import duplicates, merge
from bertjax.corpus.backend import Backend
from bertjax.corpus.beam.job import Job, Step, missing_results_error, run_pipeline
from bertjax.corpus.build_dir import read_record
from bertjax.corpus.merge import Shard
from bertjax.corpus.shard_writer import encode_shard
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.corpus.workers import Progress, load_saved_tokenizer
from bertjax.files.atomic import write_atomic
from bertjax.text.tokenizer import Tokenizer

_POLL_SECONDS = 2.0  # the time between checks for finished shards
_DOCUMENTS, _LINES = 0, 1  # the kinds of buckets: of document hashes or of line hashes
_Bucket = tuple[int, int]  # the kind and the number of a bucket


class _StoreJob(Job):
    """The unfinished build of a store. `folder` is the folder `partial` of the store."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return load_saved_tokenizer(self.folder, self.plan['identity']['tokenizer']['fingerprint'])

    def record(self, number: int) -> dict | None:
        return read_record(self.folder.parent, number, self.parts(number))

    def shard(self, number: int) -> Shard:
        return Shard(number, self.record(number), self.folder.parent)


def _encode(job: _StoreJob, number: int) -> Iterable:
    if job.record(number) is not None:  # another worker has encoded the shard, but the runner has lost the result
        return ()

    def count(documents: int, size: int) -> None:
        Metrics.counter('bertjax', 'documents').inc(documents)
        Metrics.counter('bertjax', 'bytes').inc(size)

    options = CorpusOptions(**job.plan['identity']['settings'], strict=job.plan['strict'])
    encode_shard(job.folder.parent, number, job.parts(number), job.tokenizer, options, count)
    return ()


def _bucket_hashes(
    job: _StoreJob, number: int, *, bases: list[int], counts: tuple[int, int]
) -> Iterator[tuple[_Bucket, tuple[bytes, bytes]]]:
    """Yields a shard's hashes, bucket by bucket: first document hashes and numbers, then distinct line hashes."""
    shard = job.shard(number)
    hashes, runs = np.array(shard.array('documents')['hash']), duplicates.sorted_runs(shard)
    for bucket, (low, high) in enumerate(itertools.pairwise(duplicates.bucket_edges(counts[_DOCUMENTS]))):
        inside = duplicates.indices_between(hashes, low, high)
        yield (_DOCUMENTS, bucket), (hashes[inside].tobytes(), (inside + bases[number]).astype('<i8').tobytes())
    for bucket, (low, high) in enumerate(itertools.pairwise(duplicates.bucket_edges(counts[_LINES]))):
        yield (_LINES, bucket), (np.unique(duplicates.slice_runs(runs, low, high)).tobytes(), b'')


def _compare_bucket(job: _StoreJob, element: tuple[_Bucket, Iterable[tuple[bytes, bytes]]]) -> Iterable:
    (kind, bucket), pieces = element
    columns = zip(*pieces, strict=True)
    hashes, numbers = (np.frombuffer(b''.join(x), dtype) for x, dtype in zip(columns, ('<u8', '<i8'), strict=True))
    if kind == _DOCUMENTS:
        repeats = np.sort(duplicates.find_later_equals(hashes, numbers))
        write_atomic(job.folder / f'repeats-{bucket:05d}', repeats.tobytes())
    else:
        write_atomic(job.folder / f'distinct-{bucket:05d}', str(len(np.unique(hashes))))
    return ()


def _rewrite(job: _StoreJob, number: int, *, itemsize: int) -> Iterable:
    destination = np.fromfile(job.folder / f'{number:05d}.where', np.uint8)
    digest = merge.rewrite_train_file(job.shard(number), destination, itemsize=itemsize)
    write_atomic(job.folder / f'{number:05d}.kept', digest)
    return ()


class BeamBackend(Backend):
    """A backend that runs pipelines with the flags of config.beam."""

    def __init__(self, flags: str):
        self._flags = flags

    def encode(
        self,
        directory: pathlib.Path,
        shards: dict[int, list[TextPart]],
        tokenizer: Tokenizer,
        options: CorpusOptions,
        progress: Progress,
    ) -> None:
        """Writes the files of the shards.

        Raises:
          UserError: The input is broken (if strict) or invalid, the pipeline failed, or files of workers are missing.
        """
        tokenizer.save(directory / 'partial' / 'tokenizer')
        with _report_progress(directory, shards, progress):
            self._run(directory, shards, lambda numbers: numbers | _step('encode', _encode, directory))
        missing = [number for number, parts in shards.items() if read_record(directory, number, parts) is None]
        if missing:
            raise missing_results_error(directory / 'partial', len(missing), len(shards))

    def compare(self, shards: list[Shard]) -> tuple[np.ndarray, int]:
        """Returns whether each document is a repeat, bool [documents], and the number of distinct lines."""
        directory = shards[0].directory
        bases = list(itertools.accumulate((shard.record['documents'] for shard in shards), initial=0))
        counts = bases[-1], sum(shard.record['lines'] for shard in shards)
        bucket_hashes = functools.partial(_bucket_hashes, bases=bases, counts=counts)
        self._run(
            directory,
            [shard.number for shard in shards],
            lambda numbers: (
                numbers
                | _step('hashes', bucket_hashes, directory)
                | 'by bucket' >> beam.GroupByKey()
                | _step('compare', _compare_bucket, directory)
            ),
        )
        partial, repeats = directory / 'partial', np.zeros(counts[_DOCUMENTS], bool)
        document_buckets, line_buckets = (range(len(duplicates.bucket_edges(count)) - 1) for count in counts)
        for bucket in document_buckets:
            repeats[np.fromfile(partial / f'repeats-{bucket:05d}', '<i8')] = True
        distinct = (int((partial / f'distinct-{bucket:05d}').read_text('utf-8')) for bucket in line_buckets)
        return repeats, sum(distinct)

    def prepare_rewrite(
        self, shards: list[Shard], destinations: list[np.ndarray], itemsize: int
    ) -> Callable[[Shard, np.ndarray], str]:
        """Rewrites the train files that must change. Returns a function that reads the checksum of a rewritten file."""
        directory, partial, changed = shards[0].directory, shards[0].directory / 'partial', []
        for shard, destination in zip(shards, destinations, strict=True):
            if merge.is_changed(shard, destination):
                write_atomic(partial / f'{shard.number:05d}.where', destination.tobytes())
                changed.append(shard.number)
        if changed:
            step = _step('keep', functools.partial(_rewrite, itemsize=itemsize), directory)
            self._run(directory, changed, lambda numbers: numbers | step)
        return lambda shard, destination: (partial / f'{shard.number:05d}.kept').read_text('utf-8')

    def _run(self, directory: pathlib.Path, numbers: Iterable[int], fill: Callable[[beam.PCollection], object]) -> None:
        run_pipeline(self._flags, directory / 'partial', numbers, fill)


def _step(label: str, work: Callable, directory: pathlib.Path) -> beam.PTransform:
    job = functools.partial(_StoreJob, str((directory / 'partial').resolve()), os.getcwd())
    return label >> beam.ParDo(Step(work, job))


@contextlib.contextmanager
def _report_progress(directory: pathlib.Path, shards: dict[int, list[TextPart]], progress: Progress) -> Iterator[None]:
    """While the block runs, a thread reports the total documents and bytes (or records) of finished shards."""
    done = threading.Event()

    def follow() -> None:
        waiting, documents, size = dict(shards), 0, 0
        while not done.wait(_POLL_SECONDS):
            names = {path.name for path in (directory / 'partial').glob('*.json')}
            for number in [number for number in waiting if f'{number:05d}.json' in names]:
                record = read_record(directory, number, waiting[number])
                if record is not None:
                    documents += record['documents']
                    size += sum(part.end - part.begin for part in waiting.pop(number))
            progress.set_counts(documents, size)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
