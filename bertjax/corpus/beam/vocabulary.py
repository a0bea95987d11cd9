"""Computes the training data of a vocabulary with Apache Beam: counts of words, or a sample of sentences.

A unit of work is a contiguous range of the text. Besides plan.json, the folder of the job has these JSON files:
  K.json        the record of unit number K (`texts.new_record`) and, for a sample, the unit's number of sentences
  counts-G-B    {word: count} of the words of corpus number G whose hashes are in bucket number B
  K.wanted      the indices, within unit K, of its sampled sentences
  K.drawn       the sampled sentences of unit K
"""

import bisect
import collections
import contextlib
import dataclasses
import functools
import heapq
import itertools
import json
import os
import pathlib
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apache_beam as beam

from bertjax.corpus import identity
from bertjax.corpus.beam.job import Job, Step, missing_results_error, run_pipeline
from bertjax.corpus.identity import KnownText
from bertjax.corpus.shards import cut_shards
from bertjax.corpus.sources import CorpusOptions, resolve_sources
from bertjax.corpus.texts import iter_part_texts, new_record, no_text_error
from bertjax.files.atomic import write_atomic
from bertjax.text.sampling import iter_sentences, sample

_BUCKET_BYTES = 1 << 30  # the bytes of the corpus per bucket of words; one worker adds up the counts of a bucket
_Bucket = tuple[int, int]  # the indices of the corpus and of the bucket


class _TextJob(Job):
    """A job whose `plan` has the units, their corpora, the `CorpusOptions`, and the number of word buckets."""

    @functools.cached_property
    def options(self) -> CorpusOptions:
        return CorpusOptions(**self.plan['options'])

    def texts(self, number: int) -> tuple[Iterator[str], dict[str, Any]]:
        """Returns the paragraphs of a unit, and its record, which is complete after the last paragraph."""
        record = new_record()
        return iter_part_texts(self.parts(number), self.options, record), record

    def record(self, number: int) -> pathlib.Path:
        return self.folder / f'{number:05d}.json'


def _count(
    job: _TextJob, number: int, *, count: Callable[[Iterable[str]], dict[str, int]]
) -> Iterator[tuple[_Bucket, dict[str, int]]]:
    """Yields the counts of the words of a unit, bucket by bucket."""
    texts, record = job.texts(number)
    buckets: list[dict[str, int]] = [{} for _ in range(job.plan['buckets'])]
    for word, times in count(texts).items():
        buckets[zlib.crc32(word.encode('utf-8', 'surrogatepass')) % len(buckets)][word] = times
    write_atomic(job.record(number), json.dumps(record))
    for bucket, counts in enumerate(buckets):
        yield (job.plan['corpora'][number], bucket), counts


def _write_sum(job: _TextJob, element: tuple[_Bucket, Iterable[dict[str, int]]]) -> Iterable:
    (corpus, bucket), all_counts = element
    total: collections.Counter[str] = collections.Counter()
    for counts in all_counts:
        total.update(counts)
    write_atomic(job.folder / f'counts-{corpus}-{bucket:05d}', json.dumps(total, sort_keys=True))
    return ()


def _count_sentences(job: _TextJob, number: int) -> Iterable:
    texts, record = job.texts(number)
    count = sum(1 for _ in iter_sentences(texts))
    write_atomic(job.record(number), json.dumps({**record, 'sentences': count}))
    return ()


def _draw(job: _TextJob, number: int) -> Iterable:
    texts, record = job.texts(number)
    first_record = json.loads(job.record(number).read_text('utf-8'))
    indices = set(json.loads((job.folder / f'{number:05d}.wanted').read_text('utf-8')))
    drawn = [text for index, text in enumerate(iter_sentences(texts)) if index in indices]
    parts = job.parts(number)
    identity.collect_digests(zip([*parts, *parts], [*first_record['digests'], *record['digests']], strict=True))
    write_atomic(job.folder / f'{number:05d}.drawn', json.dumps(drawn))
    return ()


