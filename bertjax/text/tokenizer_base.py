"""The base class of all tokenizers."""

import abc
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath

from bertjax.files.atomic import write_atomic
from bertjax.text.offsets import PieceOffsets
from bertjax.text.special import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    adds_special_tokens,
    check_pieces,
    is_unused,
    pair_template,
    processor_steps,
    to_json,
)

# Ranges of the scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, and full-width forms.
UNSPACED = (
    '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef'
    '\U00020000-\U000323af'
)
_UNSPACED = re.compile(f'[{UNSPACED}]')


def is_unspaced(text: str) -> bool:
    """Returns whether a text begins with a character of a script without spaces.

    A SentencePiece or byte-level piece that begins with such a character counts as the start of a word. Source:
    google-research/albert, create_pretraining_data.py.
    """
    return _UNSPACED.match(text) is not None


def flatten(ids: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all texts in one array (int32), and the number of ids of each text (int64)."""
    return np.concatenate([*ids, np.empty(0, np.int32)]), np.fromiter(map(len, ids), np.int64, len(ids))


class Tokenizer(abc.ABC):
    """The interface of all tokenizers.

    Args:
      settings: The parsed content of a `tokenizer.json`.
      where: The file, for messages.
      names: {BERT's name of a special token: a different name in the vocabulary}.

    Attributes:
      family: The kind of tokenizer: 'wordpiece', 'sentencepiece', 'bpe' (byte-level, or without marks at the start of
        words) or 'symbols'.
      lowercase: Whether text is lower-cased first.
      vocab_size: V, the number of pieces.
      pieces: The V pieces, index = id.
      pad_id, unk_id, cls_id, sep_id, mask_id: The ids of the special tokens.
      separators: The number of [SEP] between the texts of a pair: 1, or 2 as in RoBERTa.
      word_prefix: ' ' if an isolated word needs a space before it to have the same pieces as inside a text; else ''.
        Byte-level BPE needs the space, and so do tokenizers that keep spaces but add none before a text (Gemma's).
      special_ids: The ids of special tokens, [unusedN] pieces and control symbols, int32, sorted. Masking never draws
        them as a random replacement.
      continues_word: bool [V], whether a piece continues the word of the piece before it.
      fingerprint: The sha256 (hex) of all settings that determine ids.
    """

    family: str
    lowercase = False
    separators = 1
    word_prefix = ''
    continues_word: np.ndarray
    fingerprint: str

    def __init__(
        self, settings: Mapping[str, Any], where: str = 'tokenizer.json', names: Mapping[str, str] | None = None
    ):
        # Truncation and padding are removed, because callers truncate and pad the ids.
        self._settings = {**settings, 'truncation': None, 'padding': None}
        self._where, self._names = where, dict(names or {})

    def _set_pieces(self, pieces: list[str], other_special: Sequence[int] = (), kind: str = '') -> None:
        """Sets `pieces`, `vocab_size`, `special_ids` and the ids of BERT's five special tokens.

        `other_special` are the ids of further special tokens. For `kind` and the errors, see `special.check_pieces`.
        """
        ids = check_pieces(pieces, self._where, self._names, kind)
        unused = (index for index, piece in enumerate(pieces) if is_unused(piece))
        self.pieces, self.vocab_size = pieces, len(pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        self.special_ids = np.array(sorted({*ids.values(), *unused, *other_special}), dtype=np.int32)

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of the N pieces of each text, int32 [N], without [CLS] and [SEP].

        Raises:
          UserError: `texts` is a single text. This holds for all methods that encode texts.
        """

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all texts in one array (int32), and the number of ids of each text (int64)."""
        return flatten(self.encode(texts))

    @abc.abstractmethod
    def encode_with_offsets(self, texts: Sequence[str]) -> list[PieceOffsets]:
        """Returns the ids of `encode`, and the span of each piece: `text[start:end]` is the text of the piece.

        This method is slower than `encode`. A span excludes the space before the piece, and includes combining marks
        that normalization removed. A piece that is only a space has an empty span. If one character became several
        pieces, these pieces have the same span.

        Returns:
          (ids, starts, ends) of the N pieces of each text, int32 [N] each. Starts and ends are ascending.
        """

    @abc.abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns readable text, including special tokens."""

    def save(self, directory: epath.PathLike) -> None:
        """Writes a directory that `load_tokenizer` and transformers' AutoTokenizer load. The bytes are reproducible."""
        for name, content in self._files().items():
            write_atomic(epath.Path(directory) / name, content)

    def _files(self) -> dict[str, str | bytes]:
        """Returns the content of each file that `save` writes."""
        settings = self._settings
        processor, (cls, sep) = settings.get('post_processor'), (self.pieces[i] for i in (self.cls_id, self.sep_id))
        if not adds_special_tokens(processor, cls, sep):
            others = [step for step in processor_steps(processor) if step.get('type') != 'TemplateProcessing']
            steps = [*others, self.pair_template()]
            settings = {**settings, 'post_processor': {'type': 'Sequence', 'processors': steps} if others else steps[0]}
        return {'tokenizer.json': to_json(settings), 'tokenizer_config.json': to_json(self._config())}

    def pair_template(self) -> dict[str, Any]:
        """Returns the `post_processor` of a tokenizer.json that adds [CLS] and [SEP] to a text or a pair of texts."""
        ids = {self.pieces[i]: i for i in (self.cls_id, self.sep_id)}
        return pair_template(ids, dict(zip((CLS, SEP), ids, strict=True)), self.separators)

    def _config(self, **settings: Any) -> dict[str, Any]:
        """Returns a tokenizer_config.json with the special tokens, BERT's inputs and `settings`."""
        keys = {'pad': PAD, 'unk': UNK, 'cls': CLS, 'sep': SEP, 'mask': MASK}
        config = {f'{key}_token': self._names.get(token, token) for key, token in keys.items()}
        inputs = ['input_ids', 'token_type_ids', 'attention_mask']
        settings = settings or {'tokenizer_class': 'PreTrainedTokenizerFast', 'do_lower_case': self.lowercase}
        return {**config, 'model_input_names': inputs, 'model_max_length': 512, **settings}

    def __reduce__(self):
        return type(self), (self._settings, self._where, self._names)
