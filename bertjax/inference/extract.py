"""Features of a part of a user's texts: what is computed and kept of it, and what tells it from others."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bertjax.convert.trees import flat_paths
from bertjax.errors import UserError
from bertjax.inference.encode import Encoding, check_encoding, encode, sequences, spans
from bertjax.inference.input import InputSource, Item, texts_of
from bertjax.inference.runner import Runner
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.texts import checked_text, quoted

VectorPart = dict[str, np.ndarray]
# Of texts. A thousand vectors of width 768 are 3 MB; of every token, a hundred times as much.
PART, PART_OF_TOKENS = 4096, 256
_VERSION = 3  # raise it with any change after which the same texts give other parts


@dataclasses.dataclass(frozen=True)
class Extractor:
    """Features of texts, as a part of a file.

    Attributes:
      runner: of the model.
      encoding: which features.
      max_length: longer texts are cut to so many tokens.
    """

    runner: Runner
    encoding: Encoding
    max_length: int

    def check(self) -> None:
        """Refuses layers, or a pooler, that the model does not have.

        Raises:
          UserError: it does not.
        """
        check_encoding(self.runner.model, self.encoding)

    @property
    def width(self) -> int:
        """Of the features."""
        return self.encoding.width(self.runner.model.config)

    @property
    def of_tokens(self) -> bool:
        """Whether every token has its features."""
        return self.encoding.pool == 'none'

    @functools.cached_property
    def identity(self) -> bytes:
        """A hash of all that determines the features of a text."""
        model = self.runner.model
        digest = hashlib.sha256(repr((_VERSION, model.config, self.encoding, self.max_length)).encode())
        digest.update(model.tokenizer.fingerprint.encode())
        if model.tokenizer.separators != 1:  # the fingerprint is of single texts
            digest.update(b'%d separators' % model.tokenizer.separators)
        for layer in self.encoding.dense:
            digest.update(layer.kernel.tobytes() + layer.bias.tobytes())
        for path, x in sorted(flat_paths(model.params).items()):
            digest.update(path.encode())
            digest.update(np.ascontiguousarray(jax.device_get(x)).view(np.uint8))
        return digest.digest()

    def key(self, items: Sequence[Item]) -> str:
        """Of the part that these items make: another model, other texts or other features have another."""
        texts = [item.values if isinstance(item, Row) else None for item in items]
        return hashlib.sha256(self.identity + json.dumps(texts).encode()).hexdigest()[:32]

    def part(self, items: Sequence[Item], advance: Callable[[int], object] | None = None) -> VectorPart:
        """The features of items, in their order.

        Args:
          items: rows, and blank ones among them.
          advance: is told of how many more the features are there; None for a progress bar of its own.

        Returns:
          lengths: int32 [n], the tokens of each, [CLS] and [SEP] among them; 0 of a blank one.
          features: float32 [n, D], of blank ones NaN. Or, of every token, [T, D] with, int32 [T]:
          ids: of the pieces.
          segments: 0 in the first text, 1 in the second.
          starts, ends: the characters of that text that a piece stands for; -1 of [CLS] and [SEP].
        """
        numbers, first, second = texts_of(items)
        lengths = np.zeros(len(items), np.int32)
        if not numbers:
            return self._nothing(lengths)
        tokenizer = self.runner.model.tokenizer
        features = sequences(tokenizer, self.encoding.prompted(first), second, self.max_length)
        lengths[numbers] = features.lengths
        rows = encode(self.runner, features, self.encoding, advance=advance)
        if not self.of_tokens:
            part = self._nothing(lengths)
            part['features'][numbers] = rows
            return part
        starts, ends = spans(tokenizer, features, first, second)
        inside = np.concatenate([np.arange(length) for length in features.lengths])
        segments = inside >= np.repeat(features.second, features.lengths)
        located = {'segments': segments.astype(np.int32), 'starts': starts, 'ends': ends}
        return {'lengths': lengths, 'features': np.concatenate(rows), 'ids': features.tokens, **located}

    def _nothing(self, lengths: np.ndarray) -> VectorPart:
        if not self.of_tokens:
            return {'lengths': lengths, 'features': np.full((len(lengths), self.width), np.nan, np.float32)}
        empty = {name: np.zeros(0, np.int32) for name in ('ids', 'segments', 'starts', 'ends')}
        return {'lengths': lengths, 'features': np.zeros((0, self.width), np.float32), **empty}


def labels(item: Item, source: InputSource, id: str) -> dict[str, Any]:
    """What stands beside the features of an item: its texts, None of a blank one, and before them what the field
    `id` of its record has.

    Raises:
      UserError: there is no such field, or in it what cannot be written.
    """
    names = ('text', 'pair')[: len(source.columns)]
    texts = dict(zip(names, item.values if isinstance(item, Row) else (None, None), strict=False))
    if not id:
        return texts
    if item.fields is None or id not in item.fields:
        found = 'a plain line' if item.fields is None else f'the fields {quoted(item.fields)}'
        fix = 'leave config.extract.id out: the rows are in the order of the texts'
        raise UserError(item.where, found, f'the field {id!r} of config.extract.id', fix)
    value, where = item.fields[id], f'{item.where}, field {quoted([id])}'
    if not isinstance(value, str | int | float | None):
        found, fix = f'a {type(value).__name__}', 'name another field in config.extract.id'
        raise UserError(where, found, 'a string or a number', fix)
    if isinstance(value, str):
        checked_text(value, where)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has none
        raise UserError(where, str(value), 'a string or a number', 'leave the field empty')
    return {'id': value, **texts}
