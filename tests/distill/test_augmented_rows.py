"""Tests which tokens of augmented rows stay unchanged."""

import types

import numpy as np
import pytest

from bertjax.data.features import FeatureBuilder
from bertjax.distill import augment
from bertjax.distill.augment import augment_split

CLS, SEP, MARK, PIECE = 1, 2, 5, 9


@pytest.fixture
def tokenizer():
    continues = np.arange(20) == PIECE
    return types.SimpleNamespace(special_ids=np.array([0, CLS, SEP]), continues_word=continues, mask_id=3)


def test_marks_and_long_words_are_unchanged_in_every_copy(tokenizer, monkeypatch):
    builder = FeatureBuilder()
    for row, first in enumerate((10, 12)):
        builder.add_sequence([CLS, MARK, first, MARK, 11, PIECE, 13, SEP])
        builder.add_row(row, labels=np.int32(0))
    features = builder.build()
    replaced, excluded = [], []

    def fixed_candidates(rows, chosen, tokenizer, model, ask, batch_size):
        positions = np.flatnonzero(chosen)
        replaced.append(positions)
        yield positions, np.tile(np.array([14, 15, 16], np.int32), (len(positions), 1))

    def record_marks(model, tokenizer, marks, count):
        excluded.append(marks.tolist())

    monkeypatch.setattr(augment, '_candidates', fixed_candidates)
    monkeypatch.setattr(augment, '_make_predictor', record_marks)
    options = {'times': 3, 'probability': 1.0, 'count': 2, 'seed': 0, 'batch_size': 8}
    rows = augment_split(features, features.tokens == MARK, tokenizer, None, **options)
    tokens = rows.tokens.reshape(6, 8)
    np.testing.assert_array_equal(tokens[::3], features.tokens.reshape(2, 8))  # The original rows.
    for copy in tokens[[1, 2, 4, 5]]:
        assert copy[[0, 1, 3, 4, 5, 7]].tolist() == [CLS, MARK, MARK, 11, PIECE, SEP]
        assert copy[2] in (14, 15, 16) and copy[6] in (14, 15, 16)
    assert rows.token.keys() == features.token.keys() and rows.row.keys() == {*features.row, 'labelled'}
    augment_split(features, np.zeros(len(features.tokens), bool), tokenizer, None, **options)
    assert len(replaced[0]) == 4 * 2 and len(replaced[1]) == 4 * 4  # The second call treats the marks as words.
    assert excluded == [[MARK], []]  # No word is replaced with these pieces.
