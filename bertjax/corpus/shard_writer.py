"""Writes the files of one shard from the events of its documents.

Shard K has these files in the store's directory:
  train-K.tokens               the ids of its training documents, in the store's dtype
  partial/K.heldout            the ids of its held-out documents
  partial/K.sentences          uint32, the number of tokens of each sentence, in the order of reading
  partial/K.segments           uint8, the segment type of each sentence, if the data has segment types
  partial/K.documents          DOCUMENT records, in the order of reading
  partial/K.lines              uint64 hashes of lines, in sorted runs of about RUN hashes
  partial/K.json               the record: counts, sizes and checksums; written last, when the shard is done
"""

import array
import collections
import dataclasses
import hashlib
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np

from bertjax.corpus.formats import Document, read_events
from bertjax.corpus.identity import new_digest
from bertjax.corpus.quality import MAX_PROBLEMS, broken_error
from bertjax.corpus.sequences import FORMATS, SequenceEncoder, SequenceSentence
from bertjax.corpus.sources import CorpusOptions, TextPart
from bertjax.corpus.store import CHECKSUM, id_dtype
from bertjax.files.atomic import AtomicFile, checksum, write_atomic
from bertjax.files.streams import Broken
from bertjax.text.hash_split import hash64, hash_threshold
from bertjax.text.splitters import build_splitter
from bertjax.text.tokenizer import Tokenizer
from bertjax.text.tokenizer_base import flatten

BATCH_CHARACTERS = 1 << 20  # the number of characters to encode at once
RUN = 1 << 20  # the number of line hashes that are collected in memory, then sorted and written
_HASH = 8  # the bytes of a hash
DOCUMENT = np.dtype(
    [('hash', '<u8'), ('tokens', '<u8'), ('sentences', '<u4'), ('heldout', '<u4'), ('unknown', '<u8'), ('words', '<u8')]
)


@dataclasses.dataclass
class _Draft:
    """A document that is not yet completely written."""

    text: object  # the hash object of the normalized text
    lines: bytearray  # uint64 hashes of the lines, little-endian
    segments: array.array  # uint8, the segment types of the sentences, if the data has segment types
    batch: list = dataclasses.field(default_factory=list)  # the next sentences to encode: texts, or arrays of ids
    spool: BinaryIO | None = None  # a temporary file of the encoded ids, if the document is longer than a batch
    lengths: list = dataclasses.field(default_factory=list)  # the lengths of the encoded sentences, as arrays
    characters: int = 0
    tokens: int = 0
    sentences: int = 0
    unknown: int = 0
    words: int = 0
    broken: str = ''


