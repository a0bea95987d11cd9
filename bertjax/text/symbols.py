"""A vocabulary of symbols, such as codes, products or visual words. White space separates them; each has one id."""

import collections
import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.files.small_files import read_lines
from bertjax.text.long_words import MAX_WORD
from bertjax.text.special import (
    SPECIAL_TOKENS,
    TOKENIZER_JSON,
    UNK,
    check_pieces,
    make_added_tokens,
    pair_template,
    special_layout,
)
from bertjax.text.tokenizer_json import JsonTokenizer

_FIX = 'give a text file with one symbol on each line'


def symbol_settings(pieces: Sequence[str]) -> dict[str, Any]:
    """Makes the settings of a tokenizer.json. `pieces` has all pieces, including BERT's special tokens; index = id."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    return {
        **TOKENIZER_JSON,
        'added_tokens': make_added_tokens((ids[name], name) for name in SPECIAL_TOKENS),
        'normalizer': None,
        'pre_tokenizer': {'type': 'WhitespaceSplit'},
        'post_processor': pair_template(ids, {}),
        'decoder': None,
        'model': {'type': 'WordLevel', 'vocab': ids, 'unk_token': UNK},
    }


def read_symbols(path: epath.PathLike) -> JsonTokenizer:
    """Reads a vocabulary from a file with one symbol on each line.

    If the file lacks special tokens, they are put before the symbols, in BERT's order.

    Raises:
      UserError: The file does not exist or is not text, a line is not a single symbol, or a symbol occurs twice.
    """
    symbols = [line.rstrip('\r') for line in read_lines(path, 'symbols', 'config.tokenizer', _FIX)]
    for number, symbol in enumerate(symbols, 1):
        if symbol.split() != [symbol]:
            raise UserError(f'{path}:{number}', repr(symbol), 'one symbol without white space', 'correct the line')
    missing = [name for name in SPECIAL_TOKENS if name not in symbols]
    check_pieces([*symbols, *missing], str(path))
    return JsonTokenizer(symbol_settings([*missing, *symbols]), str(path))


def count_symbols(texts: Iterable[str]) -> dict[str, int]:
    """Counts the symbols of texts. Symbols longer than MAX_WORD characters are ignored."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        symbols = text.split()
        counts.update(symbols if len(text) <= MAX_WORD else (symbol for symbol in symbols if len(symbol) <= MAX_WORD))
    return dict(counts)


def build_symbols(counts: Mapping[str, int], *, vocab_size: int, unused: int = 0) -> JsonTokenizer:
    """Makes a vocabulary of the special tokens, then the most frequent symbols, sorted by frequency.

    `vocab_size` is the maximum number of pieces, including special tokens and the `unused` [unusedN] pieces.

    Raises:
      UserError: There is no symbol, or `vocab_size` leaves no room for one.
    """
    special = special_layout(unused)
    if vocab_size <= len(special):
        found, fix = f'{vocab_size:,}, with room for no symbol', 'raise it, or reserve fewer unused slots'
        raise UserError('config.vocab.size', found, f'at least {len(special) + 1:,}', fix)
    counts = {symbol: count for symbol, count in counts.items() if symbol not in special}
    if not counts:
        raise UserError('corpus', 'no symbol', 'symbols to make a vocabulary of', 'check the corpus and its format')
    most_frequent = heapq.nsmallest(vocab_size - len(special), counts.items(), key=lambda item: (-item[1], item[0]))
    return JsonTokenizer(symbol_settings([*special, *(symbol for symbol, _ in most_frequent)]))
