"""WordPiece, BERT's tokenizer. It uses `nanotoken` if possible, else the slower `tokenizers`."""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from bertjax.errors import UserError
from bertjax.progress import format_duration
from bertjax.text.bert_settings import PREFIX, canonical_id_settings, is_bert, lowercases
from bertjax.text.special import CLS, SEP, UNK, hash_settings, piece_ids
from bertjax.text.tokenizer_base import Tokenizer

try:
    import nanotoken  # the extra `fast`
except ImportError:
    nanotoken = None

# The speed of one core without and with `nanotoken`, in bytes of English text per second. For _FAST, see
# docs/performance.md.
_SLOW, _FAST = 1.3e6, 17e6
_MUCH_TEXT = 50e6  # in bytes; `describe_fast_saving` returns '' for smaller texts
INSTALL_FAST = "pip install 'bertjax[fast]'"


class WordPieceTokenizer(Tokenizer):
    """Converts text to ids. Each word is split by greedy longest match, as in BERT.

    The ids equal the ids of transformers' fast tokenizers, so the name of a special token in a text, such as '[MASK]',
    becomes this token. For the arguments, see `Tokenizer`; `bert_settings.py` can make the settings.

    Attributes:
      added_ids: The ids of the added tokens in `settings`.
      is_bert: Whether Hugging Face's BertTokenizer can make these settings from a vocabulary and options.
      strip_accents: See `bert_settings`.

    Raises:
      UserError: The ids are damaged, BERT's special tokens are missing, or no library can load the settings. Without
        nanotoken, the last of these errors is raised at the first use.
    """

    family = 'wordpiece'

    def __init__(self, settings: Mapping[str, Any], where: str = 'tokenizer', names: Mapping[str, str] | None = None):
        super().__init__(settings, where, names)
        ids, added = piece_ids(settings), settings.get('added_tokens') or []
        for token in added:  # nanotoken uses token['id'], but `tokenizers` the id in the vocabulary
            if token['id'] != ids[token['content']]:
                found = f'the ids {ids[token["content"]]} and {token["id"]} for {token["content"]!r}'
                raise UserError(where, found, 'one id for each piece', 'use the original file')
        self.added_ids = frozenset(token['id'] for token in added)
        self.is_bert = is_bert(settings)
        prefix = settings['model'].get('continuing_subword_prefix', PREFIX)
        self.continues_word = np.array([p.startswith(prefix) and len(p) > len(prefix) for p in self.pieces], dtype=bool)
        self.lowercase = lowercases(settings.get('normalizer'))
        self.strip_accents = (settings.get('normalizer') or {}).get('strip_accents')
        self.fingerprint = hash_settings({'family': self.family, **canonical_id_settings(settings)})
        self._fast = self._load_fast()

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if self._fast is None:
            return super()._encode(texts)
        rows = self._fast.encode_batch(texts, add_special_tokens=False)
        return rows.ids.astype(np.int32), np.diff(rows.offsets).astype(np.int64)

    def _load_fast(self) -> Any:
        """Returns nanotoken's tokenizer; None if the package is missing or (with a warning) rejects the settings."""
        if nanotoken is None:
            return None
        try:
            return nanotoken.Tokenizer.from_json(json.dumps(self._settings, ensure_ascii=False))
        except (nanotoken.UnsupportedTokenizerError, ValueError) as error:
            self._library.get_vocab_size()  # raises if `tokenizers` cannot load the settings either
            text = '%s: using the slower `tokenizers`, because nanotoken does not support this file: %s'
            logging.getLogger(__name__).warning(text, self._where, error)
            return None

    def normalize(self, text: str) -> str:
        """Returns the normalized text. `is_bert` must be True."""
        options = {name: value for name, value in self._settings['normalizer'].items() if name != 'type'}
        return tokenizers.normalizers.BertNormalizer(**options).normalize_str(text)

    @property
    def is_google(self) -> bool:
        """Whether google-research/bert, with --do_lower_case=`lowercase`, gives ordinary text the same ids."""
        same_accents = self.strip_accents in (None, self.lowercase)
        splits_chinese = (self._settings.get('normalizer') or {}).get('handle_chinese_chars', True)
        names = [self.pieces[i] for i in (self.unk_id, self.cls_id, self.sep_id)]
        return self.is_bert and same_accents and splits_chinese and names == [UNK, CLS, SEP]

    def with_pieces(self, pieces: Sequence[str]) -> 'WordPieceTokenizer':
        """Returns this tokenizer with other pieces. The added tokens must keep their ids."""
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        settings = {**self._settings, 'model': {**self._settings['model'], 'vocab': vocabulary}}
        return WordPieceTokenizer(settings, self._where, self._names)

    def _files(self) -> dict[str, str | bytes]:
        return {'vocab.txt': ''.join(f'{piece}\n' for piece in self.pieces), **super()._files()}

    def _config(self) -> dict[str, Any]:
        # BertTokenizer rebuilds all settings from vocab.txt and this file, which is possible only if `is_bert`.
        options: dict[str, Any] = {'tokenizer_class': 'BertTokenizer' if self.is_bert else 'PreTrainedTokenizerFast'}
        normalizer = self._settings.get('normalizer') or {}
        # If the normalizer is a Sequence, these options would change the BertNormalizer inside it at the next load.
        if normalizer.get('type') == 'BertNormalizer':
            options['do_lower_case'], options['strip_accents'] = self.lowercase, self.strip_accents
            options['tokenize_chinese_chars'] = normalizer.get('handle_chinese_chars', True)
        return super()._config(**options)


def describe_fast_saving(size: float) -> str:
    """Compares the times of encoding `size` bytes with and without the extra `fast`; '' if it would save little."""
    if nanotoken is not None or size <= _MUCH_TEXT:
        return ''
    slow_time, fast_time = format_duration(size / _SLOW), format_duration(size / _FAST)
    return f'the extra `fast` would encode this text in about {fast_time} of processor time instead of {slow_time}'
