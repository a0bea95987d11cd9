"""Finished units to one store: held-out documents, duplicates, offsets, statistics. Memory does not grow with the text.

Duplicates are found bucket by bucket of the hash space, so that no set of all hashes is ever held.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Iterator

import numpy as np

from bertjax.corpus.output import checksum
from bertjax.corpus.unit import DOCUMENT

BUCKET = 1 << 22  # Hashes that are sorted at once.
TRAIN, HELDOUT, DROPPED = 0, 1, 2


@dataclasses.dataclass
class Unit:
    """A finished unit: its number, its record, and where its files are."""

    number: int
    record: dict
    directory: pathlib.Path

    def _array(self, suffix: str, dtype) -> np.ndarray:
        path = self.directory / 'partial' / f'{self.number:05d}.{suffix}'
        return np.memmap(path, dtype, 'r') if path.stat().st_size else np.empty(0, dtype)

    @property
    def documents(self) -> np.ndarray:
        return self._array('documents', DOCUMENT)

    @property
    def sentences(self) -> np.ndarray:
        return self._array('sentences', '<u4')

    @property
    def lines(self) -> np.ndarray:
        return self._array('lines', '<u8')

    @property
    def train(self) -> pathlib.Path:
        return self.directory / f'train-{self.number:05d}.tokens'

    @property
    def heldout(self) -> pathlib.Path:
        return self.directory / 'partial' / f'{self.number:05d}.heldout'


def _buckets(count: int) -> Iterator[tuple[int, int]]:
    """[low, high) ranges of the 64-bit hashes, each of about BUCKET of `count` hashes or fewer."""
    number = max(1, -(-count // BUCKET))
    edges = [(index << 64) // number for index in range(number + 1)]
    yield from itertools.pairwise(edges)


def count_distinct_lines(units: list[Unit]) -> int:
    """Number of different hashes in the sorted runs of all units."""
    runs = []
    for unit in units:
        lines = unit.lines
        ends = np.cumsum([0, *unit.record['runs']])
        runs += [lines[a:b] for a, b in itertools.pairwise(ends)]
    distinct = 0
    for low, high in _buckets(sum(map(len, runs))):
        pieces = [np.empty(0, '<u8')]
        for run in runs:
            a = np.searchsorted(run, np.uint64(low))
            b = len(run) if high >> 64 else np.searchsorted(run, np.uint64(high))
            pieces.append(run[a:b])
        hashes = np.sort(np.concatenate(pieces))
        distinct += int(np.count_nonzero(hashes[1:] != hashes[:-1])) + bool(len(hashes))
    return distinct


def find_repeats(units: list[Unit]) -> np.ndarray:
    """bool [documents]: an equal document came before, in the order of the units."""
    total = sum(len(unit.documents) for unit in units)
    repeats = np.zeros(total, bool)
    for low, high in _buckets(total):
        hashes, places, base = [np.empty(0, '<u8')], [np.empty(0, np.int64)], 0
        for unit in units:
            found = unit.documents['hash']
            inside = np.flatnonzero((found >= np.uint64(low)) & (found <= np.uint64(high - 1)))
            hashes.append(found[inside])
            places.append(inside + base)
            base += len(found)
        hashes, places = np.concatenate(hashes), np.concatenate(places)
        order = np.lexsort((places, hashes))
        same = hashes[order][1:] == hashes[order][:-1]
        repeats[places[order][1:][same]] = True
    return repeats


def _extremes(units: list[Unit], number: int) -> tuple[list[int], list[int]]:
    """The `number` smallest and largest different hashes of documents, or fewer, each in rising order."""
    small = large = np.empty(0, '<u8')
    for unit in units:
        hashes = np.unique(unit.documents['hash'])
        small = np.unique(np.concatenate([small, hashes[:number]]))[:number]
        large = np.unique(np.concatenate([large, hashes[-number:]]))[-number:]
    return small.tolist(), large.tolist()


def heldout_threshold(units: list[Unit], heldout: float) -> int:
    """Documents whose hash lies below this are held out: the share `heldout` of all hashes.

    It is moved so far that a small corpus has two documents on each side (a NotNext pair needs two), and the smallest
    one on each. With one document, or heldout=0, nothing is held out.
    """
    small, large = _extremes(units, 4)
    different = len(small)
    if not heldout or different < 2:
        return 0
    aside = min(2, different // 2)
    kept = min(2, different - aside)
    threshold = max(int(heldout * 2.0**64), small[aside - 1] + 1)
    return min(threshold, large[-kept])


def choose_destinations(units: list[Unit], repeats: np.ndarray, threshold: int, *, drop: bool) -> list[np.ndarray]:
    """For each unit, uint8 [documents]: TRAIN, HELDOUT or DROPPED.

    Args:
      units: all units.
      repeats: from `find_repeats`; repeated held-out documents are dropped.
      threshold: from `heldout_threshold`.
      drop: drop repeated training documents too.
    """
    result, base = [], 0
    for unit in units:
        hashes = unit.documents['hash']
        repeated = repeats[base : base + len(hashes)]
        base += len(hashes)
        where = (hashes < np.uint64(threshold)).astype(np.uint8)
        where[repeated & ((where == HELDOUT) | drop)] = DROPPED
        result.append(where)
    return result


def _copy_documents(unit: Unit, table: np.ndarray, chosen: np.ndarray, itemsize: int, target) -> None:
    """Appends the tokens of the chosen documents, in the order of `table`, to an open file."""
    begins = np.empty(len(table), np.int64)
    for flag in (0, 1):  # Each lies in its unit's train or held-out file.
        mine = table['heldout'] == flag
        sizes = table['tokens'][mine].astype(np.int64) * itemsize
        begins[mine] = np.cumsum(sizes) - sizes
    with open(unit.train, 'rb') as train, open(unit.heldout, 'rb') as heldout:
        for index in np.flatnonzero(chosen).tolist():
            file, left = heldout if table['heldout'][index] else train, int(table['tokens'][index]) * itemsize
            file.seek(int(begins[index]))
            while left:
                data = file.read(min(1 << 20, left))
                if not data:
                    raise RuntimeError(f'{file.name} is shorter than its record says')
                target.write(data)
                left -= len(data)


@dataclasses.dataclass
class _Split:
    """What the merge gathers of one split."""

    name: str
    directory: pathlib.Path

    def __post_init__(self):
        self.shards: list[dict] = []
        self.documents = self.sentences = self.tokens = self.unknown = self.words = 0
        self._files = {kind: open(self._temporary(kind), 'wb') for kind in ('sentences', 'documents')}  # noqa: SIM115

    def _temporary(self, kind: str) -> pathlib.Path:
        return self.directory / 'partial' / f'{self.name}.{kind}'

    def add(self, table: np.ndarray, lengths: np.ndarray) -> None:
        """Counts documents of a unit and writes where their sentences, and they, begin."""
        ends = self.tokens + np.cumsum(lengths, dtype=np.int64)
        self._files['sentences'].write((ends - lengths).astype('<i8').data)
        counts = table['sentences'].astype(np.int64)
        self._files['documents'].write((self.sentences + np.cumsum(counts) - counts).astype('<i8').data)
        self.documents += len(table)
        self.sentences += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))
        self.unknown += int(table['unknown'].sum())
        self.words += int(table['words'].sum())

    def add_shard(self, path: pathlib.Path, tokens: int, digest: str | None = None) -> None:
        if tokens:
            digest = digest or checksum(path)
            self.shards.append({'file': path.name, 'tokens': tokens, 'bytes': path.stat().st_size, 'checksum': digest})

    def close(self) -> dict:
        """Ends the offset files, puts them in place, and returns the split's part of the manifest."""
        result = {
            'documents': self.documents,
            'sentences': self.sentences,
            'tokens': self.tokens,
            'shards': self.shards,
        }
        for kind, last in (('sentences', self.tokens), ('documents', self.sentences)):
            file = self._files[kind]
            file.write(np.array([last], '<i8').data)
            file.close()
            path = self.directory / f'{self.name}.{kind}'
            self._temporary(kind).replace(path)
            key = 'sentence_offsets' if kind == 'sentences' else 'document_offsets'
            result[key] = {'file': path.name, 'bytes': path.stat().st_size, 'checksum': checksum(path)}
        return result


