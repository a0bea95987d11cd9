"""Merges finished shards into one store: finds copies, assigns documents to splits, and writes the store's files.

Memory holds two bytes per document, the tables of one shard, and about BUCKET hashes.
"""

import itertools
import pathlib

import numpy as np

from bertjax.corpus.shard_writer import DOCUMENT
from bertjax.corpus.store import CHECKSUM
from bertjax.files.atomic import AtomicFile, checksum
from bertjax.files.memory_map import map_array
from bertjax.text.hash_split import hash_threshold

TRAIN, HELDOUT, DROPPED = 0, 1, 2
BUCKET = 1 << 22  # the maximum number of hashes to sort at once
_DTYPES = {'documents': DOCUMENT, 'sentences': '<u4', 'segments': 'u1', 'lines': '<u8'}


class Shard:
    """A finished shard. `record` is its record (see `shard_writer`), and `directory` the directory of the store.

    Attributes:
      train, heldout: The token files of the training documents and of the held-out documents.
      destination: uint8 [documents], TRAIN, HELDOUT or DROPPED; `choose_destinations` sets it.
    """

    destination: np.ndarray

    def __init__(self, number: int, record: dict, directory: pathlib.Path):
        self.number, self.record, self.directory = number, record, directory
        self.train = directory / f'train-{number:05d}.tokens'
        self.heldout = directory / 'partial' / f'{number:05d}.heldout'

    def array(self, kind: str) -> np.ndarray | None:
        """Returns the memory-mapped array 'documents', 'sentences', 'lines' or 'segments', or None if it is absent."""
        path = self.directory / 'partial' / f'{self.number:05d}.{kind}'
        if path.name not in self.record['files']:
            return None
        return map_array(path, _DTYPES[kind]) if path.stat().st_size else np.empty(0, _DTYPES[kind])


