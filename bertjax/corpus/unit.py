"""One work unit: text to token ids on disk. Runs in a worker process and never imports jax.

A unit leaves, in the store's directory (K is its number):
  train-K.tokens               ids of its training documents, the store's dtype
  partial/K.heldout            ids of its held-out documents
  partial/K.sentences          uint32, tokens of each sentence, all documents in the order read
  partial/K.documents          DOCUMENT records, in the order read
  partial/K.lines              uint64 hashes of lines in sorted runs of at most RUN
  partial/K.json               counts and checksums, written last: the unit is done
"""

import array
import collections
import dataclasses
import hashlib
import json
import pathlib

import numpy as np

from bertjax.corpus import layouts
from bertjax.corpus.output import Output, checksum
from bertjax.files import write_atomic
from bertjax.text.sentences import split_sentences
from bertjax.text.tokenizer import Tokenizer

BATCH_CHARACTERS = 1 << 20  # Text that is encoded at once.
RUN = 1 << 20  # Hashes of lines that are held before they are sorted and spilled.
PROBLEMS_KEPT = 5  # Of each kind, with file and line.
DOCUMENT = np.dtype(
    [('hash', '<u8'), ('tokens', '<u8'), ('sentences', '<u4'), ('heldout', '<u4'), ('unknown', '<u8'), ('words', '<u8')]
)


def id_dtype(vocab_size: int) -> np.dtype:
    """uint16 where all ids fit, else int32, little-endian."""
    return np.dtype('<u2' if vocab_size <= 1 << 16 else '<i4')


def number64(digest) -> int:
    """The first 8 bytes of a hash object's digest as an integer."""
    return int.from_bytes(digest.digest()[:8], 'little')


@dataclasses.dataclass
class _Document:
    """The open document: its identity, and the part of it that is on disk or in the batch already."""

    text: object  # The hash of its normalised text so far.
    lines: array.array  # uint64 hashes.
    begin: int = 0  # Where its spilled tokens begin in the train file, in bytes.
    first: int = 0  # Its first sentence in the batch, and the one after its last.
    last: int = 0
    tokens: int = 0
    sentences: int = 0
    unknown: int = 0
    words: int = 0
    broken: str = ''


