"""Computes the offsets of pieces in the text before normalization, in Python characters (code points)."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from bertjax.text.special import replace_surrogates

# (ids, starts, ends) of N pieces, int32 [N] each.
PieceOffsets = tuple[np.ndarray, np.ndarray, np.ndarray]

_SURROGATE = re.compile('[\ud800-\udfff]')
_PAIR = re.compile('[\ud800-\udbff][\udc00-\udfff]')


def repair_surrogates(text: str) -> tuple[str, np.ndarray | None]:
    """Joins surrogate pairs and replaces lone surrogates.

    Returns:
      (repaired text, indices). The indices, int64 [N + 1], are the positions in `text` of the N characters of the
      repaired text, and the length of `text`. They are None if `text` has no surrogates.
    """
    if text.isascii() or not _SURROGATE.search(text):
        return text, None
    second = {pair.end() - 1 for pair in _PAIR.finditer(text)}  # a pair becomes one character
    original = [index for index in range(len(text)) if index not in second]
    return replace_surrogates(text), np.array([*original, len(text)])


def trim_spans(
    text: str, ids: Sequence[int], spans: Iterable[tuple[int, int]], positions: np.ndarray | None, space: str
) -> PieceOffsets:
    """Returns ids and spans as arrays, after correcting the spans.

    A span loses the spaces at both ends, and gains the characters after it that no span covers, up to a space or
    control character. For example, no span covers a combining mark if normalization removed it or composed it with the
    letter before it.

    The ascending `spans` refer to the text that `repair_surrogates(text)` returned with `positions`. `space` is a
    further character that the tokenizer reads as a space: U+2581 in SentencePiece.
    """
    spans = np.array(list(spans), np.int64).reshape(-1, 2)
    starts, ends = (spans if positions is None else positions[spans]).T.tolist()
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        while start < end and (text[start].isspace() or text[start] == space):
            start += 1
        while start < end and (text[end - 1].isspace() or text[end - 1] == space):
            end -= 1
        starts[i], ends[i] = start, end
    if not text.isascii():
        for i, (end, following) in enumerate(zip(ends, [*starts[1:], len(text)], strict=False)):
            while end < following and not _is_gap(text[end], space):
                end += 1
            ends[i] = end
    return np.array(ids, np.int32), np.array(starts, np.int32), np.array(ends, np.int32)


def _is_gap(character: str, space: str) -> bool:
    return character.isspace() or character == space or unicodedata.category(character)[0] == 'C'


class CharacterMap:
    """Maps spans of a normalized text to spans of the original text."""

    def __init__(self, normalizer: normalizers.Normalizer):
        # Every character becomes a token, so that `tokenizers` reports its offsets.
        self._tokenizer = tokenizers.Tokenizer(models.WordLevel({'?': 0}, unk_token='?'))
        self._tokenizer.normalizer = normalizer
        self._tokenizer.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r'[\s\S]'), 'isolated')

    def spans(self, text: str, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Converts spans of the normalized text to spans of the original text."""
        characters = self._tokenizer.encode(text, add_special_tokens=False).offsets
        original = []
        for start, end in spans:
            first = characters[start][0] if start < len(characters) else len(text)
            original.append((first, characters[end - 1][1] if end > start else first))
        return original
