"""Makes features of texts and trees for the attention between pieces or between words."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.attention_analysis.analysis_input import Tree
from bertjax.data.features import FeatureBuilder, Features
from bertjax.inference.encode import build_sequences
from bertjax.inference.input import nonblank_texts
from bertjax.tasks.reading.records import Row
from bertjax.tasks.tagging.features import word_pieces
from bertjax.text.tokenizer import Tokenizer

# The names of batch arrays, int32 [B, S]. UNIT has the unit (a word or a special token) of each position, from 0.
# Entry u of HEAD is the number of the unit that governs unit u in the dependency tree, or 0 for a root or a special
# token. Entry u of RELATION is the number of unit u's relation, from 1, or 0 if unit u is not a word.
UNIT, HEAD, RELATION = 'token_unit', 'token_head', 'token_relation'


def make_features(
    tokenizer: Tokenizer, items: Sequence[Row] | Sequence[Tree], relations: Sequence[str], max_length: int
) -> Features | None:
    """Makes the features of texts or of trees with these relations. Returns None if all trees are too long."""
    if isinstance(items[0], Tree):
        return make_tree_features(tokenizer, items, relations, max_length)
    _, first, second = nonblank_texts(items)
    return make_text_features(tokenizer, first, second, max_length)


def make_text_features(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int
) -> Features:
    """Makes the features of texts or pairs with `encode.build_sequences`, and adds UNIT."""
    features = build_sequences(tokenizer, texts, pairs, max_length)
    # The piece after a special token starts a word. In byte-level BPE, this piece may lack the mark of a word start.
    special = np.isin(features.tokens, (tokenizer.cls_id, tokenizer.sep_id))
    continues = tokenizer.continues_word[features.tokens] & ~special & ~np.roll(special, 1)
    starts = np.cumsum(~continues)
    first = np.repeat(starts[features.offsets[:-1]], features.sequence_lengths)
    return dataclasses.replace(features, token={UNIT: (starts - first).astype(np.int32)})


def make_tree_features(
    tokenizer: Tokenizer, trees: Sequence[Tree], relations: Sequence[str], max_length: int
) -> Features | None:
    """Makes the features of trees, with UNIT, HEAD and RELATION; None if all trees have more than `max_length` tokens.

    Longer trees are skipped, because a tree cannot be truncated. Each word is tokenized separately. Word w, counted
    from 1, is unit w, and [CLS] is unit 0. The number of a relation is its index in `relations` plus 1.
    """
    builder, has_rows, numbers = FeatureBuilder(), False, {name: i for i, name in enumerate(relations, 1)}
    for i, tree in enumerate(trees):
        ids, first = word_pieces(tree.words, tokenizer)
        tokens = np.concatenate([[tokenizer.cls_id], ids, [tokenizer.sep_id]])
        if len(tokens) > max_length:
            continue
        count = len(tree.words)
        units = np.repeat(np.arange(count + 2), [1, *np.diff(first), 1])
        word_values = {HEAD: tree.heads, RELATION: [numbers[name] for name in tree.relations]}
        padding = 1, len(tokens) - count - 1
        arrays = {name: np.pad(np.int32(values), padding) for name, values in word_values.items()}
        builder.add_sequence(tokens, **{UNIT: units.astype(np.int32)}, **arrays)
        builder.add_row(i)
        has_rows = True
    return builder.build() if has_rows else None


def merge_units(weights: jax.Array, units: jax.Array, mask: jax.Array) -> jax.Array:
    """Converts attention between pieces to attention between units (Clark et al. 2019, arXiv 1906.04341, section 4.1).

    Weights to a unit are summed over its pieces, and weights from a unit are averaged over its pieces.

    Args:
      weights: float32 [L, B, H, S, S], queries before keys.
      units: int32 [B, S], the unit of each piece.
      mask: int32 or float32 [B, S], 1 for pieces and 0 for padding.

    Returns:
      float32 [L, B, H, S, S], the weights between units. Entries after the last unit are 0.
    """
    one_hot = jax.nn.one_hot(units, units.shape[1], dtype=weights.dtype) * mask[..., None]  # [B, S, U]
    to_units = jnp.einsum('LBHQS,BSU->LBHQU', weights, one_hot, precision='highest')
    summed = jnp.einsum('LBHQU,BQV->LBHVU', to_units, one_hot, precision='highest')
    return summed / jnp.maximum(one_hot.sum(1), 1.0)[:, None, :, None]
