"""Texts and trees as rows for a model, whose attention is looked at piece by piece or word by word."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.attention_analysis.conllu import Tree
from bertjax.data.features import FeatureBuilder, Features
from bertjax.inference.encode import sequences
from bertjax.tasks.tagging.features import word_pieces
from bertjax.text.tokenizer import Tokenizer

# Arrays of a batch, int32 [B, S]: to which unit (a word, or a special token) each position belongs, from 0; and for
# the unit of each number its head's number, and the number of its relation from 1. 0 where there is none.
UNIT, HEAD, RELATION = 'token_unit', 'token_head', 'token_relation'


def text_rows(tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None, max_length: int) -> Features:
    """Rows of texts, or of pairs, with UNIT; see `encode.sequences`."""
    features = sequences(tokenizer, texts, pairs, max_length)
    # `##ly` behind a [SEP], which only a cut could leave there, is a word.
    special = np.isin(features.tokens, (tokenizer.cls_id, tokenizer.sep_id))
    continues = tokenizer.continues_word[features.tokens] & ~special & ~np.roll(special, 1)
    begun = np.cumsum(~continues)
    first = np.repeat(begun[features.offsets[:-1]], features.sequence_lengths)
    return dataclasses.replace(features, token={UNIT: (begun - first).astype(np.int32)})


def tree_rows(
    tokenizer: Tokenizer, trees: Sequence[Tree], relations: Sequence[str], max_length: int
) -> Features | None:
    """Rows of trees, each word made pieces by itself, with UNIT, HEAD and RELATION; word w is unit w, [CLS] unit 0.

    Args:
      tokenizer: of the model.
      trees: those with more than `max_length` tokens are left out, because a part of a tree is none.
      relations: their names; a word's number is 1 more than the place of its own among them.
      max_length: S.

    Returns:
      a row for each of the others; None where there are none.
    """
    builder, made, numbers = FeatureBuilder(), False, {name: i for i, name in enumerate(relations, 1)}
    for i, tree in enumerate(trees):
        pieces = word_pieces(tree.words, tokenizer)
        tokens = np.concatenate([[tokenizer.cls_id], pieces.ids, [tokenizer.sep_id]])
        if len(tokens) > max_length:
            continue
        count = len(tree.words)
        units = np.repeat(np.arange(count + 2), [1, *np.diff(pieces.first), 1])
        of_units = {HEAD: tree.heads, RELATION: [numbers[name] for name in tree.relations]}
        filled = {name: np.zeros(len(tokens), np.int32) for name in of_units}
        for name, values in of_units.items():
            filled[name][1 : count + 1] = values
        builder.add_sequence(tokens, **{UNIT: units.astype(np.int32)}, **filled)
        builder.add_row(i)
        made = True
    return builder.build() if made else None


def merge_units(weights: jax.Array, units: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention between pieces -> attention between units, whose weights add up to 1 again.

    What goes to a word is the sum over its pieces, what comes from it the mean over them (Clark et al. 2019, arXiv
    1906.04341, section 4.1).

    Args:
      weights: float32 [L, B, H, S, S], queries before keys.
      units: int32 [B, S], the unit of each piece.
      mask: int32 [B, S], 1 for pieces and 0 for padding.

    Returns:
      float32 [L, B, H, S, S], zeros behind the last unit.
    """
    of = jax.nn.one_hot(units, units.shape[1], dtype=weights.dtype) * mask[..., None]  # [B, S, U]
    to = jnp.einsum('LBHQS,BSU->LBHQU', weights, of, precision='highest')
    summed = jnp.einsum('LBHQU,BQV->LBHVU', to, of, precision='highest')
    return summed / jnp.maximum(of.sum(1), 1.0)[:, None, :, None]