class UnitWriter:
    """Takes the events of a unit and writes its files."""

    def __init__(self, directory: pathlib.Path, unit: int, tokenizer: Tokenizer, *, heldout: float, split: bool):
        partial = directory / 'partial'
        name = f'{unit:05d}'
        self._train, self._heldout = Output(directory / f'train-{name}.tokens'), Output(partial / f'{name}.heldout')
        self._sentences = Output(partial / f'{name}.sentences')
        self._documents = Output(partial / f'{name}.documents')
        self._lines, self._record = Output(partial / f'{name}.lines'), partial / f'{name}.json'
        self._tokenizer, self._split, self._threshold = tokenizer, split, int(heldout * 2.0**64)
        self._dtype = id_dtype(tokenizer.vocab_size)
        self._batch: list[str] = []
        self._finished: list[_Document] = []
        self._characters = 0
        self._run = array.array('Q')
        self._runs: list[int] = []
        self._open: _Document | None = None
        self._spilled_lengths: list[np.ndarray] = []
        self._dropped: collections.Counter = collections.Counter()
        self._problems: dict[str, list[str]] = {}
        self._counts: collections.Counter = collections.Counter()

    def start(self) -> None:
        self._open = _Document(hashlib.blake2b(digest_size=8), array.array('Q'), first=len(self._batch))

    def paragraph(self, text: str) -> None:
        document = self._open
        normal = ' '.join(text.split()).lower()
        if not normal or document.broken:
            return
        data = normal.encode('utf-8')
        document.text.update(b' ' + data)
        document.lines.append(number64(hashlib.blake2b(data, digest_size=8)))
        self._batch += split_sentences(text) if self._split else [text.strip()]
        self._counts['characters'] += len(text)
        self._characters += len(text)
        if self._characters > BATCH_CHARACTERS:
            self._flush()

    def broken(self, where: str, broken: layouts.Broken) -> None:
        kept = self._problems.setdefault(broken.kind, [])
        if len(kept) < PROBLEMS_KEPT:
            kept.append(f'{where}: {broken.detail}')
        if self._open is None:
            self._dropped[broken.kind] += 1
        elif not self._open.broken:
            self._open.broken = broken.kind

    def end(self) -> None:
        document, self._open = self._open, None
        if document.broken:
            self._dropped[document.broken] += 1
            del self._batch[document.first :]
            self._forget(document)
            return
        document.last = len(self._batch)
        self._finished.append(document)
        if document.tokens:  # Some of it lies on disk: no other document may come before its end.
            self._flush()

    def _forget(self, document: _Document) -> None:
        """Takes the spilled part of a document back."""
        if document.tokens:
            self._train.file.seek(document.begin)
            self._train.file.truncate()
        self._spilled_lengths = []

    def _flush(self) -> None:
        """Encodes the batch; finished documents go to their files, the open one's beginning to the train file."""
        ids = self._tokenizer.encode(self._batch)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        flat = np.concatenate([*ids, np.empty(0, np.int32)]).astype(self._dtype)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        unknown = np.concatenate([[0], np.cumsum(flat == self._tokenizer.unk_id)])
        words = np.concatenate([[0], np.cumsum(~self._tokenizer.continues_word[flat])])
        for document in [*self._finished, *([self._open] if self._open else [])]:
            first, last = document.first, len(self._batch) if document is self._open else document.last
            a, b = ends[first], ends[last]
            some = lengths[first:last]
            some = some[some > 0]
            document.unknown += int(unknown[b] - unknown[a])
            document.words += int(words[b] - words[a])
            document.sentences += len(some)
            if document is self._open:
                if not document.tokens:
                    document.begin = self._train.file.tell()
                self._train.write(flat[a:b])
                self._spilled_lengths.append(some.astype('<u4'))
                document.tokens += int(b - a)
                document.first = 0
            else:
                self._finish(document, flat[a:b], some)
        self._batch, self._finished, self._characters = [], [], 0

    def _finish(self, document: _Document, ids: np.ndarray, lengths: np.ndarray) -> None:
        spilled, document.tokens = document.tokens, document.tokens + len(ids)
        if not document.tokens:
            self._dropped['empty document'] += 1
            return
        digest = number64(document.text)
        heldout = digest < self._threshold
        if heldout and spilled:
            self._move(document.begin)
        (self._heldout if heldout else self._train).write(ids)
        for part in [*self._spilled_lengths, lengths] if spilled else [lengths]:
            self._sentences.write(part.astype('<u4'))
        self._spilled_lengths = [] if spilled else self._spilled_lengths
        row = (digest, document.tokens, document.sentences, int(heldout), document.unknown, document.words)
        self._documents.write(np.array([row], DOCUMENT))
        self._counts['documents'] += 1
        self._run.extend(document.lines)
        self._counts['lines'] += len(document.lines)
        if len(self._run) >= RUN:
            self._spill_lines()

    def _move(self, begin: int) -> None:
        """Moves the train file's end, from byte `begin`, to the held-out file."""
        file = self._train.file
        at, end = begin, file.tell()
        while at < end:
            file.seek(at)
            data = file.read(min(1 << 20, end - at))
            self._heldout.file.write(data)
            at += len(data)
        file.seek(begin)
        file.truncate()

    def _spill_lines(self) -> None:
        if self._run:
            self._lines.write(np.sort(np.frombuffer(self._run, np.uint64)).astype('<u8'))
            self._runs.append(len(self._run))
            self._run = array.array('Q')

    def close(self, inputs: list[list]) -> dict:
        """Finishes the files and returns the unit's record, the JSON object that marks it as done."""
        self._flush()
        self._spill_lines()
        outputs = (self._train, self._heldout, self._sentences, self._documents, self._lines)
        sizes = [output.close() for output in outputs]
        record = {
            'files': {output.path.name: size for output, size in zip(outputs, sizes, strict=True)},
            'train_checksum': checksum(self._train.path),
            'runs': self._runs,
            'documents': self._counts['documents'],
            'characters': self._counts['characters'],
            'lines': self._counts['lines'],
            'dropped': dict(sorted(self._dropped.items())),
            'problems': dict(sorted(self._problems.items())),
            'inputs': inputs,
        }
        write_atomic(self._record, json.dumps(record, indent=1) + '\n')
        return record
