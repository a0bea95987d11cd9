"""Finds the attention head that best predicts each syntactic relation, and compares it with the best fixed offset.

The method follows Clark et al. 2019 (arXiv 1906.04341, section 4.2 and table 1). An attention head predicts the
syntactic head of each word w. The prediction is the other word of the sentence to which w attends most ('dependent to
head'), or the other word that attends most to w ('head to dependent'). [CLS] and [SEP] are not candidates. Roots
have no head and are not counted.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.attention_analysis.analysis_input import Tree

DIRECTIONS = ('dependent to head', 'head to dependent')
PUNCTUATION = 'punct'
ALL, WORDS = 'all', 'all but punct'
MIN_WORDS = 100  # a relation with fewer words is rare; Clark et al. list only frequent relations


def predict_heads(weights: jax.Array, words: jax.Array) -> jax.Array:
    """Predicts the syntactic head of each unit with each attention head, in both DIRECTIONS: int32 [2, L, B, H, U].

    In case of a tie, the first unit is predicted.

    Args:
      weights: float32 [L, B, H, U, U] (layers, sentences, heads, queries, keys), the attention between U units.
      words: bool [B, U], True for units that are words.
    """
    units = weights.shape[-1]
    candidates = words[:, None, :] & ~jnp.eye(units, dtype=bool)  # [B, U, U]
    best = lambda x: jnp.where(candidates[:, None], x, -1.0).argmax(-1)  # noqa: E731
    return jnp.stack([best(weights), best(jnp.swapaxes(weights, -1, -2))]).astype(jnp.int32)


def relation_sums(weights: jax.Array, heads: jax.Array, relations: jax.Array, count: int) -> jax.Array:
    """Counts the correct predictions by direction, attention head and relation: int32 [2, L, H, R].

    Args:
      weights: See `predict_heads`.
      heads: int32 [B, U], the number of the unit that governs each unit; 0 for units without a syntactic head.
      relations: int32 [B, U], the relation of each word, from 1; 0 for units that are not words.
      count: R, the number of relations.
    """
    correct = (predict_heads(weights, relations > 0) == heads[:, None]) & (heads > 0)[:, None]  # [2, L, B, H, U]
    one_hot = jax.nn.one_hot(relations - 1, count, dtype=jnp.float32)  # [B, U, R]; -1 gives zeros.
    return jnp.einsum('DLBHU,BUR->DLHR', correct.astype(jnp.float32), one_hot, precision='highest').astype(jnp.int32)


Offsets = dict[str, collections.Counter[int]]


def count_offsets(offsets: Offsets, trees: Iterable[Tree]) -> None:
    """Counts the words of trees, except roots, in `offsets`: {relation: {head position - word position: count}}."""
    for tree in trees:
        for word, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True), 1):
            if head:
                offsets.setdefault(relation, collections.Counter())[head - word] += 1


def relation_table(correct: np.ndarray, names: Sequence[str], offsets: Offsets) -> list[dict[str, Any]]:
    """Makes a row for all words, a row for all words but punctuation, and a row per relation, most frequent first.

    Args:
      correct: int [2, L, H, R], see `relation_sums`.
      names: The R relations.
      offsets: The head offsets of the same trees, see `count_offsets`.

    Returns:
      The rows: `relation`, its number of `words`, the best attention head (`layer` and `head`, both from 1) with its
      `direction` and `accuracy`, and the best fixed `offset` from a word to its syntactic head with its accuracy, the
      `baseline`.
    """
    index = {name: i for i, name in enumerate(names)}
    by_frequency = sorted(offsets, key=lambda name: (-offsets[name].total(), name))
    groups = [(ALL, by_frequency), (WORDS, [name for name in by_frequency if name.split(':')[0] != PUNCTUATION])]
    rows = []
    for name, relations in (*groups, *((name, [name]) for name in by_frequency)):
        if not relations:
            continue
        counts = correct[..., [index[relation] for relation in relations]].sum(-1)  # [2, L, H]
        direction, layer, head = np.unravel_index(counts.argmax(), counts.shape)
        offset_counts = sum((offsets[relation] for relation in relations), collections.Counter())
        offset = min(offset_counts, key=lambda x: (-offset_counts[x], abs(x), x))
        words = offset_counts.total()
        row = {'relation': name, 'words': words, 'layer': int(layer) + 1, 'head': int(head) + 1}
        row |= {'direction': DIRECTIONS[direction], 'accuracy': round(int(counts.max()) / words, 6)}
        rows.append({**row, 'offset': int(offset), 'baseline': round(offset_counts[offset] / words, 6)})
    return rows


def best_heads_accuracy(rows: Sequence[Mapping[str, Any]]) -> float:
    """Returns the accuracy if the best attention head for each word's (known) relation predicts the word's head."""
    single = [row for row in rows if row['relation'] not in (ALL, WORDS)]
    words = sum(row['words'] for row in single)
    return sum(row['accuracy'] * row['words'] for row in single) / words if words else 0.0
