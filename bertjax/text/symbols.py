"""A vocabulary of symbols: codes, products, visual words. Each is one id, never split; white space divides them."""

import collections
import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from etils import epath

from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_lines
from bertjax.text.flat import flatten
from bertjax.text.long_words import MAX_WORD
from bertjax.text.offsets import Located, locate
from bertjax.text.special import (
    SPECIAL_TOKENS,
    UNK,
    added_tokens,
    check_ids,
    check_pieces,
    fingerprint_of,
    pair_template,
    special_ids_of,
    special_layout,
    to_json,
    tokenizer_config,
    well_formed,
)

_FIX = 'give a text file with a symbol a line'


class SymbolTokenizer:
    """Text to ids by a table: a tokenizer.json whose model is WordLevel and which splits at white space.

    Args:
      settings: the parsed tokenizer.json, see `symbol_settings`.
      where: where it came from, for messages.
      names: what the vocabulary calls a special token, where that is not BERT's name.

    Attributes: see `bertjax.text.tokenizer.Tokenizer`.

    Raises:
      UserError: a vocabulary without BERT's special tokens, or with other settings.
    """

    family = 'symbols'
    lowercase = False
    separators = 1

    def __init__(
        self, settings: Mapping[str, Any], where: str = 'tokenizer.json', names: Mapping[str, str] | None = None
    ):
        self._settings = settings = {**settings, 'truncation': None, 'padding': None}
        self._where, self._names = where, dict(names or {})
        splits = (settings.get('pre_tokenizer') or {}).get('type')
        if settings.get('normalizer') or splits != 'WhitespaceSplit':
            found = 'a WordLevel tokenizer that does more than divide at white space'
            raise UserError(where, found, 'a table of symbols', 'take a vocabulary that bertjax wrote')
        check_ids(settings, where)
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
        ids_of = self._tokenizer.get_vocab(with_added_tokens=True)
        self.pieces = sorted(ids_of, key=ids_of.__getitem__)
        self.vocab_size = len(self.pieces)
        ids = check_pieces(self.pieces, where, self._names)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        self.special_ids = special_ids_of(self.pieces, ids)
        self.continues_word = np.zeros(self.vocab_size, bool)
        self.fingerprint = fingerprint_of({'family': self.family, 'pieces': self.pieces})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text (int32, one array a text), without [CLS] or [SEP] around them."""
        texts = [well_formed(text) for text in texts]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of `encode` one after the other, and how many each text has: see the protocol."""
        return flatten(self.encode(texts))

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Located]:
        """The ids of `encode`, and where each symbol begins and ends: see the protocol."""
        return locate(self._tokenizer, texts)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The symbols with spaces between, special tokens kept."""
        return ' '.join(self.pieces[int(index)] for index in ids)

    def save(self, directory: epath.PathLike) -> None:
        """Writes tokenizer.json and tokenizer_config.json, which transformers' AutoTokenizer loads."""
        directory = epath.Path(directory)
        config = tokenizer_config(self._names, tokenizer_class='PreTrainedTokenizerFast')
        write_atomic(directory / 'tokenizer.json', to_json(self._settings))
        write_atomic(directory / 'tokenizer_config.json', to_json(config))

    def __reduce__(self):
        return SymbolTokenizer, (self._settings, self._where, self._names)


def symbol_settings(pieces: Sequence[str]) -> dict[str, Any]:
    """The tokenizer.json of a table of `pieces` (index = id), BERT's special tokens among them."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    return {
        'version': '1.0',
        'truncation': None,
        'padding': None,
        'added_tokens': added_tokens((ids[name], name) for name in SPECIAL_TOKENS),
        'normalizer': None,
        'pre_tokenizer': {'type': 'WhitespaceSplit'},
        'post_processor': pair_template(ids, {}),
        'decoder': None,
        'model': {'type': 'WordLevel', 'vocab': ids, 'unk_token': UNK},
    }


def read_symbols(path: epath.PathLike) -> SymbolTokenizer:
    """The vocabulary of a file with a symbol a line; special tokens that it lacks come first, in BERT's order.

    Raises:
      UserError: no such file, no text, a line that is no single symbol, or a symbol that comes twice.
    """
    symbols = [line.rstrip('\r') for line in read_lines(path, 'symbols', 'config.tokenizer', _FIX)]
    for number, symbol in enumerate(symbols, 1):
        if symbol.split() != [symbol]:
            raise UserError(f'{path}:{number}', repr(symbol), 'one symbol without white space', 'correct the line')
    check_pieces([*symbols, *(name for name in SPECIAL_TOKENS if name not in symbols)], str(path))
    lacking = [name for name in SPECIAL_TOKENS if name not in symbols]
    return SymbolTokenizer(symbol_settings([*lacking, *symbols]), str(path))


def train_symbols(texts: Iterable[str], *, vocab_size: int, unused: int = 0) -> SymbolTokenizer:
    """The vocabulary of the symbols of `texts`, the most frequent first, at most `vocab_size` with the special tokens.

    Args:
      texts: a stream of texts whose symbols have white space between, read once.
      vocab_size: number of pieces.
      unused: number of [unusedN] slots to reserve.

    Raises:
      UserError: no symbol.
    """
    return symbols_of(count_symbols(texts), vocab_size=vocab_size, unused=unused)


def count_symbols(texts: Iterable[str]) -> dict[str, int]:
    """How often each symbol of up to MAX_WORD characters occurs."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        symbols = text.split()
        counts.update(symbols if len(text) <= MAX_WORD else (one for one in symbols if len(one) <= MAX_WORD))
    return dict(counts)


def symbols_of(counts: Mapping[str, int], *, vocab_size: int, unused: int = 0) -> SymbolTokenizer:
    """`train_symbols` of symbols that are counted."""
    special = special_layout(unused)
    counts = {symbol: count for symbol, count in counts.items() if symbol not in special}
    if not counts:
        raise UserError('corpus', 'no symbol', 'symbols to make a vocabulary of', 'check the corpus and its format')
    kept = heapq.nsmallest(vocab_size - len(special), counts.items(), key=lambda item: (-item[1], item[0]))
    return SymbolTokenizer(symbol_settings([*special, *(symbol for symbol, _ in kept)]))
