"""Tests the search for attention heads that find syntax."""

import collections

import jax
import numpy as np
import pytest

from bertjax.attention_analysis.analysis_input import Tree
from bertjax.attention_analysis.relations import (
    ALL,
    DIRECTIONS,
    WORDS,
    best_heads_accuracy,
    count_offsets,
    predict_heads,
    relation_sums,
    relation_table,
)

# The cat saw a bird . / Birds sing loudly
FIRST = ('det', 'nsubj', 'root', 'det', 'obj', 'punct')
TREES = [
    Tree('a:1', ('The', 'cat', 'saw', 'a', 'bird', '.'), (2, 3, 0, 5, 3, 3), FIRST),
    Tree('a:9', ('Birds', 'sing', 'loudly'), (2, 0, 2), ('nsubj', 'root', 'advmod')),
]
NAMES = ['advmod', 'det', 'nsubj', 'obj', 'punct', 'root']
UNITS = 8  # [CLS], six words, [SEP]


def arrays() -> tuple[np.ndarray, np.ndarray]:
    heads, relations = np.zeros((2, UNITS), np.int32), np.zeros((2, UNITS), np.int32)
    for i, tree in enumerate(TREES):
        heads[i, 1 : len(tree.words) + 1] = tree.heads
        relations[i, 1 : len(tree.words) + 1] = [NAMES.index(name) + 1 for name in tree.relations]
    return heads, relations


def made_by_hand() -> np.ndarray:
    """Returns attention weights [2, 2, 2, UNITS, UNITS] of two layers, two texts and two heads.

    In layer 1, head 1 attends mostly to [CLS] and the word itself, then to the true head; head 2 attends to the next
    word. In layer 2, head 1 attends from the true head to its dependents; head 2 attends to [SEP] and the first word.
    """
    weights = np.full((2, 2, 2, UNITS, UNITS), 1e-3, np.float32)
    for text, tree in enumerate(TREES):
        for word, head in enumerate(tree.heads, 1):
            weights[0, text, 0, word, 0], weights[0, text, 0, word, word] = 0.5, 0.3
            weights[0, text, 1, word, word + 1] = 0.9
            if head:
                weights[0, text, 0, word, head] = 0.1
                weights[1, text, 0, head, word] = 0.1 if word < head else 0.2
            weights[1, text, 1, word, [len(tree.words) + 1, 1]] = 0.6, 0.3
    return weights


def test_the_best_head_per_relation_is_found_in_hand_made_attention():
    heads, relations = arrays()
    predicted = np.asarray(jax.jit(predict_heads)(made_by_hand(), relations > 0))  # [2, L, B, H, U]
    assert predicted[0, 0, 0, 0, [1, 2, 4, 5, 6]].tolist() == [2, 3, 5, 3, 3]
    assert predicted[0, 0, 0, 1, 1:6].tolist() == [2, 3, 4, 5, 6]  # The next word; [SEP] is not a candidate.
    assert predicted[1, 1, 0, 0, [1, 2, 4, 5, 6]].tolist() == [2, 3, 5, 3, 3]
    assert predicted[0, 1, 0, 1, 2:7].tolist() == [1] * 5
    assert predicted[0, 1, 0, 1, 1] == 2  # The first of equal weights.

    correct = np.asarray(jax.jit(relation_sums, static_argnums=3)(made_by_hand(), heads, relations, len(NAMES)))
    assert correct.shape == (2, 2, 2, len(NAMES))
    assert correct[0, 0, 0].tolist() == [1, 2, 2, 1, 1, 0]  # All words are correct; roots are not counted.
    assert correct[0, 0, 1].tolist() == [0, 2, 2, 0, 0, 0]
    assert correct[1, 1, 0].tolist() == [1, 2, 2, 1, 1, 0]
    # Only the syntactic head of "loudly" attends to it. No word attends to the first word, so word 2 is its prediction.
    assert correct[1, 0, 1].tolist() == [1, 1, 1, 0, 0, 0]

    offsets: dict[str, collections.Counter[int]] = {}
    count_offsets(offsets, TREES)
    assert offsets['nsubj'] == {1: 2} and offsets['punct'] == {-3: 1} and 'root' not in offsets
    table = {row['relation']: row for row in relation_table(correct, NAMES, offsets)}
    assert list(table) == [ALL, WORDS, 'det', 'nsubj', 'advmod', 'obj', 'punct']
    best = {'layer': 1, 'head': 1, 'direction': DIRECTIONS[0], 'accuracy': 1.0}
    assert table[ALL] == {'relation': ALL, 'words': 7, **best, 'offset': 1, 'baseline': round(4 / 7, 6)}
    assert table[WORDS] == {'relation': WORDS, 'words': 6, **best, 'offset': 1, 'baseline': round(4 / 6, 6)}
    assert table['det'] == {'relation': 'det', 'words': 2, **best, 'offset': 1, 'baseline': 1.0}
    assert table['obj'] == {'relation': 'obj', 'words': 1, **best, 'offset': -2, 'baseline': 1.0}
    assert best_heads_accuracy(list(table.values())) == 1


@pytest.mark.parametrize('seed', range(3))
def test_the_table_equals_a_word_by_word_implementation_in_plain_python(seed: int):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(UNITS, 0.5), (3, 2, 4, UNITS)).astype(np.float32)  # [L, B, H, U, U]
    heads, relations = arrays()
    correct = np.asarray(relation_sums(weights, heads, relations, len(NAMES)))
    offsets: dict[str, collections.Counter[int]] = {}
    count_offsets(offsets, TREES)
    table = {row['relation']: row for row in relation_table(correct, NAMES, offsets)}

    words = [(text, tree, word) for text, tree in enumerate(TREES) for word in range(1, len(tree.words) + 1)]
    words = [(text, tree, word) for text, tree, word in words if tree.heads[word - 1]]
    for name, row in table.items():
        selected = [x for x in words if name in (ALL, x[1].relations[x[2] - 1])]
        if name == WORDS:
            selected = [x for x in words if x[1].relations[x[2] - 1] != 'punct']
        scores = {}
        for layer in range(3):
            for head in range(4):
                for direction in DIRECTIONS:
                    correct_count = 0
                    for text, tree, word in selected:
                        best, highest = None, -1.0
                        for other in range(1, len(tree.words) + 1):
                            pair = (word, other) if direction == DIRECTIONS[0] else (other, word)
                            if other != word and weights[layer, text, head][pair] > highest:
                                best, highest = other, weights[layer, text, head][pair]
                        correct_count += best == tree.heads[word - 1]
                    scores[layer + 1, head + 1, direction] = correct_count
        assert row['words'] == len(selected)
        assert scores[row['layer'], row['head'], row['direction']] == max(scores.values())
        assert row['accuracy'] == pytest.approx(max(scores.values()) / len(selected), abs=1e-6)
        hits = [sum(t.heads[w - 1] - w == offset for _, t, w in selected) for offset in range(-9, 10)]
        assert row['baseline'] == pytest.approx(max(hits) / len(selected), abs=1e-6)
        assert hits[row['offset'] + 9] == max(hits)
