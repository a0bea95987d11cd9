"""Tests the statistics of attention heads and the merging of pieces into words."""

import math

import jax
import numpy as np
import pytest

from bertjax.attention_analysis.corpus_pass import Findings
from bertjax.attention_analysis.findings import describe_findings
from bertjax.attention_analysis.heads import MEASURES, head_means, head_rows, head_sums
from bertjax.attention_analysis.words import UNIT, make_text_features, merge_units

NAMES = tuple(MEASURES)


def made_by_hand() -> np.ndarray:
    """Returns float32 attention weights [1, 2, 3, 4, 4] of one layer, two texts of 4 and 3 positions, and three heads.

    The heads attend to [CLS], to the previous position, and uniformly to all positions.
    """
    weights = np.zeros((1, 2, 3, 4, 4), np.float32)
    for text, length in enumerate((4, 3)):
        weights[0, text, 0, :, 0] = 1
        for i in range(length):
            weights[0, text, 1, i, max(i - 1, 0)] = 1
        weights[0, text, 2, :, :length] = 1 / length
    weights[0, 1, :, 3] = 0.25  # Positions after the end of the text must not count.
    return weights


def test_statistics_of_hand_made_heads():
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.float32)
    separators = np.array([[0, 0, 0, 1], [0, 0, 1, 0]], np.float32)
    sums = jax.device_get(jax.jit(head_sums)(made_by_hand(), mask, separators))
    assert (sums['positions'], sums['texts']) == (7, 2)
    means = {name: values[0] for name, values in head_means(sums).items()}
    expected = {
        'entropy': [0, 0, (4 * math.log(4) + 3 * math.log(3)) / 7],
        'distance': [(6 + 3) / 7, (3 + 2) / 7, (20 / 4 + 8 / 3) / 7],
        'cls': [1, (2 + 2) / 7, 2 / 7],
        'sep': [0, 0, 2 / 7],
        'previous': [2 / 5, 1, (3 / 4 + 2 / 3) / 5],
        'next': [0, 0, (3 / 4 + 2 / 3) / 5],
        'same': [2 / 7, 2 / 7, 2 / 7],
        'cls_entropy': [0, 0, (math.log(4) + math.log(3)) / 2],
    }
    assert means.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(means[name], values, atol=1e-6, err_msg=name)
    assert [(row['layer'], row['head']) for row in head_rows(head_means(sums))] == [(1, 1), (1, 2), (1, 3)]


def test_weights_to_words_are_summed_and_weights_from_words_are_averaged():
    rng = np.random.default_rng(0)
    weights = rng.dirichlet(np.ones(5), (2, 2, 3, 5)).astype(np.float32)
    units = np.array([[0, 1, 1, 1, 2], [0, 1, 2, 0, 0]])
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    weights[:, 1, :, :, 3:] = 0
    merged = np.asarray(jax.jit(merge_units)(weights, units, mask))
    for text, (unit_ids, count) in enumerate(zip(units.tolist(), (5, 3), strict=True)):
        for a in range(3):
            for b in range(3):
                pieces = [[p for p in range(count) if unit_ids[p] == unit] for unit in (a, b)]
                expected = sum(weights[:, text, :, i, j] for i in pieces[0] for j in pieces[1]) / len(pieces[0])
                np.testing.assert_allclose(merged[:, text, :, a, b], expected, rtol=1e-5)
    np.testing.assert_allclose(merged[:, 0, :, :3].sum(-1), 1, rtol=1e-5)
    assert not merged[..., 3:].any() and not merged[:, :, :, 3:].any()


class Letters:
    """A tokenizer with one piece per letter; all letters of a word except the first are continuation pieces."""

    cls_id, sep_id, pad_id, separators = 1, 2, 0, 1
    continues_word = np.array([False] * 40 + [True] * 40)

    def encode(self, texts):
        letter = lambda word, i: ord(word[i]) - 97 + (10 if i == 0 else 50)  # noqa: E731
        return [np.array([letter(w, i) for w in text.split() for i in range(len(w))], np.int32) for text in texts]


@pytest.mark.parametrize(
    ('second', 'expected'),
    [(None, [0, 1, 1, 2, 3, 0, 1, 2]), (['d', 'ee'], [0, 1, 1, 2, 3, 4, 5, 0, 1, 2, 3, 3, 4])],
)
def test_each_piece_is_numbered_with_its_word(second, expected):
    rows = make_text_features(Letters(), ['ab c', 'd'], second, 16)
    assert rows.token[UNIT].tolist() == expected


def test_the_description_of_findings_counts_texts():
    findings = Findings('piece', 1, 9, 1, 2, {'entropy': np.zeros((2, 3))}, [], [])
    expected = '2 layers of 3 heads, measured on 1 text (9 pieces); 1 text truncated; 2 texts skipped as too long.'
    assert describe_findings(findings) == expected
