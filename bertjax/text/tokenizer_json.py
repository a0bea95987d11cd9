"""The tokenizer of a tokenizer.json with a unigram or BPE model."""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import tokenizers

from bertjax.errors import UserError
from bertjax.text.offsets import PieceOffsets, encode_batch, locate
from bertjax.text.sentencepiece_proto import SPACE
from bertjax.text.special import CLS, MASK, PAD, SEP, UNK, check_ids, count_separators, hash_settings, sort_pieces
from bertjax.text.tokenizer_base import Tokenizer

# The names of BERT's special tokens in RoBERTa and models based on it.
ROBERTA_NAMES = MappingProxyType({PAD: '<pad>', UNK: '<unk>', CLS: '<s>', SEP: '</s>', MASK: '<mask>'})
_BYTE_SPACE = 'Ġ'  # the character for a space in byte-level BPE


class JsonTokenizer(Tokenizer):
    """Converts text to ids with a tokenizer.json that has a unigram or BPE model.

    SentencePiece and similar models (XLM-RoBERTa's, Gemma's) mark the start of a word with U+2581. Byte-level BPE
    (RoBERTa's, ModernBERT's) marks it with Ġ. Other models may mark the pieces that continue a word with a prefix.
    Without any of these marks, each piece counts as a word. `tokenizers` loads the file unchanged. The ids equal those
    of transformers, so the name of a special token in a text becomes the token. A vocabulary that can spell any text
    may lack an unknown token. In this case, [MASK] also serves as the unknown token.

    Args:
      settings: The parsed tokenizer.json.
      where: The file, for messages.
      names: The vocabulary's names of special tokens that differ from BERT's. RoBERTa's names are recognised if BERT's
        are absent.

    Raises:
      UserError: The model is of another type, or lacks BERT's special tokens.
    """

    def __init__(
        self, settings: Mapping[str, Any], where: str = 'tokenizer.json', names: Mapping[str, str] | None = None
    ):
        self._settings = settings = {**settings, 'truncation': None, 'padding': None}
        self._where, self._names = where, dict(names or {})
        model = settings['model']
        kind = model.get('type', 'BPE')
        steps = json.dumps([settings.get(step) for step in ('normalizer', 'pre_tokenizer')], ensure_ascii=False)
        byte_level, marks_words = '"ByteLevel"' in steps, SPACE in steps
        if kind not in ('Unigram', 'BPE'):
            raise UserError(
                where, f'a model of the type {kind!r}', 'WordPiece, WordLevel, Unigram or BPE',
                'use the tokenizer of a BERT model, or train one with --config.run=vocab',
            )  # fmt: skip
        is_bpe = byte_level or (kind == 'BPE' and not marks_words)
        self.family, self._space = ('bpe', _BYTE_SPACE) if is_bpe else ('sentencepiece', SPACE)
        check_ids(settings, where)
        self._tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings))
        # Callers add the special tokens. The post-processor of byte-level BPE would shift offsets.
        self._tokenizer.post_processor = None
        ids_of = self._tokenizer.get_vocab(with_added_tokens=True)
        pieces = sort_pieces(ids_of, where)
        if CLS not in ids_of and ids_of.keys() >= set(ROBERTA_NAMES.values()):
            self._names = {**ROBERTA_NAMES, **self._names}
        mask = self._names.get(MASK, MASK)
        has_unk = UNK in self._names.keys() | ids_of or model.get('unk_token') or model.get('unk_id') is not None
        if mask in ids_of and not has_unk:
            self._names[UNK] = mask
        added = [ids_of[token['content']] for token in settings.get('added_tokens') or [] if token.get('special')]
        self._set_pieces(pieces, added, kind)
        if byte_level or marks_words:
            # Runs of spaces and line ends are added tokens in ModernBERT and Gemma.
            begins = (self._space, ' ', '\n', '\t')
            continues = [not piece.startswith(begins) for piece in pieces]
            self.word_prefix = '' if self.family == 'sentencepiece' and self._prepare('a').startswith(SPACE) else ' '
        else:
            prefix = model.get('continuing_subword_prefix')
            continues = [bool(prefix) and piece.startswith(prefix) for piece in pieces]
            self.word_prefix = ' ' if ' ' in self._prepare('a a') else ''
        self.continues_word = np.array(continues, dtype=bool)
        self.continues_word[self.special_ids] = False
        self.separators = count_separators(settings.get('post_processor'))
        normalizer = self._tokenizer.normalizer
        self.lowercase = normalizer is not None and normalizer.normalize_str('ABC') == normalizer.normalize_str('abc')
        parts = ('added_tokens', 'normalizer', 'pre_tokenizer', 'model')
        self.fingerprint = hash_settings({'family': self.family, **{part: settings.get(part) for part in parts}})

    def _prepare(self, word: str) -> str:
        """Returns the word after normalisation and pre-tokenisation."""
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        text = word if normalizer is None else normalizer.normalize_str(word)
        return text if splitter is None else ''.join(part for part, _ in splitter.pre_tokenize_str(text))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return encode_batch(self._tokenizer, texts)

    def encode_with_offsets(self, texts: Sequence[str]) -> list[PieceOffsets]:
        # `tokenizers` puts a space before the text, and reports the offsets of the first character for this space.
        space = self._tokenizer.token_to_id(self._space)
        located = locate(self._tokenizer, texts, SPACE if self.family == 'sentencepiece' else ' ')
        return [(ids, starts, np.where(ids == space, starts, ends)) for ids, starts, ends in located]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=False)

    def _config(self) -> dict[str, Any]:
        config = super()._config()
        if self.unk_id == self.mask_id:
            del config['unk_token']
        return config
