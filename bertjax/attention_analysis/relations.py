"""Heads that find a word's syntactic head: for every relation the best one, beside the best fixed offset.

After Clark et al. 2019 (arXiv 1906.04341, section 4.2 and table 1). A head of the model predicts, for each word,
another word of the sentence as its syntactic head: the one that it attends to most ('dependent to head'), or the one
that attends most to it ('head to dependent'). [CLS], [SEP] and the word itself are no candidates. Roots have no head
and are not counted.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.attention_analysis.conllu import Tree

DIRECTIONS = ('dependent to head', 'head to dependent')
PUNCTUATION = 'punct'
ALL, WORDS = 'all', 'all but punct'


def predicted_heads(weights: jax.Array, words: jax.Array) -> jax.Array:
    """The unit that each unit's head is by each attention head, in both directions.

    Args:
      weights: float32 [L, B, H, U, U] between units, queries before keys.
      words: bool [B, U], the units that are words.

    Returns:
      int32 [2, L, B, H, U]: as DIRECTIONS; of several with equal weights the first.
    """
    units = weights.shape[-1]
    candidates = words[:, None, :] & ~jnp.eye(units, dtype=bool)  # [B, U, U]
    chosen = lambda x: jnp.where(candidates[:, None], x, -1.0).argmax(-1)  # noqa: E731
    return jnp.stack([chosen(weights), chosen(jnp.swapaxes(weights, -1, -2))]).astype(jnp.int32)


def relation_sums(weights: jax.Array, heads: jax.Array, relations: jax.Array, count: int) -> jax.Array:
    """How many words of each relation have their head predicted, int32 [2, L, H, R].

    Args:
      weights: as of `predicted_heads`.
      heads: int32 [B, U], the unit of each word's head; 0 for none.
      relations: int32 [B, U], of each word, from 1; 0 for what is no word.
      count: R.
    """
    right = (predicted_heads(weights, relations > 0) == heads[:, None]) & (heads > 0)[:, None]  # [2, L, B, H, U]
    of = jax.nn.one_hot(relations - 1, count, dtype=jnp.float32)  # [B, U, R]; -1 gives zeros
    return jnp.einsum('DLBHU,BUR->DLHR', right.astype(jnp.float32), of, precision='highest').astype(jnp.int32)


Offsets = dict[str, collections.Counter[int]]


def count_offsets(offsets: Offsets, trees: Iterable[Tree]) -> None:
    """Counts in {relation: {position of the head - position of the word: words}} those of trees, without roots."""
    for tree in trees:
        for place, (head, relation) in enumerate(zip(tree.heads, tree.relations, strict=True), 1):
            if head:
                offsets.setdefault(relation, collections.Counter())[head - place] += 1


def relation_table(correct: np.ndarray, names: Sequence[str], offsets: Offsets) -> list[dict[str, Any]]:
    """A row a relation, the most frequent first, after one of all words and one of all but punctuation.

    Args:
      correct: int [2, L, H, R], see `relation_sums`.
      names: R relations.
      offsets: of the same trees, see `count_offsets`.

    Returns:
      rows with `relation`, `words`; `layer` and `head` (from 1), `direction` and `accuracy` of the best head;
      `offset` and `baseline`, its accuracy, of the best fixed offset: the head is always so many words further.
    """
    place = {name: i for i, name in enumerate(names)}
    own = sorted(offsets, key=lambda name: (-offsets[name].total(), name))
    return [
        _row(name, several, correct, place, offsets)
        for name, several in (
            (ALL, own),
            (WORDS, [name for name in own if name.split(':')[0] != PUNCTUATION]),
            *((name, [name]) for name in own),
        )
        if several
    ]


def _row(
    name: str,
    several: Sequence[str],
    correct: np.ndarray,
    place: Mapping[str, int],
    offsets: Offsets,
) -> dict[str, Any]:
    found = correct[..., [place[one] for one in several]].sum(-1)  # [2, L, H]
    direction, layer, head = np.unravel_index(found.argmax(), found.shape)
    offset_counts = sum((offsets[one] for one in several), collections.Counter())
    offset = min(offset_counts, key=lambda x: (-offset_counts[x], abs(x), x))
    words = offset_counts.total()
    return {
        'relation': name,
        'words': words,
        'layer': int(layer) + 1,
        'head': int(head) + 1,
        'direction': DIRECTIONS[direction],
        'accuracy': round(int(found.max()) / words, 6),
        'offset': int(offset),
        'baseline': round(offset_counts[offset] / words, 6),
    }


def together(rows: Sequence[Mapping[str, Any]]) -> float:
    """The share of words whose head is found where each relation is left to its own best head: as if somebody told
    which relation a word has."""
    own = [row for row in rows if row['relation'] not in (ALL, WORDS)]
    words = sum(row['words'] for row in own)
    return sum(row['accuracy'] * row['words'] for row in own) / words if words else 0.0
