"""The protocol buffer of a SentencePiece *.model file: settings that the library does not expose, and scores."""

import dataclasses
import struct
from collections.abc import Iterator
from typing import Any

from tokenizers import normalizers

SPACE = '▁'  # U+2581, which stands for a space in pieces.
UNIGRAM, BPE = 1, 2
# Field numbers of sentencepiece_model.proto: ModelProto, SentencePiece, TrainerSpec, NormalizerSpec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_SCORE = 2
_MODEL_TYPE, _BYTE_FALLBACK = 3, 35
_RULE, _CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 2, 3, 4, 5
# Scores are rounded to multiples of 1/256 nat: sums up to 65,536 are then exact in float32 (24 bits).
_STEPS = 256


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of a SentencePiece model.

    Attributes:
      kind: UNIGRAM, BPE, or another of TrainerSpec.ModelType.
      byte_fallback: whether unknown characters become bytes.
      usual_spaces: whether a space is put before the text, extra ones are removed, and each becomes SPACE.
      rule: name of the normalisation, such as 'nmt_nfkc'.
      charsmap: its compiled character map.
    """

    kind: int
    byte_fallback: bool
    usual_spaces: bool
    rule: str
    charsmap: bytes


def read_settings(model: bytes) -> ModelSettings:
    """The settings in the bytes of a *.model file."""
    parts = {number: value for number, value, _ in _fields(model) if number != _PIECES}
    trainer = {number: value for number, value, _ in _fields(parts.get(_TRAINER, b''))}
    normalizer = {number: value for number, value, _ in _fields(parts.get(_NORMALIZER, b''))}
    return ModelSettings(
        kind=trainer.get(_MODEL_TYPE, UNIGRAM),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        usual_spaces=all(normalizer.get(field, 1) for field in (_DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES)),
        rule=normalizer.get(_RULE, b'').decode(),
        charsmap=normalizer.get(_CHARSMAP, b''),
    )


def unicode_steps(rule: str) -> list[str]:
    """The normalisers (names in `tokenizers.normalizers`) to apply before the character map of a model with this rule.

    SentencePiece's map composes a fixed table of short sequences, and `tokenizers` applies the map by grapheme, so that
    the two differ on decomposed Vietnamese or Korean. They agree on text that is in NFKC (and lower case) already, for
    which SentencePiece's own result does not change.
    """
    return {
        'nmt_nfkc': ['NFKC'],
        'nfkc': ['NFKC'],
        'nmt_nfkc_cf': ['NFKC', 'Lowercase', 'NFKC'],
        'nfkc_cf': ['NFKC', 'Lowercase', 'NFKC'],
    }.get(rule, [])


def unicode_normalizer(rule: str) -> normalizers.Sequence:
    """The normaliser of `unicode_steps`."""
    return normalizers.Sequence([getattr(normalizers, name)() for name in unicode_steps(rule)])


def round_scores(model: bytes) -> bytes:
    """The model with rounded scores.

    SentencePiece sums scores over a whole text in float32, other implementations over words or in float64. Where two
    segmentations of a word have nearly equal sums, rounding errors decide, differently in each implementation and at
    each position. With scores whose sums are exact, the same segmentation wins everywhere.
    """
    rounded = bytearray(model)
    for number, piece, start in _fields(model):
        if number == _PIECES:
            for field, score, at in _fields(piece):
                if field == _SCORE:
                    struct.pack_into('<f', rounded, start + at, round(score * _STEPS) / _STEPS)
    return bytes(rounded)


def _fields(message: bytes) -> Iterator[tuple[int, Any, int]]:
    """The fields of a protocol buffer (protobuf.dev, Encoding): number, value, offset of the value.

    Parsed here because the generated modules of `sentencepiece` and of `transformers` register one name in the same
    process-wide pool, and the former needs a newer protobuf than other packages allow.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, start = tag & 7, at
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            size, start = _varint(message, at)
            value, at = message[start : start + size], start + size
        else:
            form, size = ('<f', 4) if kind == 5 else ('<d', 8)
            (value,), at = struct.unpack_from(form, message, at), at + size
        yield tag >> 3, value, start


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and the offset of its end."""
    value = shift = 0
    while True:
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