def merge_units(
    units: list[Unit], directory: pathlib.Path, itemsize: int, destinations: list[np.ndarray], watch
) -> dict:
    """Writes the held-out shard, the changed train shards and the offset files.

    Args:
      units: all units, in order; their train shards stay in place where all of their documents stay in training.
      directory: the store's.
      itemsize: bytes of a token id.
      destinations: from `choose_destinations`.
      watch: called with (split name, documents table, sentence lengths) of each unit's kept documents: statistics.

    Returns:
      {'train': …, 'heldout': …}, the manifest's entries.
    """
    splits = {TRAIN: _Split('train', directory), HELDOUT: _Split('heldout', directory)}
    heldout_path = directory / 'heldout-00000.tokens'
    with open(directory / 'partial' / 'heldout.tokens', 'wb') as heldout_file:
        for unit, where in zip(units, destinations, strict=True):
            table = np.array(unit.documents)
            of_sentence = np.repeat(where, table['sentences'])
            lengths = np.array(unit.sentences)
            for code, split in splits.items():
                chosen, kept = table[where == code], lengths[of_sentence == code]
                split.add(chosen, kept)
                watch(split.name, chosen, kept)
            _copy_documents(unit, table, where == HELDOUT, itemsize, heldout_file)
            tokens = int(table['tokens'][where == TRAIN].sum())
            if np.array_equal(where == TRAIN, table['heldout'] == 0):
                splits[TRAIN].add_shard(unit.train, tokens, unit.record['train_checksum'])
                continue
            # The unit's own shard stays until the manifest is there: the merge can be killed and done again.
            changed = unit.train.with_name(f'{unit.train.stem}-kept.tokens')
            temporary = directory / 'partial' / changed.name
            with open(temporary, 'wb') as file:
                _copy_documents(unit, table, where == TRAIN, itemsize, file)
            temporary.replace(changed)
            splits[TRAIN].add_shard(changed, tokens)
    (directory / 'partial' / 'heldout.tokens').replace(heldout_path)
    splits[HELDOUT].add_shard(heldout_path, splits[HELDOUT].tokens)
    return {split.name: split.close() for split in splits.values()}
