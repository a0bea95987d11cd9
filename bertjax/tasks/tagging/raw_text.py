"""Raw text as words, with the characters where each stands."""

import unicodedata

from tokenizers import Regex, pre_tokenizers

from bertjax.text.offsets import repair_surrogates

# Of google-research/bert, tokenization.py:_is_chinese_char; each is a word.
_CHINESE = '[\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff\U0002f800-\U0002fa1f]'
_SPLITTER = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(_CHINESE), 'isolated'), pre_tokenizers.BertPreTokenizer()]
)
Offsets = tuple[int, int]  # the first character, and the one behind the last


def split_words(text: str) -> tuple[tuple[str, ...], tuple[Offsets, ...]]:
    """Words and their offsets, as BERT's tokenizer splits text before it looks for pieces: at white space, and each
    punctuation mark and Chinese character is a word. Control characters around a word are no part of it, and there are
    no words of accents alone, as there are no pieces of them."""
    whole, positions = repair_surrogates(text)
    words, places = [], []
    for _, (start, end) in _SPLITTER.pre_tokenize_str(whole):
        while start < end and _is_control(whole[start]):
            start += 1
        while start < end and _is_control(whole[end - 1]):
            end -= 1
        if not all(unicodedata.category(letter) == 'Mn' for letter in whole[start:end]):
            words.append(whole[start:end])
            places.append((start, end) if positions is None else (int(positions[start]), int(positions[end])))
    return tuple(words), tuple(places)


def _is_control(letter: str) -> bool:
    return unicodedata.category(letter)[0] == 'C'