def _bucket_edges(count: int) -> list[int]:
    """Returns the edges of equal buckets of 64-bit hashes, each with at most about BUCKET of `count` hashes."""
    number = max(1, -(-count // BUCKET))
    return [(index << 64) // number for index in range(number + 1)]


def count_distinct_lines(shards: list[Shard]) -> int:
    """Returns the number of distinct lines of all shards."""
    runs, total = [], 0
    for shard in shards:
        lines, ends = shard.array('lines'), itertools.accumulate(shard.record['runs'], initial=0)
        runs += [lines[begin:end] for begin, end in itertools.pairwise(ends)]  # each run is sorted
    for low, high in itertools.pairwise(_bucket_edges(sum(map(len, runs)))):
        first, last = np.uint64(low), np.uint64(high - 1)
        hashes = [run[np.searchsorted(run, first) : np.searchsorted(run, last, 'right')] for run in runs]
        total += len(np.unique(np.concatenate([*hashes, np.empty(0, '<u8')])))
    return total


def find_repeats(shards: list[Shard]) -> np.ndarray:
    """Returns bool [documents], in the order of the shards: whether each document repeats an earlier document."""
    total = sum(len(shard.array('documents')) for shard in shards)
    repeats = np.ones(total, bool)
    for low, high in itertools.pairwise(_bucket_edges(total)):
        hashes, numbers, base = [], [], 0
        for shard in shards:
            shard_hashes = shard.array('documents')['hash']
            inside = np.flatnonzero((shard_hashes >= np.uint64(low)) & (shard_hashes <= np.uint64(high - 1)))
            hashes.append(shard_hashes[inside])
            numbers.append(inside + base)
            base += len(shard_hashes)
        _, first = np.unique(np.concatenate(hashes), return_index=True)  # the first of equal hashes
        repeats[np.concatenate(numbers)[first]] = False
    return repeats


def heldout_threshold(shards: list[Shard], heldout: float) -> int:
    """Returns the hash below which documents are held out, so that the share of held-out documents is about `heldout`.

    In a small corpus, the threshold is moved so that each split has at least two distinct documents, because a NotNext
    pair needs two. With only two or three distinct documents, a split may have only one. No document is held out if
    there is only one distinct document, or if `heldout` is 0.
    """
    # Each of the two smallest and two largest hashes of all documents is one of these four hashes of its shard.
    distinct = (np.unique(shard.array('documents')['hash']) for shard in shards)
    extremes = np.unique(np.concatenate([np.append(hashes[:2], hashes[-2:]) for hashes in distinct])).tolist()
    if not heldout or len(extremes) < 2:
        return 0
    min_heldout = min(2, len(extremes) // 2)
    min_train = min(2, len(extremes) - min_heldout)
    threshold = max(hash_threshold(heldout), extremes[min_heldout - 1] + 1)
    return min(threshold, extremes[-min_train])


def choose_destinations(shards: list[Shard], repeats: np.ndarray, threshold: int, *, drop: bool) -> None:
    """Decides whether each document is for training, is held out, or is dropped.

    Repeated held-out documents are always dropped. Repeated training documents are dropped if `drop` is True.
    """
    base = 0
    for shard in shards:
        hashes = shard.array('documents')['hash']
        repeated = repeats[base : base + len(hashes)]
        base += len(hashes)
        shard.destination = (hashes < np.uint64(threshold)).astype(np.uint8)
        shard.destination[repeated & ((shard.destination == HELDOUT) | drop)] = DROPPED


def _copy_documents(shard: Shard, destination: int, itemsize: int, target: AtomicFile) -> None:
    """Appends to `target` the tokens of the documents whose destination is `destination`."""
    table, mask = np.array(shard.array('documents')), shard.destination == destination
    begins = np.empty(len(table), np.int64)
    for flag in (0, 1):  # each document is in either the train file or the held-out file of its shard
        in_file = table['heldout'] == flag
        sizes = table['tokens'][in_file].astype(np.int64) * itemsize
        begins[in_file] = np.cumsum(sizes) - sizes
    with open(shard.train, 'rb') as train, open(shard.heldout, 'rb') as heldout:
        for index in np.flatnonzero(mask).tolist():
            file, remaining = heldout if table['heldout'][index] else train, int(table['tokens'][index]) * itemsize
            file.seek(int(begins[index]))
            while remaining:
                data = file.read(min(1 << 20, remaining))
                if not data:
                    raise RuntimeError(f'{file.name} is shorter than recorded')
                target.write(data)
                remaining -= len(data)


class _Split:
    """The offset files, the file of segment types (if any), and the counts of one split during the merge."""

    def __init__(self, name: str, directory: pathlib.Path, segments: bool):
        self.name = name
        self.shards: list[dict] = []
        self.documents = self.sentences = self.tokens = 0
        kinds = ('sentences', 'documents', 'segments') if segments else ('sentences', 'documents')
        self._files = {kind: AtomicFile(directory / f'{name}.{kind}') for kind in kinds}

    def add(self, table: np.ndarray, lengths: np.ndarray, segments: np.ndarray | None) -> None:
        """Adds documents to the files and to the counts."""
        if segments is not None:
            self._files['segments'].write(segments)
        ends = self.tokens + np.cumsum(lengths, dtype=np.int64)
        self._files['sentences'].write((ends - lengths).astype('<i8'))
        counts = table['sentences'].astype(np.int64)
        self._files['documents'].write((self.sentences + np.cumsum(counts) - counts).astype('<i8'))
        self.documents += len(table)
        self.sentences += len(lengths)
        self.tokens += int(lengths.sum(dtype=np.int64))

    def add_shard(self, path: pathlib.Path, tokens: int, digest: str) -> None:
        """Adds a token file to the list of shards, unless the file is empty."""
        if tokens:
            self.shards.append({'file': path.name, 'tokens': tokens, 'bytes': path.stat().st_size, 'checksum': digest})

    def close(self) -> dict:
        """Finishes the files and returns the entry of the split in the manifest."""
        result: dict = {
            'documents': self.documents,
            'sentences': self.sentences,
            'tokens': self.tokens,
            'shards': self.shards,
        }
        self._files['sentences'].write(np.array([self.tokens], '<i8'))
        self._files['documents'].write(np.array([self.sentences], '<i8'))
        keys = {'sentences': 'sentence_offsets', 'documents': 'document_offsets', 'segments': 'segments'}
        for kind, file in self._files.items():
            size = file.close()
            result[keys[kind]] = {'file': file.path.name, 'bytes': size, 'checksum': checksum(file.path, CHECKSUM)}
        return result


def merge_shards(shards: list[Shard], directory: pathlib.Path, itemsize: int) -> dict:
    """Writes the held-out file, offset files, segment files, and new train files of shards that lose or gain documents.

    Returns:
      The entry 'splits' of the manifest, {'train': …, 'heldout': …}.
    """
    has_segments = any(shard.array('segments') is not None for shard in shards)
    splits = {code: _Split(name, directory, has_segments) for code, name in ((TRAIN, 'train'), (HELDOUT, 'heldout'))}
    with AtomicFile(directory / 'heldout-00000.tokens') as heldout:
        for shard in shards:
            table, destination = np.array(shard.array('documents')), shard.destination
            of_sentence = np.repeat(destination, table['sentences'])
            lengths, segments = np.array(shard.array('sentences')), shard.array('segments')
            for code, split in splits.items():
                in_split = of_sentence == code
                split.add(
                    table[destination == code], lengths[in_split], None if segments is None else segments[in_split]
                )
            _copy_documents(shard, HELDOUT, itemsize, heldout)
            train, digest = shard.train, shard.record['train_checksum']
            if not np.array_equal(destination == TRAIN, table['heldout'] == 0):
                # The old train file stays until the manifest is written, so that a killed merge can be repeated.
                train = directory / f'{shard.train.stem}-kept.tokens'
                with AtomicFile(train) as file:
                    _copy_documents(shard, TRAIN, itemsize, file)
                digest = checksum(train, CHECKSUM)
            splits[TRAIN].add_shard(train, int(table['tokens'][destination == TRAIN].sum()), digest)
    splits[HELDOUT].add_shard(heldout.path, splits[HELDOUT].tokens, checksum(heldout.path, CHECKSUM))
    return {split.name: split.close() for split in splits.values()}
