"""Merges finished shards into one store: what goes where, and the offsets. Memory does not grow with the text."""

import dataclasses
import pathlib
from collections.abc import Callable

import numpy as np

from bertjax.corpus.shard_writer import DOCUMENT
from bertjax.corpus.store import CHECKSUM
from bertjax.files.atomic import AtomicFile, checksum
from bertjax.files.mapped import map_array
from bertjax.text.hash_split import hash_threshold

TRAIN, HELDOUT, DROPPED = 0, 1, 2


@dataclasses.dataclass
class Shard:
    """A finished shard: its number, its record, and the store's directory."""

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
        named = f'{self.number:05d}.segments' in self.record['files']
        return self._array('segments', 'u1') if named else None

    @property
    def lines(self) -> np.ndarray:
        return self._array('lines', '<u8')

    @property
    def train(self) -> pathlib.Path:
        return self.directory / f'train-{self.number:05d}.tokens'

    @property
    def kept(self) -> pathlib.Path:
        """What `keep_documents` writes."""
        return self.train.with_name(f'{self.train.stem}-kept.tokens')

    @property
    def heldout(self) -> pathlib.Path:
        return self.directory / 'partial' / f'{self.number:05d}.heldout'


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


def is_changed(shard: Shard, where: np.ndarray) -> bool:
    """Whether other documents of a shard stay in training than its train file holds; `where` is its destinations."""
    return not np.array_equal(where == TRAIN, shard.documents['heldout'] == 0)


def keep_documents(shard: Shard, where: np.ndarray, *, itemsize: int) -> str:
    """Writes those that stay into a file of their own, and returns its checksum."""
    # The shard's own file stays until the manifest is written, so that a killed merge can be repeated.
    with AtomicFile(shard.kept) as kept:
        _copy_documents(shard, np.array(shard.documents), where == TRAIN, itemsize, kept)
    return checksum(shard.kept, CHECKSUM)


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

    def add_shard(self, path: pathlib.Path, tokens: int, digest: str) -> None:
        """Adds a file of tokens with its checksum, unless it is empty."""
        if tokens:
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
    keep: Callable[[Shard, np.ndarray], str],
) -> dict:
    """Writes the held-out file and the offset files, and has the changed train files written.

    Args:
      shards: all shards, in order; the train file of one stays in place where its documents all stay in training.
      directory: of the store.
      itemsize: bytes of a token id.
      destinations: from `choose_destinations`.
      watch: called with (split name, DOCUMENT records, sentence lengths) of each shard's kept documents.
      keep: called with (shard, destinations) for each that `is_changed`; writes as `keep_documents`.

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
            if is_changed(shard, where):
                splits[TRAIN].add_shard(shard.kept, tokens, keep(shard, where))
            else:
                splits[TRAIN].add_shard(shard.train, tokens, shard.record['train_checksum'])
    splits[HELDOUT].add_shard(heldout.path, splits[HELDOUT].tokens, checksum(heldout.path, CHECKSUM))
    return {split.name: split.close() for split in splits.values()}
