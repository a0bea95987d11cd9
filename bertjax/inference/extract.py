"""Computes the features of one part of a user's texts, and the key that identifies the part."""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import format_value
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile
from bertjax.inference.encode import Encoding, build_sequences, encode, token_spans
from bertjax.inference.input import InputSource, Item, nonblank_texts
from bertjax.inference.runner import Runner
from bertjax.progress import Advance
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.texts import check_text, quote_names

VectorPart = dict[str, np.ndarray]
# The number of texts in a part: PART_SIZE with one vector per text, TOKEN_PART_SIZE with one vector per token. A
# thousand vectors of width 768 take 3 MB. A text often has about 100 tokens.
PART_SIZE, TOKEN_PART_SIZE = 4096, 256
_VERSION = 4  # increase this number when a code change alters the parts of the same texts


@dataclasses.dataclass(frozen=True)
class Extractor:
    """Computes the features of texts, truncated to `runner.max_length` tokens, one part of a file at a time."""

    runner: Runner
    encoding: Encoding

    @property
    def width(self) -> int:
        """The width of the features."""
        return self.encoding.width(self.runner.model.config)

    @property
    def per_token(self) -> bool:
        """Whether there is one vector per token."""
        return self.encoding.pool == 'none'

    @functools.cached_property
    def identity(self) -> bytes:
        """A hash of the model and the options that determine the features of a text."""
        model = self.runner.model
        # The fingerprint of a tokenizer does not depend on its separators.
        options = (_VERSION, self.encoding, self.runner.max_length, model.tokenizer.separators)
        digest = hashlib.sha256(repr(options).encode() + model.fingerprint)
        for layer in self.encoding.dense:
            digest.update(layer.kernel.tobytes() + (b'' if layer.bias is None else layer.bias.tobytes()))
        return digest.digest()

    def part_key(self, items: Sequence[Item]) -> str:
        """Returns the key of a part: a hash of its texts, the model and the options."""
        texts = [item.values if isinstance(item, Row) else None for item in items]
        return hashlib.sha256(self.identity + json.dumps(texts).encode()).hexdigest()[:32]

    def compute_part(self, items: Sequence[Item], advance: Advance | None = None) -> VectorPart:
        """Computes the features of items, in their order.

        `advance` is called with the numbers of finished non-blank items; None shows a progress bar.

        Returns:
          A dict of arrays, for N items.
            lengths: int32 [N], the number of tokens including [CLS] and [SEP]; 0 for a blank item.
            features: float32 [N, D], NaN for a blank item. With one vector per token, [T, D] for all T tokens.
          With one vector per token, there are four more arrays, int32 [T].
            ids: The ids of the pieces.
            segments: 0 for the first text of an item, 1 for the second.
            starts, ends: The character span of the piece in its text; -1 for [CLS] and [SEP].
        """
        numbers, first, second = nonblank_texts(items)
        lengths = np.zeros(len(items), np.int32)
        shape = (0 if self.per_token else len(items), self.width)
        part = {'lengths': lengths, 'features': np.full(shape, np.nan, np.float32)}
        if self.per_token:
            part |= {name: np.zeros(0, np.int32) for name in ('ids', 'segments', 'starts', 'ends')}
        if not numbers:
            return part
        tokenizer, prompted = self.runner.model.tokenizer, [self.encoding.prompt + text for text in first]
        features = build_sequences(tokenizer, prompted, second, self.runner.max_length)
        lengths[numbers] = features.lengths
        rows = encode(self.runner, features, self.encoding, advance=advance)
        if not self.per_token:
            part['features'][numbers] = rows
            return part
        starts, ends = token_spans(tokenizer, features, first, second)
        positions = np.concatenate([np.arange(length) for length in features.lengths])
        segments = positions >= np.repeat(features.second, features.lengths)
        part |= {'segments': segments.astype(np.int32), 'starts': starts, 'ends': ends}
        return part | {'features': np.concatenate(rows), 'ids': features.tokens}


def compute_vectors(extractor: Extractor, texts: Sequence[str], folder: pathlib.Path, advance: Advance) -> np.ndarray:
    """Computes vectors of texts, float32 [N, D]. Parts are saved in `folder` by their `part_key`, and reused."""
    vectors = np.empty((len(texts), extractor.width), np.float32)
    for begin in range(0, len(texts), PART_SIZE):
        items = [Row('', (text,)) for text in texts[begin : begin + PART_SIZE]]
        path = folder / f'{extractor.part_key(items)}.npy'
        if path.exists():
            advance(len(items))
        else:
            with AtomicFile(path) as file:
                np.save(file, extractor.compute_part(items, advance)['features'])
        vectors[begin : begin + len(items)] = np.load(path)
    return vectors


def item_columns(item: Item, source: InputSource, id: str) -> dict[str, Any]:
    """Returns the columns that are written next to the features of an item.

    There is a column for each text of the item, None for a blank item, and if `id` is not '', the column `id` with the
    field of this name. Raises a UserError if the field is missing or its value cannot be written.
    """
    names = ('text', 'pair')[: len(source.columns)]
    texts = dict(zip(names, item.values if isinstance(item, Row) else (None, None), strict=False))
    if not id:
        return texts
    if item.fields is None or id not in item.fields:
        found = 'a plain line' if item.fields is None else f'the fields {quote_names(item.fields)}'
        fix = 'omit config.extract.id: the rows are in the order of the texts'
        raise UserError(item.where, found, f'the field {id!r} of config.extract.id', fix)
    value, where = item.fields[id], f'{item.where}, field {quote_names([id])}'
    if isinstance(value, str):
        check_text(value, where)
    elif not isinstance(value, int | None) and not (isinstance(value, float) and math.isfinite(value)):
        fix = 'name another field in config.extract.id, or leave the field empty'
        raise UserError(where, format_value(value), 'a string or a finite number', fix)  # JSON has no NaN
    return {'id': value, **texts}