class ShardWriter:
    """Writes the files of a shard. The methods take the events of documents. For the arguments, see `encode_shard`."""

    def __init__(self, directory: pathlib.Path, shard: int, tokenizer: Tokenizer, options: CorpusOptions):
        partial, name = directory / 'partial', f'{shard:05d}'
        self._segments = options.segments
        self._split = build_splitter(options.sentences) if options.split_sentences else lambda line: [line.strip()]
        self._train = AtomicFile(directory / f'train-{name}.tokens')
        kinds = ('heldout', 'sentences', 'documents', 'lines', *(('segments',) if self._segments else ()))
        self._files = {kind: AtomicFile(partial / f'{name}.{kind}') for kind in kinds}
        self._record = partial / f'{name}.json'
        self._threshold = hash_threshold(options.heldout)
        # `add_paragraph` adds the spaces, because there is none before most Chinese sentences.
        self._tokenizer = tokenizer.without_prefix_space
        self._begins_with_space = self._tokenizer is not tokenizer  # every document
        self._sequences = None  # if documents are text
        if options.format in FORMATS:
            self._sequences = SequenceEncoder(tokenizer, options.segments, options.strict)
        self._dtype = id_dtype(tokenizer.vocab_size)
        self._batch: list[_Draft] = []  # the last document may be open
        self._characters = 0  # in the batch
        self._run = bytearray()
        self._runs: list[int] = []
        self._open: _Draft | None = None
        self._lengths: list[np.ndarray] = []  # the lengths of the sentences of finished documents
        self._rows: list[tuple] = []  # the DOCUMENT records of finished documents
        self._dropped: collections.Counter = collections.Counter()
        self._problems: dict[str, list[str]] = {}
        self._counts = {'documents': 0, 'characters': 0, 'lines': 0}  # of finished documents

    def start(self) -> None:
        """Opens a document."""
        self._open = _Draft(hashlib.blake2b(digest_size=8), bytearray(), array.array('B'))
        self._batch.append(self._open)

    def add_paragraph(self, text: str) -> None:
        """Adds text to the open document."""
        document = self._open
        # Most texts need no split and join. U+0020 is the only printable white space.
        has_single_spaces = text.isprintable() and '  ' not in text
        normal = (text.strip() if has_single_spaces else ' '.join(text.split())).lower()
        if not normal or document.broken:
            return
        self._hash(normal.encode('utf-8'))
        sentences = self._split(text)
        if prefix := self._tokenizer.word_prefix:  # a word includes the white space or line end before it
            paragraph = '\n' + text if document.characters or self._begins_with_space else text.lstrip()
            sentences = list(_restore_spaces(sentences, paragraph, prefix))
        document.characters += len(text)
        for sentence in sentences:
            while len(sentence) > BATCH_CHARACTERS:  # cut, at a space if possible, so that memory is bounded
                end = sentence.rfind(' ', 1, BATCH_CHARACTERS) + 1
                end = end - len(prefix) if end else BATCH_CHARACTERS
                self._add_to_batch(sentence[:end], end)
                sentence = sentence[end:]
            self._add_to_batch(sentence, len(sentence))

    def _hash(self, line: bytes) -> None:
        self._open.text.update(b' ' + line)
        self._open.lines += hashlib.blake2b(line, digest_size=_HASH).digest()

    def _add_to_batch(self, sentence: str | np.ndarray, characters: int) -> None:
        self._open.batch.append(sentence)
        self._characters += characters
        if self._characters > BATCH_CHARACTERS:
            self._flush()

    def add_sentence(self, sentence: SequenceSentence, where: str) -> None:
        """Adds a sentence of ids or symbols to the open document. `where` is its file and line, for messages."""
        document = self._open
        if document.broken:
            return
        ids = self._sequences.encode(sentence, where)
        kind = f'{sentence.segment}:' if self._segments else ''
        data = (kind + ' '.join(map(str, sentence.items))).encode('utf-8')
        self._hash(data)
        if self._segments:
            document.segments.append(sentence.segment)
        document.characters += len(data)
        self._add_to_batch(ids, len(data))

    def add_broken(self, where: str, broken: Broken) -> None:
        """Marks the open document as broken, so that it is dropped. If no document is open, counts the broken input."""
        problems = self._problems.setdefault(broken.kind, [])
        if len(problems) < MAX_PROBLEMS:
            problems.append(f'{where}: {broken.detail}')
        if self._open is None:
            self._dropped[broken.kind] += 1
        elif not self._open.broken:
            self._open.broken = broken.kind

    def end(self) -> None:
        """Closes the open document."""
        document, self._open = self._open, None
        if document.broken:
            self._dropped[document.broken] += 1
            self._batch.pop()

    def _flush(self) -> None:
        """Encodes the batch, and writes the finished documents to their files and the open one to a temporary file."""
        batch = [sentence for document in self._batch for sentence in document.batch]
        ids, lengths = flatten(batch) if self._sequences else self._tokenizer.encode_flat(batch)
        flat = ids.astype(self._dtype)
        ends = np.concatenate([[0], np.cumsum(lengths)])
        unknown = np.concatenate([[0], np.cumsum(flat == self._tokenizer.unk_id)])
        words = np.concatenate([[0], np.cumsum(~self._tokenizer.continues_word[flat])])
        last = 0
        for document in self._batch:
            first, last = last, last + len(document.batch)
            a, b = ends[first], ends[last]
            sentences = lengths[first:last]
            sentences = sentences[sentences > 0]
            document.unknown += int(unknown[b] - unknown[a])
            document.words += int(words[b] - words[a])
            document.sentences += len(sentences)
            document.tokens += int(b - a)
            document.lengths.append(sentences.astype('<u4'))
            if document is self._open:
                document.spool = document.spool or tempfile.TemporaryFile(dir=self._record.parent)  # noqa: SIM115
                document.spool.write(flat[a:b])
                document.batch = []
            else:
                self._finish(document, flat[a:b])
        self._batch, self._characters = [self._open] if self._open else [], 0
        self._files['sentences'].write(np.concatenate([*self._lengths, np.empty(0, '<u4')]))
        self._files['documents'].write(np.array(self._rows, DOCUMENT))
        self._lengths, self._rows = [], []

    def _finish(self, document: _Draft, ids: np.ndarray) -> None:
        if not document.tokens:
            self._dropped['empty document'] += 1
            return
        digest = hash64(document.text.digest(), 'little')
        heldout = digest < self._threshold
        file = self._files['heldout'] if heldout else self._train
        if document.spool:
            document.spool.seek(0)
            shutil.copyfileobj(document.spool, file.file)
        file.write(ids)
        self._lengths += document.lengths
        if self._segments:
            self._files['segments'].write(np.frombuffer(document.segments, np.uint8))
        row = (digest, document.tokens, document.sentences, int(heldout), document.unknown, document.words)
        self._rows.append(row)
        self._counts['documents'] += 1
        self._counts['characters'] += document.characters
        self._run += document.lines
        self._counts['lines'] += len(document.lines) // _HASH
        if len(self._run) >= RUN * _HASH:
            self._spill_lines()

    def _spill_lines(self) -> None:
        if self._run:
            self._files['lines'].write(np.sort(np.frombuffer(self._run, '<u8')))
            self._runs.append(len(self._run) // _HASH)
            self._run = bytearray()

    def close(self, digests: list[str]) -> dict:
        """Finishes the files. Returns the record, which contains the digests of the parts and is written last."""
        self._flush()
        self._spill_lines()
        record = {
            'files': {file.path.name: file.close() for file in (self._train, *self._files.values())},
            'train_checksum': checksum(self._train.path, CHECKSUM),
            'runs': self._runs,
            **self._counts,
            'dropped': dict(sorted(self._dropped.items())),
            'problems': dict(sorted(self._problems.items())),
            'digests': digests,
        }
        write_atomic(self._record, json.dumps(record, indent=1) + '\n')
        return record


def _restore_spaces(sentences: Sequence[str], paragraph: str, prefix: str) -> Iterator[str]:
    """Yields the sentences of a paragraph, each with `prefix` if white space precedes it."""
    end = 0
    for sentence in sentences:
        start = paragraph.index(sentence, end)
        yield sentence if start == end else prefix + sentence
        end = start + len(sentence)


def encode_shard(
    directory: pathlib.Path,
    shard: int,
    parts: Sequence[TextPart],
    tokenizer: Tokenizer,
    options: CorpusOptions,
    progress: Callable[[int], object],
) -> dict:
    """Encodes shard number `shard`, which reads `parts`, and writes its files. For `progress`, see `read_events`.

    Returns:
      The record of the shard, as in partial/K.json.

    Raises:
      UserError: The input is broken (if strict), or a sentence is invalid (see `SequenceEncoder.encode`).
    """
    writer, digests = ShardWriter(directory, shard, tokenizer, options), []
    for part in parts:
        digest = new_digest()
        for event in read_events(part, options, progress=progress, digest=digest):
            if type(event) is str:
                writer.add_paragraph(event)
            elif type(event) is SequenceSentence:
                writer.add_sentence(event, f'{part.path}:{event.line}')
            elif event is Document.START:
                writer.start()
            elif event is Document.END:
                writer.end()
            elif options.strict:
                raise broken_error(part.path, event)
            else:
                writer.add_broken(event.located_in(part.name), event)
        digests.append(digest.hexdigest())
    return writer.close(digests)
