"""The tokenizer of SentencePiece models (unigram and BPE)."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece

from bertjax.errors import UserError
from bertjax.text.offsets import CharacterMap, PieceOffsets, repair_surrogates, trim_spans
from bertjax.text.sentencepiece_proto import SPACE, read_settings, unicode_normalizer
from bertjax.text.special import PAD, UNK, hash_settings, replace_surrogates
from bertjax.text.tokenizer_base import Tokenizer
from bertjax.text.tokenizer_json import sentencepiece_settings


class SentencePieceTokenizer(Tokenizer):
    """Converts text to ids with a SentencePiece model. Its special tokens are control symbols, which no text produces.

    Args:
      model: The bytes of a *.model file.
      where: The file, for messages.

    Raises:
      UserError: The bytes are not a model, or the model lacks BERT's special tokens.
    """

    family = 'sentencepiece'

    def __init__(self, model: bytes, where: str = 'tokenizer.model'):
        self._model, self._where = model, where
        try:
            self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(
                where, 'bytes that SentencePiece cannot read', 'a SentencePiece model',
                'use the original file, or train a vocabulary with --config.run=vocab',
            ) from error  # fmt: skip
        self._unicode = unicode_normalizer(read_settings(model).rule)
        self._characters = CharacterMap(self._unicode)
        indices = range(processor.get_piece_size())
        pieces = [processor.id_to_piece(index) for index in indices]
        # In ALBERT, the first two special tokens have SentencePiece's names.
        known = set(pieces)
        self._names = {t: n for t, n in ((PAD, '<pad>'), (UNK, '<unk>')) if t not in known and n in known}
        self._set_pieces(pieces, list(filter(processor.is_control, indices)))
        self.continues_word = np.array([not piece.startswith(SPACE) for piece in pieces], dtype=bool)
        self.continues_word[self.special_ids] = False
        self.lowercase = processor.normalize('Straight ABC') == processor.normalize('straight abc')
        self.fingerprint = hash_settings({'family': self.family, 'model': model.hex()})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See Tokenizer."""
        return self._processor.encode(
            [self._prepare(text) for text in texts], return_type='numpy', num_threads=_threads()
        )

    def encode_with_offsets(self, texts: Sequence[str]) -> list[PieceOffsets]:
        """See Tokenizer."""
        prepared = [self._prepare(text) for text in texts]
        rows = self._processor.encode(prepared, return_type='offset_mapping', num_threads=_threads())
        located = []
        for text, row in zip(texts, rows, strict=True):
            spans, positions = row['offsets'], None
            if not text.isascii():
                repaired, positions = repair_surrogates(text)
                spans = self._characters.spans(repaired, spans)
            located.append(trim_spans(text, row['ids'], spans, positions, SPACE))
        return located

    def _prepare(self, text: str) -> str:
        if text.isascii():
            return text  # SentencePiece lower-cases ASCII with the model's charsmap
        try:
            return self._unicode.normalize_str(text)
        except UnicodeEncodeError:
            return self._unicode.normalize_str(replace_surrogates(text))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """See Tokenizer."""
        special = set(self.special_ids.tolist())
        parts = (f' {self.pieces[i]} ' if i in special else self.pieces[i] for i in map(int, ids))
        return ' '.join(''.join(parts).replace(SPACE, ' ').split())

    def _files(self) -> dict[str, str | bytes]:
        """See Tokenizer.

        transformers computes the same ids as this class, except where a text contains the name of a special token, such
        as [SEP]: transformers converts the name to the special token.
        """
        return {'tokenizer.model': self._model, **super()._files()}

    @property
    def _settings(self) -> dict[str, Any]:
        scores = [self._processor.get_score(index) for index in range(self.vocab_size)]
        special = self.special_ids.tolist()
        return sentencepiece_settings(self._model, self.pieces, scores, special, self._names, self._where)

    def __reduce__(self):
        return SentencePieceTokenizer, (self._model, self._where)


def _threads() -> int:
    """Returns the number of threads: 1 in a worker process, and -1 (one for each core) in the main process."""
    return 1 if multiprocessing.parent_process() else -1
