"""The parts of a build as pipelines of Apache Beam: the functions of `means.LocalBackend`, wherever the workers are.

All that workers need lies in the store's folder: the plan, the tokenizer, the files of the shards. All that they find
out they write there, into `partial`:
  repeats-B     int64, the places of documents with hashes of bucket B that have come before, all shards in a row
  distinct-B    number of different lines with hashes of bucket B
  K.where       uint8, the destinations of the documents of shard K, where they are others than its train file has
  K.kept        the checksum of the file that was written for that reason
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
from bertjax.corpus.beam_job import Job, Step, not_here, run_pipeline
from bertjax.corpus.encode import encode_shard
from bertjax.corpus.merge import Shard
from bertjax.corpus.partial import read_record
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.corpus.workers import Progress
from bertjax.files.atomic import write_atomic
from bertjax.text.tokenizer import Tokenizer, load_tokenizer

_LOOK_EVERY = 2.0  # Seconds between looks at what is there.
_DOCUMENTS, _LINES = 0, 1  # of which a bucket holds the hashes
_Bucket = tuple[int, int]  # which of them, and its number


class _StoreJob(Job):
    """The unfinished build of a store; `folder` is its `partial`."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        tokenizer = load_tokenizer(self.folder / 'tokenizer')
        if tokenizer.fingerprint != self.plan['identity']['tokenizer']['fingerprint']:
            raise RuntimeError('the tokenizer that was saved for the workers is another one when it is loaded')
        return tokenizer

    def record(self, number: int) -> dict | None:
        return read_record(self.folder.parent, number, self.parts(number))

    def shard(self, number: int) -> Shard:
        return Shard(number, self.record(number), self.folder.parent)


def _encode(job: _StoreJob, number: int) -> Iterable:
    if job.record(number) is not None:  # By somebody whose answer was lost.
        return ()

    def count(documents: int, size: int) -> None:
        Metrics.counter('bertjax', 'documents').inc(documents)
        Metrics.counter('bertjax', 'bytes').inc(size)

    settings, strict = job.plan['identity']['settings'], job.plan['strict']
    encode_shard(job.folder.parent, number, job.parts(number), job.tokenizer, settings, strict, count)
    return ()


def _spread_hashes(
    job: _StoreJob, number: int, *, bases: list[int], counts: tuple[int, int]
) -> Iterator[tuple[_Bucket, tuple[bytes, bytes]]]:
    """The hashes of a shard bucket by bucket: of documents with their places, of lines each once."""
    shard = job.shard(number)
    hashes, runs = np.array(shard.documents['hash']), duplicates.sorted_runs(shard)
    for bucket, (low, high) in enumerate(itertools.pairwise(duplicates.bucket_edges(counts[_DOCUMENTS]))):
        inside = duplicates.between(hashes, low, high)
        yield (_DOCUMENTS, bucket), (hashes[inside].tobytes(), (inside + bases[number]).astype('<i8').tobytes())
    for bucket, (low, high) in enumerate(itertools.pairwise(duplicates.bucket_edges(counts[_LINES]))):
        yield (_LINES, bucket), (np.unique(duplicates.from_runs(runs, low, high)).tobytes(), b'')


def _compare_bucket(job: _StoreJob, found: tuple[_Bucket, Iterable[tuple[bytes, bytes]]]) -> Iterable:
    (kind, bucket), pieces = found
    both = zip(*pieces, strict=True)
    hashes, places = (np.frombuffer(b''.join(some), dtype) for some, dtype in zip(both, ('<u8', '<i8'), strict=True))
    if kind == _DOCUMENTS:
        write_atomic(_repeats(job.folder, bucket), np.sort(duplicates.later_equals(hashes, places)).tobytes())
    else:
        write_atomic(_distinct(job.folder, bucket), str(duplicates.distinct(hashes)))
    return ()


def _keep(job: _StoreJob, number: int, *, itemsize: int) -> Iterable:
    where = np.fromfile(job.folder / f'{number:05d}.where', np.uint8)
    write_atomic(_kept(job.folder, number), merge.keep_documents(job.shard(number), where, itemsize=itemsize))
    return ()


