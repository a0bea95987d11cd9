"""Merges finished shards into one store: held-out documents, duplicates, offsets. Memory does not grow with the text.

Duplicates are found in one bucket of the hash space at a time, so that no set of all hashes is ever held.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

from bertjax.corpus.shard_writer import DOCUMENT
from bertjax.corpus.store import CHECKSUM
from bertjax.files.atomic import AtomicFile, checksum
from bertjax.text.hash_split import hash_threshold

BUCKET = 1 << 22  # Hashes that are sorted at once.
TRAIN, HELDOUT, DROPPED = 0, 1, 2


@dataclasses.dataclass
class Shard:
    """A finished shard: its number, its record, and the store's directory."""

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
    def segments(self) -> np.ndarray | None:
        named = f'{self.number:05d}.segments' in self.record['files']
        return self._array('segments', 'u1') if named else None

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
    """Ranges [low, high) of 64-bit hashes, each with at most about BUCKET of `count` hashes."""
    number = max(1, -(-count // BUCKET))
    edges = [(index << 64) // number for index in range(number + 1)]
    yield from itertools.pairwise(edges)


def count_distinct_lines(shards: list[Shard]) -> int:
    """Number of different hashes in the sorted runs of all shards."""
    runs = []
    for shard in shards:
        lines = shard.lines
        ends = np.cumsum([0, *shard.record['runs']])
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


def find_repeats(shards: list[Shard]) -> np.ndarray:
    """bool [documents], in the order of the shards: whether an equal document came before."""
    total = sum(len(shard.documents) for shard in shards)
    repeats = np.zeros(total, bool)
    for low, high in _buckets(total):
        hashes, places, base = [np.empty(0, '<u8')], [np.empty(0, np.int64)], 0
        for shard in shards:
            found = shard.documents['hash']
            inside = np.flatnonzero((found >= np.uint64(low)) & (found <= np.uint64(high - 1)))
            hashes.append(found[inside])
            places.append(inside + base)
            base += len(found)
        hashes, places = np.concatenate(hashes), np.concatenate(places)
        order = np.lexsort((places, hashes))
        same = hashes[order][1:] == hashes[order][:-1]
        repeats[places[order][1:][same]] = True
    return repeats


def _extremes(shards: list[Shard], number: int) -> tuple[list[int], list[int]]:
    """Up to `number` smallest and largest different hashes of documents, both ascending."""
    small = large = np.empty(0, '<u8')
    for shard in shards:
        hashes = np.unique(shard.documents['hash'])
        small = np.unique(np.concatenate([small, hashes[:number]]))[:number]
        large = np.unique(np.concatenate([large, hashes[-number:]]))[-number:]
    return small.tolist(), large.tolist()


def heldout_threshold(shards: list[Shard], heldout: float) -> int:
    """Documents whose hash is below this are held out: the share `heldout` of all hashes.

    In a small corpus it is moved so that each side has two documents (a NotNext pair needs two), or one where there are
    not enough. With one document, or heldout=0, nothing is held out.
    """
    small, large = _extremes(shards, 4)
    different = len(small)
    if not heldout or different < 2:
        return 0
    aside = min(2, different // 2)
    kept = min(2, different - aside)
    threshold = max(hash_threshold(heldout), small[aside - 1] + 1)
    return min(threshold, large[-kept])


def choose_destinations(shards: list[Shard], repeats: np.ndarray, threshold: int, *, drop: bool) -> list[np.ndarray]:
    """For each shard, uint8 [documents]: TRAIN, HELDOUT or DROPPED.

    Args:
      shards: all shards.
      repeats: from `find_repeats`; repeated held-out documents are dropped.
      threshold: from `heldout_threshold`.
      drop: drop repeated training documents too.
    """
    result, base = [], 0
    for shard in shards:
        hashes = shard.documents['hash']
        repeated = repeats[base : base + len(hashes)]
        base += len(hashes)
        where = (hashes < np.uint64(threshold)).astype(np.uint8)
        where[repeated & ((where == HELDOUT) | drop)] = DROPPED
        result.append(where)
    return result


def _copy_documents(shard: Shard, table: np.ndarray, chosen: np.ndarray, itemsize: int, target: AtomicFile) -> None:
    """Appends the tokens of the chosen documents, in the order of `table`, to `target`."""
    begins = np.empty(len(table), np.int64)
    for flag in (0, 1):  # Each document is in the train or in the held-out file of its shard.
        mine = table['heldout'] == flag
        sizes = table['tokens'][mine].astype(np.int64) * itemsize
        begins[mine] = np.cumsum(sizes) - sizes
    with open(shard.train, 'rb') as train, open(shard.heldout, 'rb') as heldout:
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
    """The offset files and counts of one split while it is merged."""

    name: str
    directory: pathlib.Path

    def __post_init__(self):
        self.shards: list[dict] = []
        self.documents = self.sentences = self.tokens = self.unknown = self.words = 0
        self._files = {kind: AtomicFile(self.directory / f'{self.name}.{kind}') for kind in ('sentences', 'documents')}
        self._segments: AtomicFile | None = None

    def add(self, table: np.ndarray, lengths: np.ndarray, segments: np.ndarray | None) -> None:
        """Counts documents of a shard, and writes the offsets of their sentences and of the documents, and the segment
        types of their sentences where they have any."""
        if segments is not None:
            self._segments = self._segments or AtomicFile(self.directory / f'{self.name}.segments')
            self._segments.write(segments)
        ends = self.tokens + np.cumsum(lengths, dtype=np.int64)
        self._files['sentences'].write((ends - lengths).astype('<i8'))
        counts = table['sentences'].astype(np.int64)
        self._files['documents'].write((self.sentences + np.cumsum(counts) - counts).astype('<i8'))
        self.documents += len(table)
        self.sentences += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))
        self.unknown += int(table['unknown'].sum())
        self.words += int(table['words'].sum())

    def add_shard(self, path: pathlib.Path, tokens: int, digest: str | None = None) -> None:
        """Adds a file of tokens, unless it is empty; `digest` is its checksum where that is known."""
        if tokens:
            digest = digest or checksum(path, CHECKSUM)
            self.shards.append({'file': path.name, 'tokens': tokens, 'bytes': path.stat().st_size, 'checksum': digest})

    def close(self) -> dict:
        """Finishes the offset files and returns the split's entry of the manifest."""
        result = {
            'documents': self.documents,
            'sentences': self.sentences,
            'tokens': self.tokens,
            'shards': self.shards,
        }
        for kind, last in (('sentences', self.tokens), ('documents', self.sentences)):
            file = self._files[kind]
            file.write(np.array([last], '<i8'))
            size = file.close()
            key = 'sentence_offsets' if kind == 'sentences' else 'document_offsets'
            result[key] = {'file': file.path.name, 'bytes': size, 'checksum': checksum(file.path, CHECKSUM)}
        if self._segments is not None:
            size, path = self._segments.close(), self._segments.path
            result['segments'] = {'file': path.name, 'bytes': size, 'checksum': checksum(path, CHECKSUM)}
        return result


def merge_shards(
    shards: list[Shard],
    directory: pathlib.Path,
    itemsize: int,
    destinations: list[np.ndarray],
    watch: Callable[[str, np.ndarray, np.ndarray], None],
) -> dict:
    """Writes the held-out file, the changed train files and the offset files.

    Args:
      shards: all shards, in order; the train file of one stays in place where its documents all stay in training.
      directory: of the store.
      itemsize: bytes of a token id.
      destinations: from `choose_destinations`.
      watch: called with (split name, DOCUMENT records, sentence lengths) of each shard's kept documents.

    Returns:
      {'train': …, 'heldout': …}, the manifest's entries.
    """
    splits = {TRAIN: _Split('train', directory), HELDOUT: _Split('heldout', directory)}
    with AtomicFile(directory / 'heldout-00000.tokens') as heldout:
        for shard, where in zip(shards, destinations, strict=True):
            table = np.array(shard.documents)
            of_sentence = np.repeat(where, table['sentences'])
            lengths, segments = np.array(shard.sentences), shard.segments
            for code, split in splits.items():
                chosen, kept = table[where == code], lengths[of_sentence == code]
                split.add(chosen, kept, None if segments is None else segments[of_sentence == code])
                watch(split.name, chosen, kept)
            _copy_documents(shard, table, where == HELDOUT, itemsize, heldout)
            tokens = int(table['tokens'][where == TRAIN].sum())
            if np.array_equal(where == TRAIN, table['heldout'] == 0):
                splits[TRAIN].add_shard(shard.train, tokens, shard.record['train_checksum'])
                continue
            # The shard's own file stays until the manifest is written, so that a killed merge can be repeated.
            with AtomicFile(shard.train.with_name(f'{shard.train.stem}-kept.tokens')) as changed:
                _copy_documents(shard, table, where == TRAIN, itemsize, changed)
            splits[TRAIN].add_shard(changed.path, tokens)
    splits[HELDOUT].add_shard(heldout.path, splits[HELDOUT].tokens)
    return {split.name: split.close() for split in splits.values()}
