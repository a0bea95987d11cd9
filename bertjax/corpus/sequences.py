"""Reads sequences of ids or symbols from JSON lines. Each line is a document: a list of sentences.

    {"tokens": [[17, 4, 250], [8, 8]]}                              format 'ids'
    {"codes": [["E11", "I10"], ["C10AB"]], "segments": [0, 2]}      format 'symbols'

A sentence is a unit of the data, such as one visit of a patient or one shot of a film. A flat list is one sentence.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bertjax.errors import UserError, printable
from bertjax.files.streams import Broken

if TYPE_CHECKING:  # the config imports this module, and needs no tokenizer
    from bertjax.text.tokenizer_base import Tokenizer

FORMATS = ('ids', 'symbols')
SEGMENTS = 'segments'  # the field with the segment type of each sentence
MAX_SEGMENTS = 256  # a store saves segment types as uint8

_NO_SEGMENTS = 'add a list with one number for each sentence, or set config.corpus_options.segments=0'


@dataclasses.dataclass(frozen=True)
class SequenceSentence:
    """A sentence of ids or symbols."""

    items: tuple[int, ...] | tuple[str, ...]
    segment: int | None  # the segment type; None if the line has no segment types, or they are not read
    line: int  # the number of the line in the file


def parse_json_object(text: str, number: int) -> dict[str, Any] | Broken:
    """Parses line `number` of a file and returns its object, or a `Broken` that describes the error."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Broken('wrong JSON', number, str(error))
    if not isinstance(record, dict):
        return Broken('wrong JSON', number, f'a {type(record).__name__} instead of an object')
    return record


def describe_wrong_field(record: Mapping[str, Any], key: str, expected: str) -> str:
    """Returns a message that the field `key` of an object is missing or does not contain `expected`."""
    if key in record:
        found = 'null' if record[key] is None else f'a JSON {type(record[key]).__name__}'
        return f'{found} in place of a {expected} in the field {key!r}'
    fields = ', '.join(printable(name[:40]) for name in list(record)[:8]) or 'no field'
    return f'no {expected} in the field {key!r}; there are: {fields}'


def parse_sentences(
    record: Mapping[str, Any], number: int, *, key: str, format: str, segments: bool
) -> Iterator[SequenceSentence | Broken]:
    """Yields the nonempty sentences in the field `key` of line `number`, or one `Broken` if the object is invalid."""
    kind, fits = ('token ids', _is_id) if format == 'ids' else ('symbols', _is_symbol)
    value = record.get(key)
    if not isinstance(value, list):
        yield Broken('missing sequence', number, describe_wrong_field(record, key, f'list of {kind}'))
        return
    sentences = value if value and all(isinstance(item, list) for item in value) else [value]
    invalid = [item for sentence in sentences for item in sentence if not fits(item)]
    if invalid:
        yield Broken('wrong sequence', number, f'{printable(repr(invalid[0])[:60])} in a list of {kind}')
        return
    types = record.get(SEGMENTS) if segments and value else None
    if types is None:
        types = [None] * len(sentences)
    elif not isinstance(types, list) or len(types) != len(sentences) or not all(map(_is_id, types)):
        yield Broken('wrong segments', number, f'{printable(repr(types)[:60])} for {len(sentences)} sentences')
        return
    for sentence, segment in zip(sentences, types, strict=True):
        if sentence:
            yield SequenceSentence(tuple(sentence), segment, number)


def _is_id(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _is_symbol(item: object) -> bool:
    return isinstance(item, str) and item.split() == [item] and '\0' not in item and item.isprintable()


class SequenceEncoder:
    """Encodes sentences of ids or symbols. `segments` and `strict` are those of `CorpusOptions`."""

    def __init__(self, tokenizer: 'Tokenizer', segments: int, strict: bool):
        self._segments, self._strict, self._unk_id = segments, strict, tokenizer.unk_id
        self._ids = {piece: index for index, piece in enumerate(tokenizer.pieces)}
        self._pieces = tokenizer.pieces
        # The special tokens that a corpus must not contain.
        self._special = {tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} - {tokenizer.unk_id}

    def encode(self, sentence: SequenceSentence, where: str) -> np.ndarray:
        """Returns the ids of a sentence, int32, one for each item. `where` is its file and line, for messages.

        Raises:
          UserError: An id is outside the vocabulary, an id or symbol is a reserved special token, a symbol is unknown
            (if strict), or the segment type is missing or too large.
        """
        if self._segments and sentence.segment is None:
            raise UserError(where, f'no field {SEGMENTS!r}', 'a segment type for each sentence', _NO_SEGMENTS)
        if self._segments and sentence.segment >= self._segments:
            expected = f'a type below config.corpus_options.segments = {self._segments}'
            fix = 'raise this key and config.model.num_segments'
            raise UserError(where, f'the segment type {sentence.segment}', expected, fix)
        if isinstance(sentence.items[0], int):
            size = len(self._pieces)
            if max(sentence.items) >= size:
                found, fix = f'the id {max(sentence.items):,}', 'give the vocabulary to which the ids belong'
                raise UserError(where, found, f'ids below {size:,}, the number of pieces of the vocabulary', fix)
            ids = sentence.items
        else:
            unknown = next((item for item in sentence.items if item not in self._ids), None)
            if self._strict and unknown is not None:
                fix = 'add it to the vocabulary, or set config.corpus_options.strict=False to read it as [UNK]'
                raise UserError(where, f'the symbol {unknown!r}', 'a symbol of the vocabulary', fix)
            ids = [self._ids.get(item, self._unk_id) for item in sentence.items]
        if special := self._special & set(ids):
            fix = 'remove it, because bertjax adds the special tokens of each row'
            if ids is sentence.items:
                fix += '; check that the ids belong to config.tokenizer'
            raise UserError(where, f'the special token {self._pieces[min(special)]}', 'tokens of the text only', fix)
        return np.array(ids, np.int32)