def _repeats(partial: pathlib.Path, bucket: int) -> pathlib.Path:
    return partial / f'repeats-{bucket:05d}'


def _distinct(partial: pathlib.Path, bucket: int) -> pathlib.Path:
    return partial / f'distinct-{bucket:05d}'


def _kept(partial: pathlib.Path, shard: int) -> pathlib.Path:
    return partial / f'{shard:05d}.kept'


class BeamBackend:
    """Pipelines with the flags of config.beam. Of `means.Backend`."""

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
          UserError: broken input, when strict; workers whose files do not come here.
        """
        tokenizer.save(directory / 'partial' / 'tokenizer')
        with _followed(directory, shards, progress):
            self._run(directory, shards, lambda numbers: numbers | _step('encode', _encode, directory))
        lacking = [number for number, parts in shards.items() if read_record(directory, number, parts) is None]
        if lacking:
            raise not_here(directory / 'partial', len(lacking), len(shards))

    def compare(self, shards: list[Shard]) -> tuple[np.ndarray, int]:
        """Whether an equal document came before, bool [documents], and the number of different lines."""
        directory = shards[0].directory
        bases = list(itertools.accumulate((shard.record['documents'] for shard in shards), initial=0))
        counts = bases[-1], sum(shard.record['lines'] for shard in shards)
        spread = functools.partial(_spread_hashes, bases=bases, counts=counts)
        self._run(
            directory,
            (shard.number for shard in shards),
            lambda numbers: (
                numbers
                | _step('hashes', spread, directory)
                | 'by bucket' >> beam.GroupByKey()
                | _step('compare', _compare_bucket, directory)
            ),
        )
        partial, repeats = directory / 'partial', np.zeros(counts[_DOCUMENTS], bool)
        of_documents, of_lines = (range(len(duplicates.bucket_edges(count)) - 1) for count in counts)
        for bucket in of_documents:
            repeats[np.fromfile(_repeats(partial, bucket), '<i8')] = True
        return repeats, sum(int(_distinct(partial, bucket).read_text('utf-8')) for bucket in of_lines)

    def keep(
        self, shards: list[Shard], destinations: list[np.ndarray], itemsize: int
    ) -> Callable[[Shard, np.ndarray], str]:
        """Has the changed train files written; what it returns gives their checksums."""
        changed = [
            (shard, where) for shard, where in zip(shards, destinations, strict=True) if merge.is_changed(shard, where)
        ]
        directory, partial = shards[0].directory, shards[0].directory / 'partial'
        for shard, where in changed:
            write_atomic(partial / f'{shard.number:05d}.where', where.tobytes())
        if changed:
            step = _step('keep', functools.partial(_keep, itemsize=itemsize), directory)
            self._run(directory, (shard.number for shard, _ in changed), lambda numbers: numbers | step)
        return lambda shard, where: _kept(partial, shard.number).read_text('utf-8')

    def _run(self, directory: pathlib.Path, numbers: Iterable[int], fill: Callable[[beam.PCollection], object]) -> None:
        run_pipeline(self._flags, directory / 'partial', numbers, fill)


def _step(label: str, work: Callable, directory: pathlib.Path) -> beam.PTransform:
    job = functools.partial(_StoreJob, str((directory / 'partial').resolve()), os.getcwd())
    return label >> beam.ParDo(Step(work, job))


@contextlib.contextmanager
def _followed(directory: pathlib.Path, shards: dict[int, list[TextPart]], progress: Progress) -> Iterator[None]:
    """Meanwhile the progress is that of the shards whose records have come."""
    done = threading.Event()

    def follow() -> None:
        waiting, documents, size = dict(shards), 0, 0
        while not done.wait(_LOOK_EVERY):
            there = {path.name for path in (directory / 'partial').glob('*.json')}
            for number in [number for number in waiting if f'{number:05d}.json' in there]:
                record = read_record(directory, number, waiting[number])
                if record is not None:
                    documents += record['documents']
                    size += sum(part.end - part.begin for part in waiting.pop(number))
            progress.at(documents, size)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
