"""The tokenizer of SentencePiece models (unigram and BPE)."""

import base64
import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import sentencepiece

from bertjax.errors import UserError
from bertjax.text.offsets import CharacterMap
from bertjax.text.sentencepiece_proto import BPE, SPACE, UNIGRAM, read_settings, unicode_normalizer, unicode_steps
from bertjax.text.special import (
    PAD,
    TOKENIZER_JSON,
    UNK,
    hash_settings,
    make_added_tokens,
    pair_template,
)
from bertjax.text.tokenizer_base import Tokenizer, flatten, is_unspaced

# The full-width tilde, which Japanese uses for ranges. NFKC replaces it with '~', but SentencePiece's rules keep it.
_WIDE_TILDE = '\uff5e'


class SentencePieceTokenizer(Tokenizer):
    """Converts text to ids with a SentencePiece model.

    All special tokens except [UNK] are control symbols, so no text is converted to their ids.

    Args:
      model: The bytes of a *.model file.
      where: The file, for messages.

    Raises:
      UserError: The bytes are not a model, or the model lacks BERT's special tokens.
    """

    family = 'sentencepiece'
    _space = SPACE

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
        self._keeps_wide_tilde = any(_WIDE_TILDE in piece for piece in pieces)
        # In ALBERT, [PAD] and [UNK] have SentencePiece's names.
        known = set(pieces)
        self._names = {t: n for t, n in ((PAD, '<pad>'), (UNK, '<unk>')) if t not in known and n in known}
        self._set_pieces(pieces, list(filter(processor.is_control, indices)))
        self.continues_word = np.array([not (p.startswith(SPACE) or is_unspaced(p)) for p in pieces], dtype=bool)
        self.continues_word[self.special_ids] = False
        self.lowercase = processor.normalize('Straight ABC') == processor.normalize('straight abc')
        self.fingerprint = hash_settings({'family': self.family, 'model': model.hex()})

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        prepared = [self._prepare(text) for text in texts]
        return flatten(self._processor.encode(prepared, return_type='numpy', num_threads=_threads()))

    def _encode_spans(self, texts: Sequence[str]) -> Iterator[tuple[Sequence[int], Iterable[tuple[int, int]]]]:
        prepared = [self._prepare(text) for text in texts]
        rows = self._processor.encode(prepared, return_type='offset_mapping', num_threads=_threads())
        for text, row in zip(texts, rows, strict=True):
            spans = row['offsets']
            if not text.isascii():
                spans = self._spread_bytes(row['ids'], self._characters.spans(text, spans))
            yield row['ids'], spans

    def _spread_bytes(self, ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Gives each byte piece the span of its character. SentencePiece gives the span only to the last byte piece."""
        spans = list(spans)
        for i in reversed(range(len(spans) - 1)):
            if spans[i][0] == spans[i][1] and all(self._processor.is_byte(int(index)) for index in ids[i : i + 2]):
                spans[i] = spans[i + 1]
        return spans

    def _prepare(self, text: str) -> str:
        if text.isascii():
            return text  # unchanged, because the charsmap of an uncased model lower-cases ASCII
        parts = text.split(_WIDE_TILDE) if self._keeps_wide_tilde else [text]
        return _WIDE_TILDE.join(map(self._unicode.normalize_str, parts))

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        special = set(self.special_ids.tolist())
        runs = itertools.groupby(map(int, ids), special.__contains__)
        parts = (
            ' '.join(map(self.pieces.__getitem__, run)) if is_special else self._processor.decode([*run])
            for is_special, run in runs
        )
        return ' '.join(' '.join(parts).split())

    def _files(self) -> dict[str, str | bytes]:
        """See Tokenizer.

        transformers computes the same ids from these files, with two exceptions. It converts the name of a special
        token in a text, such as [SEP], to this token. For BPE, overlapping merges may differ; see `_merges`.
        """
        return {'tokenizer.model': self._model, **super()._files()}

    @property
    def _settings(self) -> dict[str, Any]:
        """The content of a tokenizer.json with the same ids; see Tokenizer.

        Raises:
          UserError: The model has settings that `vocabulary.build_sentencepiece` does not make.
        """
        model = read_settings(self._model)
        if model.kind not in (UNIGRAM, BPE) or not model.usual_spaces:
            raise UserError(
                self._where,
                'a SentencePiece model with special settings (word or character model, extra spaces)',
                'a unigram or BPE model with the default treatment of spaces',
                'train one with --config.run=vocab',
            )
        unk = self._names.get(UNK, UNK)
        ids = {piece: index for index, piece in enumerate(self.pieces)}
        scores = [self._processor.get_score(index) for index in range(self.vocab_size)]
        special = self.special_ids.tolist()
        bytes_for_unknown = {'byte_fallback': model.byte_fallback}
        if model.kind == UNIGRAM:
            vocab = [[piece, score] for piece, score in zip(self.pieces, scores, strict=True)]
            model_settings = {'type': 'Unigram', 'unk_id': ids[unk], 'vocab': vocab, **bytes_for_unknown}
        else:
            model_settings = {
                'type': 'BPE', 'dropout': None, 'unk_token': unk, 'continuing_subword_prefix': None,
                'end_of_word_suffix': None, 'fuse_unk': True, 'ignore_merges': False, 'vocab': ids,
                'merges': _merges(self.pieces, scores, set(special)), **bytes_for_unknown,
            }  # fmt: skip
        steps: list[dict[str, Any]] = [{'type': name} for name in unicode_steps(model.rule)]
        if self._keeps_wide_tilde:
            steps = [_replace(_WIDE_TILDE, '\ufdd0'), *steps, _replace('\ufdd0', _WIDE_TILDE)]
        if model.charsmap:
            charsmap = base64.b64encode(model.charsmap).decode()
            steps.append({'type': 'Precompiled', 'precompiled_charsmap': charsmap})
        steps += [
            # SentencePiece strips and merges only U+0020. Its character map turns all other white space into U+0020.
            {'type': 'Replace', 'pattern': {'Regex': '^ +| +$'}, 'content': ''},
            {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '},
            # Prepend is used, because Metaspace would add no prefix to a text that starts with U+2581.
            {'type': 'Prepend', 'prepend': SPACE},
            _replace(' ', SPACE),
        ]
        space = {'replacement': SPACE, 'split': True}
        decoders: list[dict[str, Any]] = [{'type': 'Metaspace', 'prepend_scheme': 'always', **space}]
        if model.byte_fallback:
            decoders.insert(0, {'type': 'ByteFallback'})
        return {
            **TOKENIZER_JSON,
            'added_tokens': make_added_tokens((index, self.pieces[index]) for index in special),
            'normalizer': {'type': 'Sequence', 'normalizers': steps},
            'pre_tokenizer': {'type': 'Metaspace', 'prepend_scheme': 'never', **space},
            'post_processor': pair_template(ids, self._names),
            'decoder': {'type': 'Sequence', 'decoders': decoders} if len(decoders) > 1 else decoders[0],
            'model': model_settings,
        }

    def __reduce__(self):
        return SentencePieceTokenizer, (self._model, self._where)


def _threads() -> int:
    """Returns the number of threads: 1 in a worker process, -1 (one for each core) in the main process."""
    return 1 if multiprocessing.parent_process() else -1


def _replace(old: str, new: str) -> dict[str, Any]:
    return {'type': 'Replace', 'pattern': {'String': old}, 'content': new}


def _merges(pieces: Sequence[str], scores: Sequence[float], special: set[int]) -> list[list[str]]:
    """Returns the merges of a BPE model, by descending priority.

    SentencePiece has no list of merges. Each of its steps joins the two neighbors that form the piece with the highest
    score. So every way to cut a piece into two pieces is a merge. The result differs from SentencePiece's only where
    merges for the same piece overlap in a text, as in `ababa`. SentencePiece applies the left merge first, but a
    tokenizer.json applies the merge with the longer left half first, because this merge is earlier in the list.
    """
    ordinary = {piece for index, piece in enumerate(pieces) if index not in special}
    order = sorted((-scores[index], index) for index, piece in enumerate(pieces) if piece in ordinary)
    return [
        [piece[:cut], piece[cut:]]
        for piece in (pieces[index] for _, index in order)
        for cut in range(len(piece) - 1, 0, -1)
        if piece[:cut] in ordinary and piece[cut:] in ordinary
    ]
