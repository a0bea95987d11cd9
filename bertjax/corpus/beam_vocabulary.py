"""What a vocabulary is trained on, gathered by pipelines of Apache Beam: counts of words, or a sample of sentences.

A unit of work is a stretch of the text in its order. The folder of the job has:
  K.json        of unit K: hashes of what was read, whether it has text, its first broken input, its sentences
  counts-G-B    of corpus G of a mixture, the counts of the words whose hashes are of bucket B, as JSON
  K.wanted      numbers of the sentences of unit K that are drawn, and K.drawn they themselves, as JSON
"""

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

import apache_beam as beam

from bertjax.corpus import identity
from bertjax.corpus.beam_job import Job, Step, not_here, run_pipeline
from bertjax.corpus.identity import KnownText
from bertjax.corpus.shards import cut_in_order
from bertjax.corpus.sources import CorpusOptions, TextPart, TextSource, resolve, unweighted
from bertjax.corpus.texts import no_text, texts_of
from bertjax.files.atomic import write_atomic
from bertjax.text.sampling import sample, sentences_of
from bertjax.text.symbols import count_symbols
from bertjax.text.vocabulary import MAX_WORDS, count_words

_BUCKET_BYTES = 1 << 30  # Of text; the words of more than that are not counted in one place.
_Bucket = tuple[int, int]  # corpus, number


class _TextJob(Job):
    """`plan` has the units, the corpus of each, the `CorpusOptions`, and how many buckets of words there are."""

    @functools.cached_property
    def options(self) -> CorpusOptions:
        return CorpusOptions(**self.plan['options'])

    def texts(self, number: int, record: dict) -> Iterator[str]:
        """The paragraphs of a unit; when they have been read, `record` is what is known of it."""
        record |= {'empty': True, 'digests': [], 'broken': ''}
        for part in self.parts(number):
            digest, broken = identity.new_digest(), []
            for text in texts_of(part, self.options, broken, digest):
                record['empty'] = False
                yield text
            record['digests'].append(digest.hexdigest())
            record['broken'] = record['broken'] or ''.join(broken)

    def record(self, number: int) -> pathlib.Path:
        return self.folder / f'{number:05d}.json'


def _count(
    job: _TextJob, number: int, *, count: Callable[[Iterable[str]], dict[str, int]]
) -> Iterator[tuple[_Bucket, dict[str, int]]]:
    """The counts of a unit, bucket by bucket."""
    record: dict = {}
    found: list[dict[str, int]] = [{} for _ in range(job.plan['buckets'])]
    for word, times in count(job.texts(number, record)).items():
        found[zlib.crc32(word.encode('utf-8', 'surrogatepass')) % len(found)][word] = times
    write_atomic(job.record(number), json.dumps(record))
    for bucket, counts in enumerate(found):
        yield (job.plan['corpora'][number], bucket), counts


class _Sum(beam.CombineFn):
    """Counts, added up."""

    def create_accumulator(self) -> dict[str, int]:
        return {}

    def add_input(self, total: dict[str, int], counts: dict[str, int]) -> dict[str, int]:
        for word, times in counts.items():
            total[word] = total.get(word, 0) + times
        return total

    def merge_accumulators(self, totals: Iterable[dict[str, int]]) -> dict[str, int]:
        return functools.reduce(self.add_input, totals, {})

    def extract_output(self, total: dict[str, int]) -> dict[str, int]:
        return total


def _write_counts(job: _TextJob, found: tuple[_Bucket, dict[str, int]]) -> Iterable:
    (corpus, bucket), counts = found
    write_atomic(_counts(job.folder, corpus, bucket), json.dumps(counts, sort_keys=True))
    return ()


def _counts(folder: pathlib.Path, corpus: int, bucket: int) -> pathlib.Path:
    return folder / f'counts-{corpus}-{bucket:05d}'


def _count_sentences(job: _TextJob, number: int) -> Iterable:
    record: dict = {}
    count = sum(1 for _ in sentences_of(job.texts(number, record)))
    write_atomic(job.record(number), json.dumps({**record, 'sentences': count}))
    return ()


def _draw(job: _TextJob, number: int) -> Iterable:
    before, record = json.loads(job.record(number).read_text('utf-8')), {}
    wanted = set(json.loads((job.folder / f'{number:05d}.wanted').read_text('utf-8')))
    drawn = [one for index, one in enumerate(sentences_of(job.texts(number, record))) if index in wanted]
    parts = job.parts(number)
    identity.digests_of(zip([*parts, *parts], [*before['digests'], *record['digests']], strict=True))
    write_atomic(job.folder / f'{number:05d}.drawn', json.dumps(drawn))
    return ()


@dataclasses.dataclass(frozen=True)
class _Spec:
    """What was named together: it must hold some text."""

    name: str
    sources: list[TextSource]
    units: list[list[TextPart]]


