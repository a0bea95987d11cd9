"""SentencePiece models (unigram and BPE) as BERT tokenizers, and their twin in Hugging Face's tokenizer.json."""

import multiprocessing
from collections.abc import Sequence
from typing import Any

import numpy as np
import sentencepiece
from etils import epath

from bertjax.errors import UserError
from bertjax.files import write_atomic
from bertjax.text.modelfile import read_settings, unicode_normalizer
from bertjax.text.offsets import CharacterMap, Located, mend, place
from bertjax.text.special import (
    PAD,
    SPECIAL_TOKENS,
    UNK,
    check_pieces,
    fingerprint_of,
    special_ids_of,
    to_json,
    tokenizer_config,
    well_formed,
)
from bertjax.text.twin import twin_settings

SPACE = '▁'


class SentencePieceTokenizer:
    """Text to ids by a SentencePiece model whose special tokens are control symbols: no text can produce them.

    Args:
      model: the bytes of a *.model file.
      where: where they came from, for messages.

    Attributes: see `bertjax.text.tokenizer.Tokenizer`.

    Raises:
      UserError: when the bytes are no model, or one without the special tokens of BERT.
    """

    family = 'sentencepiece'

    def __init__(self, model: bytes, where: str = 'tokenizer.model'):
        self._model, self._where = model, where
        try:
            self._processor = processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError, ValueError) as error:
            raise UserError(
                where, 'bytes that SentencePiece cannot read', 'a SentencePiece model',
                'the file is damaged or of another kind: take the original, or train one with --config.run=vocab',
            ) from error  # fmt: skip
        self._unicode = unicode_normalizer(read_settings(model).rule)
        self._characters = CharacterMap(self._unicode)
        self.vocab_size = processor.get_piece_size()
        self.pieces = [processor.id_to_piece(index) for index in range(self.vocab_size)]
        # ALBERT calls the first two by SentencePiece's own names.
        known = set(self.pieces)
        self._names = {t: n for t, n in ((PAD, '<pad>'), (UNK, '<unk>')) if t not in known and n in known}
        ids = check_pieces(self.pieces, where, self._names)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        controls = [index for index in range(self.vocab_size) if processor.is_control(index)]
        self.special_ids = special_ids_of(self.pieces, ids, controls)
        self.continues_word = np.array([not piece.startswith(SPACE) for piece in self.pieces], dtype=bool)
        self.continues_word[self.special_ids] = False
        self.lowercase = processor.normalize('Straight ABC') == processor.normalize('straight abc')
        self.fingerprint = fingerprint_of({'family': self.family, 'model': model.hex()})

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text (int32, one array a text), without [CLS] or [SEP] around them."""
        return self._processor.encode(
            [self._prepare(text) for text in texts], return_type='numpy', num_threads=_threads()
        )

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Located]:
        """The ids that `encode` gives, and where each piece begins and ends: see the protocol."""
        prepared = [self._prepare(text) for text in texts]
        rows = self._processor.encode(prepared, return_type='offset_mapping', num_threads=_threads())
        located = []
        for text, row in zip(texts, rows, strict=True):
            spans, positions = row['offsets'], None
            if not text.isascii():
                whole, positions = mend(text)
                spans = self._characters.spans(whole, spans)
            located.append(place(text, row['ids'], spans, positions))
        return located

    def _prepare(self, text: str) -> str:
        if text.isascii():
            return text  # the model's own map lower-cases it
        try:
            return self._unicode.normalize_str(text)
        except UnicodeEncodeError:
            return self._unicode.normalize_str(well_formed(text))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Text for reading, special tokens kept."""
        special = set(self.special_ids.tolist())
        parts = (f' {self.pieces[i]} ' if i in special else self.pieces[i] for i in map(int, ids))
        return ' '.join(''.join(parts).replace(SPACE, ' ').split())

    def save(self, directory: epath.PathLike) -> None:
        """Writes tokenizer.model, and for transformers' AutoTokenizer tokenizer.json and tokenizer_config.json.

        Their ids are equal but for the letters of a special token in a text, which transformers turns into the token.
        """
        directory = epath.Path(directory)
        config = tokenizer_config(self._names, tokenizer_class='PreTrainedTokenizerFast', do_lower_case=self.lowercase)
        write_atomic(directory / 'tokenizer.model', self._model)
        write_atomic(directory / 'tokenizer.json', to_json(self._twin()))
        write_atomic(directory / 'tokenizer_config.json', to_json(config))

    def _twin(self) -> dict[str, Any]:
        processor = self._processor
        scores = [processor.get_score(index) for index in range(self.vocab_size)]
        return twin_settings(self._model, self.pieces, scores, self.special_ids.tolist(), self._names, self._where)

    def __reduce__(self):
        return SentencePieceTokenizer, (self._model, self._where)


def _threads() -> int:
    """A worker process has one core to itself; the main process has them all."""
    return 1 if multiprocessing.parent_process() else -1
