"""Reads those settings of a SentencePiece *.model file that the library does not expose, and rounds the scores."""

import dataclasses
import struct

from tokenizers import normalizers

from bertjax.files.protobuf import decode_fields, single_fields

SPACE = '▁'  # U+2581, which represents a space in pieces
UNIGRAM, BPE = 1, 2
# Field numbers of sentencepiece_model.proto: ModelProto, SentencePiece, TrainerSpec, NormalizerSpec.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_SCORE = 2
_MODEL_TYPE, _SUFFIX, _BYTE_FALLBACK = 3, 24, 35
_RULE, _CHARSMAP, _DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES = 1, 2, 3, 4, 5
# Rounding scores to multiples of 1 / _STEPS nat keeps sums below 65,536 exact in float32 (24 bits).
_STEPS = 256


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Settings of a SentencePiece model.

    `usual_spaces` is whether the model has the default treatment of spaces: a space is put before the text, repeated
    spaces are removed, and each space becomes SPACE.
    """

    kind: int  # UNIGRAM, BPE, or another value of TrainerSpec.ModelType
    byte_fallback: bool  # whether unknown characters become bytes
    usual_spaces: bool
    rule: str  # the name of the normalization, such as 'nmt_nfkc'
    charsmap: bytes  # the compiled character map of the normalization


def read_settings(model: bytes) -> ModelSettings:
    """Reads the settings from the bytes of a *.model file."""
    parts = single_fields(model)
    trainer, normalizer = single_fields(parts.get(_TRAINER, b'')), single_fields(parts.get(_NORMALIZER, b''))
    return ModelSettings(
        kind=trainer.get(_MODEL_TYPE, UNIGRAM),
        byte_fallback=bool(trainer.get(_BYTE_FALLBACK, 0)),
        usual_spaces=not trainer.get(_SUFFIX, 0)
        and all(normalizer.get(field, 1) for field in (_DUMMY_PREFIX, _REMOVE_SPACES, _ESCAPE_SPACES)),
        rule=normalizer.get(_RULE, b'').decode(),
        charsmap=normalizer.get(_CHARSMAP, b''),
    )


def unicode_steps(rule: str) -> list[str]:
    """Returns the normalizers (names in `tokenizers.normalizers`) to apply before the character map of a model.

    The character map is a fixed table of short sequences. SentencePiece applies it to the text, but `tokenizers`
    applies it to each grapheme, so the results differ for decomposed Vietnamese or Korean. After the returned
    normalizers, the results are equal. These normalizers change SentencePiece's own result only for U+FF5E, U+0344 and,
    with case folding, U+0130.
    """
    return {
        'nmt_nfkc': ['NFKC'],
        'nfkc': ['NFKC'],
        'nmt_nfkc_cf': ['NFKC', 'Lowercase', 'NFKC'],
        'nfkc_cf': ['NFKC', 'Lowercase', 'NFKC'],
    }.get(rule, [])


def unicode_normalizer(rule: str) -> normalizers.Sequence:
    """Returns the steps of `unicode_steps` as one normalizer."""
    return normalizers.Sequence([getattr(normalizers, name)() for name in unicode_steps(rule)])


def round_scores(model: bytes) -> bytes:
    """Returns the model with rounded scores.

    SentencePiece sums scores over a whole text in float32. Other implementations sum over words or in float64. If two
    segmentations of a word have nearly equal sums, rounding errors of the sum decide between them. Rounded scores have
    exact sums, so the choice depends neither on the implementation nor on the position in the text.
    """
    rounded = bytearray(model)
    for number, piece, start in decode_fields(model):
        if number == _PIECES:
            for field, score, at in decode_fields(piece):
                if field == _SCORE:
                    struct.pack_into('<f', rounded, start + at, round(struct.unpack('<f', score)[0] * _STEPS) / _STEPS)
    return bytes(rounded)