class Gathering:
    """Of the text of one corpus, or of each corpus of a mixture: counts or samples, and what was read for them.

    Args:
      corpora: of each, its specifications as for `build.build_store`.
      options: how text is read.
      flags: config.beam.
      folder: of the job; it is made, and removed when all is gathered. What a killed run left there is thrown away.

    Raises:
      UserError: nothing matches.
    """

    def __init__(self, corpora: Sequence[Sequence[str]], options: CorpusOptions, flags: str, folder: pathlib.Path):
        self._options, self._flags, self._folder = options, flags, folder
        self._specs = [[self._resolved(spec) for spec in specs] for specs in corpora]
        self._units = [(corpus, unit) for corpus, specs in enumerate(self._specs) for s in specs for unit in s.units]

    def _resolved(self, spec: str) -> _Spec:
        found = resolve(unweighted(spec), self._options.text_key)
        return _Spec(spec, found, cut_in_order(found, self._options.format))

    def words(self, lowercase: bool) -> tuple[list[dict[str, int]], list[KnownText]]:
        """The `text.vocabulary.count_words` of each corpus, and what was read.

        Of a text with more than MAX_WORDS different words that function drops rare ones as it goes. Here they are
        counted to the end, and then the most frequent ones are given.

        Raises:
          UserError: no text; broken input, when strict; a pipeline that failed.
        """
        return self._counted(functools.partial(count_words, lowercase=lowercase), MAX_WORDS)

    def symbols(self, most: int) -> tuple[list[dict[str, int]], list[KnownText]]:
        """The same of symbols, see `text.symbols.count_symbols`: up to `most` of each corpus.

        Raises:
          UserError: see `words`.
        """
        return self._counted(count_symbols, most)

    def _counted(
        self, count: Callable[[Iterable[str]], dict[str, int]], most: int
    ) -> tuple[list[dict], list[KnownText]]:
        with self._begun() as buckets:
            self._run(
                range(len(self._units)),
                lambda units: (
                    units
                    | self._step('count', functools.partial(_count, count=count))
                    | 'by word' >> beam.CombinePerKey(_Sum())
                    | self._step('write', _write_counts)
                ),
            )
            known = self._read(self._records())
            return [self._most_frequent(corpus, buckets, most) for corpus in range(len(self._specs))], known

    def _most_frequent(self, corpus: int, buckets: int, most: int) -> dict[str, int]:
        paths = (_counts(self._folder, corpus, bucket) for bucket in range(buckets))
        counts = itertools.chain.from_iterable(json.loads(path.read_text('utf-8')).items() for path in paths)
        return dict(sorted(heapq.nsmallest(most, counts, key=lambda item: (-item[1], item[0]))))

    def sentences(self, size: int, seed: int) -> tuple[list[tuple[list[str], int]], list[KnownText]]:
        """The `text.sampling.sample` of the sentences of each corpus, and what was read.

        The text is read twice: which sentences are drawn depends on how many there are.

        Raises:
          UserError: see `words`.
        """
        with self._begun():
            self._run(range(len(self._units)), lambda units: units | self._step('sizes', _count_sentences))
            records = self._records()
            known = self._read(records)
            begins = list(itertools.accumulate((record['sentences'] for record in records), initial=0))
            drawn = []
            for corpus in range(len(self._specs)):
                units = [number for number, (of, _) in enumerate(self._units) if of == corpus]
                count = sum(records[number]['sentences'] for number in units)
                chosen, _ = sample(range(begins[units[0]], begins[units[0]] + count), size, seed)
                drawn.append((chosen, count))
            texts = self._drawn(sorted(itertools.chain.from_iterable(chosen for chosen, _ in drawn)), begins)
            return [([texts[index] for index in chosen], count) for chosen, count in drawn], known

    def _drawn(self, wanted: list[int], begins: list[int]) -> dict[int, str]:
        """The sentences of these numbers, which are sorted; `begins` of each unit, and the end."""
        numbers, last = {}, iter([*wanted, begins[-1]])
        at = next(last)
        for unit, (begin, end) in enumerate(itertools.pairwise(begins)):
            while at < end:
                numbers.setdefault(unit, []).append(at - begin)
                at = next(last)
        for unit, inside in numbers.items():
            write_atomic(self._folder / f'{unit:05d}.wanted', json.dumps(inside))
        self._run(numbers, lambda units: units | self._step('draw', _draw))
        return {
            begins[unit] + index: text
            for unit, inside in numbers.items()
            for index, text in zip(
                inside, json.loads((self._folder / f'{unit:05d}.drawn').read_text('utf-8')), strict=True
            )
        }

    @contextlib.contextmanager
    def _begun(self) -> Iterator[int]:
        """The folder with its plan; gives the number of buckets."""
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
        lacking = sum(not path.exists() for path in paths)
        if lacking:
            raise not_here(self._folder, lacking, len(paths))
        return [json.loads(path.read_text('utf-8')) for path in paths]

    def _read(self, records: list[dict]) -> list[KnownText]:
        """What was read; raises the error of a specification without text."""
        waiting, known = iter(records), []
        for spec in itertools.chain.from_iterable(self._specs):
            own = [next(waiting) for _ in spec.units]
            if all(record['empty'] for record in own):
                raise no_text(spec.name, next((record['broken'] for record in own if record['broken']), ''))
            read = itertools.chain.from_iterable(record['digests'] for record in own)
            digests = identity.digests_of(zip(itertools.chain(*spec.units), read, strict=True))
            known += identity.identify(spec.sources, digests)
        return known
