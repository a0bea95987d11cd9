"""The tokenizer of SentencePiece models (unigram and BPE)."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece
from etils import epath

from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.text.flat import flatten
from bertjax.text.offsets import CharacterMap, PieceOffsets, repair_surrogates, trim_spans
from bertjax.text.sentencepiece_proto import SPACE, read_settings, unicode_normalizer
from bertjax.text.special import (
    PAD,
    SPECIAL_TOKENS,
    UNK,
    check_pieces,
    find_special_ids,
    hash_settings,
    replace_surrogates,
    to_json,
    tokenizer_config,
)
from bertjax.text.tokenizer_json import sentencepiece_settings


class SentencePieceTokenizer:
    """Converts text to ids with a SentencePiece model. Its special tokens are control symbols, which no text produces.

    Args:
      model: The bytes of a *.model file.
      where: The file, for messages.

    Attributes: See `bertjax.text.tokenizer.Tokenizer`.

    Raises:
      UserError: The bytes are not a model, or the model lacks BERT's special tokens.
    """

    family = 'sentencepiece'
    separators = 1
    word_prefix = ''

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
        self.vocab_size = processor.get_piece_size()
        self.pieces = [processor.id_to_piece(index) for index in range(self.vocab_size)]
        # In ALBERT, the first two special tokens have SentencePiece's names.
        known = set(self.pieces)
        self._names = {t: n for t, n in ((PAD, '<pad>'), (UNK, '<unk>')) if t not in known and n in known}
        ids = check_pieces(self.pieces, where, self._names)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        controls = [index for index in range(self.vocab_size) if processor.is_control(index)]
        self.special_ids = find_special_ids(self.pieces, ids, controls)
        self.continues_word = np.array([not piece.startswith(SPACE) for piece in self.pieces], dtype=bool)
        self.continues_word[self.special_ids] = False
        self.lowercase = processor.normalize('Straight ABC') == processor.normalize('straight abc')
        self.fingerprint = hash_settings({'family': self.family, 'model': model.hex()})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See Tokenizer."""
        return self._processor.encode(
            [self._prepare(text) for text in texts], return_type='numpy', num_threads=_threads()
        )

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See Tokenizer."""
        return flatten(self.encode(texts))

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

    def save(self, directory: epath.PathLike) -> None:
        """Writes tokenizer.model, and tokenizer.json with tokenizer_config.json for transformers' AutoTokenizer.

        transformers computes the same ids as this class, except where a text contains the name of a special token, such
        as [SEP]: transformers converts the name to the special token.
        """
        directory = epath.Path(directory)
        config = tokenizer_config(self._names, tokenizer_class='PreTrainedTokenizerFast', do_lower_case=self.lowercase)
        write_atomic(directory / 'tokenizer.model', self._model)
        write_atomic(directory / 'tokenizer.json', to_json(self._tokenizer_json()))
        write_atomic(directory / 'tokenizer_config.json', to_json(config))

    def _tokenizer_json(self) -> dict[str, Any]:
        processor = self._processor
        scores = [processor.get_score(index) for index in range(self.vocab_size)]
        special = self.special_ids.tolist()
        return sentencepiece_settings(self._model, self.pieces, scores, special, self._names, self._where)

    def __reduce__(self):
        return SentencePieceTokenizer, (self._model, self._where)


def _threads() -> int:
    """Returns the number of threads: 1 in a worker process; -1, which means one for each core, in the main process."""
    return 1 if multiprocessing.parent_process() else -1