class BeamTextStatistics:
    """Computes word counts or sentence samples of each corpus, and the record of the text that was read.

    Args:
      corpora: For each corpus, a list of specifications (see `spec` of `build.build_store`).
      flags: The value of config.beam.
      folder: The folder of the job. `counts` and `sentences` remove the folder at their start and at their end.

    Raises:
      UserError: A specification has weights, or a source is invalid (see `resolve_sources`).
    """

    def __init__(self, corpora: Sequence[Sequence[str]], options: CorpusOptions, flags: str, folder: pathlib.Path):
        self._options, self._flags, self._folder = options, flags, folder
        self._corpora, self._specs = range(len(corpora)), []
        for corpus, specs in enumerate(corpora):
            for spec in specs:
                sources = resolve_sources(spec, options)
                self._specs.append((corpus, spec, sources, cut_shards(sources, options.format, in_order=True)))
        self._units = [(corpus, unit) for corpus, _, _, units in self._specs for unit in units]

    def counts(
        self, count: Callable[[Iterable[str]], dict[str, int]], limit: int
    ) -> tuple[list[dict[str, int]], list[KnownText]]:
        """Returns the counts of the `limit` most frequent words or symbols of each corpus, and the record of the text.

        `count`, a module-level function or a `functools.partial` of one, counts the words or symbols of each unit.
        `count_words` drops the rarest words of a very large text, so its counts may differ from those without Beam.

        Raises:
          UserError: A specification has no text, the input is broken (if strict), or the pipeline failed.
        """
        with self._open_folder() as buckets:
            self._run(
                range(len(self._units)),
                lambda units: (
                    units
                    | self._step('count', functools.partial(_count, count=count))
                    | 'by word' >> beam.GroupByKey()
                    | self._step('sum', _write_sum)
                ),
            )
            known = self._identify(self._records())
            return [self._most_frequent(corpus, buckets, limit) for corpus in self._corpora], known

    def _most_frequent(self, corpus: int, buckets: int, limit: int) -> dict[str, int]:
        paths = (self._folder / f'counts-{corpus}-{bucket:05d}' for bucket in range(buckets))
        counts = itertools.chain.from_iterable(json.loads(path.read_text('utf-8')).items() for path in paths)
        return dict(sorted(heapq.nsmallest(limit, counts, key=lambda item: (-item[1], item[0]))))

    def sentences(self, size: int, seed: int) -> tuple[list[tuple[list[str], int]], list[KnownText]]:
        """Returns (sample of sentences, number of sentences) of each corpus, and the record of the text.

        Each sample equals the result of `text.sampling.sample` for the complete corpus. The text is read twice, because
        a sample depends on the number of sentences.

        Raises:
          UserError: See `counts`; or a file changed between the two readings.
        """
        with self._open_folder():
            self._run(range(len(self._units)), lambda units: units | self._step('sizes', _count_sentences))
            records = self._records()
            known = self._identify(records)
            begins = list(itertools.accumulate((record['sentences'] for record in records), initial=0))
            drawn = []
            for corpus in self._corpora:
                units = [number for number, (unit_corpus, _) in enumerate(self._units) if unit_corpus == corpus]
                count = sum(records[number]['sentences'] for number in units)
                indices, _ = sample(range(begins[units[0]], begins[units[0]] + count), size, seed)
                drawn.append((indices, count))
            texts = self._read_sentences(sorted(itertools.chain.from_iterable(indices for indices, _ in drawn)), begins)
            return [([texts[index] for index in indices], count) for indices, count in drawn], known

    def _read_sentences(self, sentences: list[int], begins: list[int]) -> dict[int, str]:
        """Returns {index: text} for the sorted indices `sentences` within the text of all units.

        `begins` contains the index of the first sentence of each unit, and then the total number of sentences.
        """
        numbers = {}
        for sentence in sentences:
            unit = bisect.bisect_right(begins, sentence) - 1
            numbers.setdefault(unit, []).append(sentence - begins[unit])
        for unit, indices in numbers.items():
            write_atomic(self._folder / f'{unit:05d}.wanted', json.dumps(indices))
        self._run(numbers, lambda units: units | self._step('draw', _draw))
        return {
            begins[unit] + index: text
            for unit, indices in numbers.items()
            for index, text in zip(
                indices, json.loads((self._folder / f'{unit:05d}.drawn').read_text('utf-8')), strict=True
            )
        }

    @contextlib.contextmanager
    def _open_folder(self) -> Iterator[int]:
        """Makes the folder and its plan, yields the number of buckets, and removes the folder at the end."""
        size = sum(part.end - part.begin for _, parts in self._units for part in parts)
        buckets = 1 + size // _BUCKET_BYTES
        plan = {
            'units': [[dataclasses.astuple(part) for part in parts] for _, parts in self._units],
            'corpora': [corpus for corpus, _ in self._units],
            'options': dataclasses.asdict(self._options),
            'buckets': buckets,
        }
        shutil.rmtree(self._folder, ignore_errors=True)
        write_atomic(self._folder / 'plan.json', json.dumps(plan))
        try:
            yield buckets
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _step(self, label: str, work: Callable) -> beam.PTransform:
        return label >> beam.ParDo(Step(work, functools.partial(_TextJob, str(self._folder.resolve()), os.getcwd())))

    def _run(self, numbers: Iterable[int], fill: Callable[[beam.PCollection], object]) -> None:
        run_pipeline(self._flags, self._folder, numbers, fill)

    def _records(self) -> list[dict]:
        paths = [self._folder / f'{number:05d}.json' for number in range(len(self._units))]
        missing = sum(not path.exists() for path in paths)
        if missing:
            raise missing_results_error(self._folder, missing, len(paths))
        return [json.loads(path.read_text('utf-8')) for path in paths]

    def _identify(self, records: list[dict]) -> list[KnownText]:
        """Returns the record of the text.

        Raises:
          UserError: A specification has no text.
        """
        remaining, known = iter(records), []
        for _, spec, sources, units in self._specs:
            spec_records = [next(remaining) for _ in units]
            if all(record['empty'] for record in spec_records):
                raise no_text_error(spec, next((record['broken'] for record in spec_records if record['broken']), ''))
            part_digests = itertools.chain.from_iterable(record['digests'] for record in spec_records)
            digests = identity.collect_digests(zip(itertools.chain(*units), part_digests, strict=True))
            known += identity.identify(sources, digests)
        return known
