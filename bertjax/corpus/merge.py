"""Merges finished shards into one store. The memory does not grow with the text."""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

from bertjax.corpus.shard_writer import DOCUMENT
from bertjax.corpus.store import CHECKSUM
from bertjax.files.atomic import AtomicFile, checksum
from bertjax.files.memory_map import map_array
from bertjax.text.hash_split import hash_threshold

TRAIN, HELDOUT, DROPPED = 0, 1, 2


@dataclasses.dataclass
class Shard:
    """A finished shard: its number, its record, and the directory of its store."""

    number: int
    record: dict
    directory: pathlib.Path

    def _array(self, suffix: str, dtype) -> np.ndarray:
        path = self.directory / 'partial' / f'{self.number:05d}.{suffix}'
        return map_array(path, dtype) if path.stat().st_size else np.empty(0, dtype)

    @property
    def documents(self) -> np.ndarray:
        return self._array('documents', DOCUMENT)

    @property
    def sentences(self) -> np.ndarray:
        return self._array('sentences', '<u4')

    @property
    def segments(self) -> np.ndarray | None:
        has_segments = f'{self.number:05d}.segments' in self.record['files']
        return self._array('segments', 'u1') if has_segments else None

    @property
    def lines(self) -> np.ndarray:
        return self._array('lines', '<u8')

    @property
    def train(self) -> pathlib.Path:
        return self.directory / f'train-{self.number:05d}.tokens'

    @property
    def rewritten_train(self) -> pathlib.Path:
        """The train file that `rewrite_train_file` writes."""
        return self.train.with_name(f'{self.train.stem}-kept.tokens')

    @property
    def heldout(self) -> pathlib.Path:
        return self.directory / 'partial' / f'{self.number:05d}.heldout'


def _extremes(shards: list[Shard], number: int) -> tuple[list[int], list[int]]:
    """Returns the smallest and the largest distinct hashes of documents, up to `number` each, ascending."""
    small = large = np.empty(0, '<u8')
    for shard in shards:
        hashes = np.unique(shard.documents['hash'])
        small = np.unique(np.concatenate([small, hashes[:number]]))[:number]
        large = np.unique(np.concatenate([large, hashes[-number:]]))[-number:]
    return small.tolist(), large.tolist()


def heldout_threshold(shards: list[Shard], heldout: float) -> int:
    """Returns the hash below which documents are held out, so that the share of held-out documents is `heldout`.

    In a small corpus, the threshold is moved so that each split has two documents, because a NotNext pair needs two. If
    there are fewer than four documents, a split may have only one. With one document, or heldout=0, nothing is held
    out.
    """
    small, large = _extremes(shards, 4)
    distinct = len(small)
    if not heldout or distinct < 2:
        return 0
    min_heldout = min(2, distinct // 2)
    min_train = min(2, distinct - min_heldout)
    threshold = max(hash_threshold(heldout), small[min_heldout - 1] + 1)
    return min(threshold, large[-min_train])


def choose_destinations(shards: list[Shard], repeats: np.ndarray, threshold: int, *, drop: bool) -> list[np.ndarray]:
    """Decides whether each document is for training, is held out, or is dropped.

    Args:
      shards: All shards.
      repeats: The result of `find_repeats`. Repeated held-out documents are dropped.
      threshold: The result of `heldout_threshold`.
      drop: Whether repeated training documents are dropped too.

    Returns:
      TRAIN, HELDOUT or DROPPED for each document, uint8 [documents] for each shard.
    """
    result, base = [], 0
    for shard in shards:
        hashes = shard.documents['hash']
        repeated = repeats[base : base + len(hashes)]
        base += len(hashes)
        destination = (hashes < np.uint64(threshold)).astype(np.uint8)
        destination[repeated & ((destination == HELDOUT) | drop)] = DROPPED
        result.append(destination)
    return result


def _copy_documents(shard: Shard, table: np.ndarray, mask: np.ndarray, itemsize: int, target: AtomicFile) -> None:
    """Appends to `target` the tokens of the documents where `mask` (bool) is true, in the order of `table`."""
    begins = np.empty(len(table), np.int64)
    for flag in (0, 1):  # a document is in the train file or the held-out file of its shard
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


def is_changed(shard: Shard, destination: np.ndarray) -> bool:
    """Returns whether the documents of a shard whose `destination` is TRAIN differ from those in its train file."""
    return not np.array_equal(destination == TRAIN, shard.documents['heldout'] == 0)


def rewrite_train_file(shard: Shard, destination: np.ndarray, *, itemsize: int) -> str:
    """Writes the documents of a shard whose `destination` is TRAIN to a new train file, and returns its checksum."""
    # The old train file stays until the manifest is written, so that a killed merge can be repeated.
    with AtomicFile(shard.rewritten_train) as file:
        _copy_documents(shard, np.array(shard.documents), destination == TRAIN, itemsize, file)
    return checksum(shard.rewritten_train, CHECKSUM)


@dataclasses.dataclass
class _Split:
    """The offset files and the counts of one split during the merge."""

    name: str
    directory: pathlib.Path

    def __post_init__(self):
        self.shards: list[dict] = []
        self.documents = self.sentences = self.tokens = 0
        self._files = {kind: AtomicFile(self.directory / f'{self.name}.{kind}') for kind in ('sentences', 'documents')}
        self._segments: AtomicFile | None = None

    def add(self, table: np.ndarray, lengths: np.ndarray, segments: np.ndarray | None) -> None:
        """Adds documents to the counts, and writes the offsets of documents and sentences, and any segment types."""
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

    def add_shard(self, path: pathlib.Path, tokens: int, digest: str) -> None:
        """Adds a token file with its checksum to the list of shards, unless it is empty."""
        if tokens:
            self.shards.append({'file': path.name, 'tokens': tokens, 'bytes': path.stat().st_size, 'checksum': digest})

    def close(self) -> dict:
        """Finishes the offset files and returns the entry of the split in the manifest."""
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
    rewrite: Callable[[Shard, np.ndarray], str],
) -> dict:
    """Writes the held-out file, the offset files and the changed train files.

    Args:
      shards: All shards, in order.
      directory: The directory of the store.
      itemsize: The bytes of a token id.
      destinations: The result of `choose_destinations`.
      rewrite: A function like `rewrite_train_file`. It is called with (shard, destination) for each shard whose train
        file must change (`is_changed`).

    Returns:
      The entries of the manifest, {'train': …, 'heldout': …}.
    """
    splits = {TRAIN: _Split('train', directory), HELDOUT: _Split('heldout', directory)}
    with AtomicFile(directory / 'heldout-00000.tokens') as heldout:
        for shard, destination in zip(shards, destinations, strict=True):
            table = np.array(shard.documents)
            of_sentence = np.repeat(destination, table['sentences'])
            lengths, segments = np.array(shard.sentences), shard.segments
            for code, split in splits.items():
                in_split = of_sentence == code
                split.add(
                    table[destination == code], lengths[in_split], None if segments is None else segments[in_split]
                )
            _copy_documents(shard, table, destination == HELDOUT, itemsize, heldout)
            tokens = int(table['tokens'][destination == TRAIN].sum())
            if is_changed(shard, destination):
                splits[TRAIN].add_shard(shard.rewritten_train, tokens, rewrite(shard, destination))
            else:
                splits[TRAIN].add_shard(shard.train, tokens, shard.record['train_checksum'])
    splits[HELDOUT].add_shard(heldout.path, splits[HELDOUT].tokens, checksum(heldout.path, CHECKSUM))
    return {split.name: split.close() for split in splits.values()}
