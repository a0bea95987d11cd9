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

    def record_excluded(model, replacements, count):
        excluded.append(np.flatnonzero(~replacements).tolist())

    monkeypatch.setattr(augment, '_candidates', fixed_candidates)
    monkeypatch.setattr(augment, '_make_predictor', record_excluded)
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
    assert excluded == [[0, CLS, SEP, MARK, PIECE], [0, CLS, SEP, PIECE]]  # No word is replaced with these pieces.


def test_the_endings_of_a_copy_have_the_same_prompt(tokenizer, monkeypatch):
    builder = FeatureBuilder(choices=3)
    for row in range(3):
        prompt = [CLS, 10, 11, 12 + row, SEP, 11]
        for ending in ([13, 14, SEP], [PIECE, 15, SEP], [16, SEP]):
            builder.add_sequence([*prompt, *ending], second=5)
        builder.add_row(row, labels=np.int32(0))

    def draw_candidates(rows, chosen, tokenizer, model, ask, batch_size):
        positions = np.flatnonzero(chosen)
        yield positions, np.random.default_rng(0).permuted(np.tile(np.arange(10, 19), (len(positions), 1)), axis=1)

    monkeypatch.setattr(augment, '_candidates', draw_candidates)
    monkeypatch.setattr(augment, '_make_predictor', lambda *_: None)
    features = builder.build()
    options = {'times': 3, 'probability': 0.8, 'count': 8, 'seed': 0, 'batch_size': 8}
    rows = augment_split(features, np.zeros(len(features.tokens), bool), tokenizer, None, **options)
    sequences = np.split(rows.tokens, rows.offsets[1:-1])
    prompts = [[x[:5].tolist() for x in sequences[i : i + 3]] for i in range(0, len(sequences), 3)]
    assert all(first == second == third for first, second, third in prompts)
    assert len({tuple(first) for first, *_ in prompts}) > 6  # the copies differ
    # The word before the ending is shared too, but not where a piece of the ending continues it.
    starts = [[x[5] for x in sequences[i : i + 3]] for i in range(0, len(sequences), 3)]
    assert all(first == third and second == 11 for first, second, third in starts) and len({x for x, *_ in starts}) > 1
