"""The base class of all tokenizers."""

import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from etils import epath

from bertjax.files.atomic import write_atomic
from bertjax.text.offsets import PieceOffsets, repair_surrogates, trim_spans
from bertjax.text.special import (
    CLS,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    UNK,
    adds_special_tokens,
    check_pieces,
    check_texts,
    count_separators,
    is_unused,
    pair_template,
    piece_ids,
    processor_steps,
    replace_surrogates,
    sort_pieces,
    to_json,
    wrap_tokenizer_errors,
)

# Ranges of the scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, Han, and full-width forms.
UNSPACED = (
    '\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef'
    '\U00020000-\U000323af'
)
_UNSPACED = re.compile(f'[{UNSPACED}]')
_AT_ONCE = 1024  # the maximum number of texts in one call; an Encoding of `tokenizers` uses about 200 bytes per piece


def is_unspaced(text: str) -> bool:
    """Returns whether a text begins with a character of a script without spaces.

    A SentencePiece or byte-level piece that begins with such a character counts as the start of a word. Source:
    google-research/albert, create_pretraining_data.py.
    """
    return _UNSPACED.match(text) is not None


def flatten(ids: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of all texts in one array (int32), and the number of ids of each text (int64)."""
    return np.concatenate([*ids, np.empty(0, np.int32)]), np.fromiter(map(len, ids), np.int64, len(ids))


class Tokenizer:
    """The base class of all tokenizers. It encodes with the library `tokenizers`, which loads `settings` at first use.

    Args:
      settings: The parsed content of a `tokenizer.json`.
      where: The file, for messages.
      names: {BERT's name of a special token: a different name in the vocabulary}.
      kind: The type of the model, for messages.

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

    Raises:
      UserError: The ids are damaged, or BERT's special tokens are missing.
    """

    family: str
    lowercase = False
    separators = 1
    word_prefix = ''
    continues_word: np.ndarray
    fingerprint: str
    _space = ' '  # a character of texts that the tokenizer reads as a space: U+2581 in SentencePiece

    def __init__(self, settings: Mapping[str, Any], where: str, names: Mapping[str, str] | None = None, kind: str = ''):
        # Truncation and padding are removed, because callers truncate and pad the ids.
        self._settings = {**settings, 'truncation': None, 'padding': None}
        self._where, self._names = where, dict(names or {})
        ids, added = piece_ids(settings), settings.get('added_tokens') or []
        special = [ids[token['content']] for token in added if token.get('special')]
        self._set_pieces(sort_pieces(ids, where), special, kind)
        self.separators = count_separators(settings.get('post_processor'))

    def _set_pieces(self, pieces: list[str], other_special: Sequence[int] = (), kind: str = '') -> None:
        """Sets `pieces`, `vocab_size`, `special_ids` and the ids of BERT's five special tokens.

        `other_special` are the ids of further special tokens. For `kind` and the errors, see `special.check_pieces`.
        """
        ids = check_pieces(pieces, self._where, self._names, kind)
        unused = (index for index, piece in enumerate(pieces) if is_unused(piece))
        self.pieces, self.vocab_size = pieces, len(pieces)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[token] for token in SPECIAL_TOKENS)
        self.special_ids = np.array(sorted({*ids.values(), *unused, *other_special}), dtype=np.int32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Returns the ids of the N pieces of each text, int32 [N], without [CLS] and [SEP].

        Raises:
          UserError: `texts` is a single text. This holds for all methods that encode texts.
        """
        ids, lengths = self.encode_flat(texts)
        return [ids[start:end] for start, end in itertools.pairwise(itertools.accumulate(lengths.tolist(), initial=0))]

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of all texts in one array (int32), and the number of ids of each text (int64)."""
        check_texts(texts)
        try:
            return self._encode(list(texts))
        except (UnicodeEncodeError, TypeError):  # raised for a lone surrogate
            return self._encode(list(map(replace_surrogates, texts)))

    @property
    def without_prefix_space(self) -> 'Tokenizer':
        """The tokenizer that differs only by adding no space before a text; this one if it adds none."""
        return self

    def encode_with_offsets(self, texts: Sequence[str]) -> list[PieceOffsets]:
        """Returns the ids of `encode`, and the span of each piece: `text[start:end]` is the text of the piece.

        This method is slower than `encode`. A span excludes the space before the piece, and includes combining marks
        that normalization removed. A piece that is only a space has an empty span. If one character became several
        pieces, these pieces have the same span.

        Returns:
          (ids, starts, ends) of the N pieces of each text, int32 [N] each. Starts and ends are ascending.
        """
        check_texts(texts)
        located: list[PieceOffsets] = []
        for begin in range(0, len(texts), _AT_ONCE):
            chunk = texts[begin : begin + _AT_ONCE]
            repaired, positions = zip(*map(repair_surrogates, chunk), strict=True)
            for text, (ids, spans), indices in zip(chunk, self._encode_spans(repaired), positions, strict=True):
                located.append(trim_spans(text, ids, spans, indices, self._space))
        return located

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the result of `encode_flat` for texts without surrogates."""
        encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return flatten([np.array(encoding.ids, np.int32) for encoding in encodings])

    def _encode_spans(self, texts: Sequence[str]) -> Iterable[tuple[Sequence[int], Iterable[tuple[int, int]]]]:
        """Returns (ids, spans) of the pieces of each text, for `trim_spans`. The texts have no surrogates."""
        encodings = self._library.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    @functools.cached_property
    def _library(self) -> tokenizers.Tokenizer:
        """The tokenizer of `tokenizers`, without post-processor and dropout. Invalid settings raise a UserError."""
        settings, model = self._settings, self._settings['model']
        if model.get('dropout'):  # would make ids random
            settings = {**settings, 'model': {**model, 'dropout': None}}
        with wrap_tokenizer_errors(self._where):
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(settings, ensure_ascii=False))
        # Callers add the special tokens. The post-processor of byte-level BPE would shift offsets.
        tokenizer.post_processor = None
        return tokenizer

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Returns readable text, including special tokens."""
        return self._library.decode([int(index) for index in ids], skip_special_tokens=False)

    def piece_text(self, piece: str) -> str:
        """Returns a piece as readable text. A byte-level BPE piece is decoded, because its characters represent bytes.

        A piece without text, with an invisible character, or with a part of a character is returned as it is.
        """
        decoder = self._library.decoder if self.family == 'bpe' else None
        text = decoder.decode([piece]).strip() if decoder else ''
        return text if text and text.isprintable() and '\ufffd' not in text else piece

    def save(self, directory: epath.PathLike) -> list[str]:
        """Writes a directory that `load_tokenizer` and transformers' AutoTokenizer load. The bytes are reproducible.

        Returns the names of the files.
        """
        files = self._files()
        for name, content in files.items():
            write_atomic(epath.Path(directory) / name, content)
        return [*files]

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
        config: dict[str, Any] = {f'{key}_token': self._names.get(token, token) for key, token in keys.items()}
        special = (token['content'] for token in self._settings.get('added_tokens') or [] if token.get('special'))
        others = [token for token in special if token not in config.values() and not is_unused(token)]
        if others:  # transformers 4 expects another type for `extra_special_tokens`, the new name of this key
            config['additional_special_tokens'] = others
        inputs = ['input_ids', 'token_type_ids', 'attention_mask']
        settings = settings or {'tokenizer_class': 'PreTrainedTokenizerFast', 'do_lower_case': self.lowercase}
        return {**config, 'model_input_names': inputs, 'model_max_length': 512, **settings}

    def __reduce__(self):
        return type(self), (self._settings, self._where, self._names)
