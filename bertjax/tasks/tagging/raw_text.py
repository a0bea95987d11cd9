"""Splits raw text into words and their character offsets."""

import unicodedata

from tokenizers import Regex, pre_tokenizers

from bertjax.text.offsets import repair_surrogates

# The characters of google-research/bert, tokenization.py:_is_chinese_char. Each of them is a word.
_CHINESE = '[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]'
_SPLITTER = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(_CHINESE), 'isolated'), pre_tokenizers.BertPreTokenizer()]
)
Offsets = tuple[int, int]  # the first character and the end (exclusive)


def split_words(text: str) -> tuple[tuple[str, ...], tuple[Offsets, ...]]:
    """Returns the words of a text, split as in BERT's tokenizer, and their offsets.

    White space separates words, and each punctuation mark and each Chinese character is a word. Control characters at
    the start and the end of a word are removed. Words of only accents or control characters are dropped, because they
    have no pieces.
    """
    repaired, positions = repair_surrogates(text)
    words, offsets = [], []
    for _, (start, end) in _SPLITTER.pre_tokenize_str(repaired):
        while start < end and _is_control(repaired[start]):
            start += 1
        while start < end and _is_control(repaired[end - 1]):
            end -= 1
        if not all(unicodedata.category(letter) == 'Mn' for letter in repaired[start:end]):
            words.append(repaired[start:end])
            offsets.append((start, end) if positions is None else (int(positions[start]), int(positions[end])))
    return tuple(words), tuple(offsets)


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter)[0] == 'C'
