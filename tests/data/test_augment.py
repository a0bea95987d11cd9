"""Tests which words data augmentation replaces, and by which words."""

import numpy as np
import pytest

from bertjax.data.augment import choose_candidates, choose_words, find_single_piece_words, repeat_rows
from bertjax.data.features import FeatureBuilder

CLS, SEP = 1, 2
# Pieces with ids of at least 20 continue a word.
CONTINUES = np.arange(40) >= 20
SPECIAL = np.array([0, CLS, SEP, 3])


@pytest.fixture(scope='module')
def features():
    """Returns two rows of two sequences each, with token labels."""
    builder = FeatureBuilder(choices=2)
    sequences = [[CLS, 5, 6, 25, SEP], [CLS, 7, SEP, 8, 9, SEP], [CLS, 10, 30, 31, 11, SEP], [CLS, 12, SEP]]
    for i, tokens in enumerate(sequences):
        builder.add_sequence(tokens, 3 if i == 1 else None, token_labels=np.arange(len(tokens), dtype=np.int32))
        if i % 2:
            builder.add_row(i // 2, labels=np.int32(i))
    return builder.build()


def test_copies_follow_their_row_unchanged(features):
    rows = repeat_rows(features, 3, 'labelled')
    assert rows.record.tolist() == [0, 0, 0, 1, 1, 1] and rows.row['labelled'].tolist() == [1, 0, 0, 1, 0, 0]
    assert rows.row['labels'].tolist() == [1, 1, 1, 3, 3, 3] and rows.row['labelled'].dtype == np.float32
    for i in range(6):
        actual, expected = rows.batch(np.array([i]), 8, 0), features.batch(np.array([i // 3]), 8, 0)
        for name, x in expected.items():
            np.testing.assert_array_equal(actual[name], x)


def test_only_words_of_one_piece_can_be_replaced(features):
    words = find_single_piece_words(features, SPECIAL, CONTINUES)
    assert features.tokens[words].tolist() == [5, 7, 8, 9, 11, 12]


def test_the_chosen_words_have_the_requested_share_and_depend_on_the_seed(features):
    rows = repeat_rows(features, 2001, 'labelled')
    words = find_single_piece_words(rows, SPECIAL, CONTINUES)
    choose = lambda seed: choose_words(rows, words, seed=seed, probability=0.4, mark='labelled')  # noqa: E731
    chosen = choose(0)
    assert not (chosen & ~words).any()
    first = rows.offsets[np.flatnonzero(np.repeat(rows.row['labelled'], 2))]
    assert not any(chosen[start : start + 3].any() for start in first)
    assert chosen.sum() / words.sum() == pytest.approx(0.4, abs=0.02)
    np.testing.assert_array_equal(chosen, choose(0))
    assert (chosen != choose(1)).any()


def test_a_word_is_replaced_with_each_of_its_candidates_and_never_with_itself():
    candidates = np.tile(np.array([7, 8, 9, 10], np.int32), (3000, 1))
    n, position = np.arange(3000), np.full(3000, 4)
    # A word that is not a candidate (99) is replaced with one of the three most likely candidates.
    for word, others in ((8, {7, 9, 10}), (99, {7, 8, 9})):
        chosen = choose_candidates(candidates, np.full(3000, word), n, position, seed=0)
        values, counts = np.unique(chosen, return_counts=True)
        assert set(values.tolist()) == others and counts.min() > 900
