"""Sums all measures over a corpus on the devices, in one pass and in constant memory."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.attention_analysis import relations as rel
from bertjax.attention_analysis.analysis_input import Chunk, Texts
from bertjax.attention_analysis.changes import change_sums
from bertjax.attention_analysis.heads import head_sums
from bertjax.attention_analysis.words import HEAD, RELATION, UNIT, make_text_features, make_tree_features, merge_units
from bertjax.data.features import INPUTS, Features
from bertjax.inference.attention import apply_encoder, max_batch_size
from bertjax.inference.runner import Forward, Runner
from bertjax.loading.load_model import LoadedModel
from bertjax.model.capture import PROBABILITIES
from bertjax.progress import Advance
from bertjax.text.tokenizer import Tokenizer
from bertjax.train.predict import no_op

BEFORE, AFTER = 'before', 'after'


@dataclasses.dataclass
class Totals:
    """The totals of a pass over a corpus.

    Attributes:
      sums: The sums, float64 or int64, under the keys `heads` and, if requested, `relations` and `changes`.
      offsets: The head offsets of the measured trees.
      cut: The number of texts that were truncated.
      left_out: The number of trees that were too long.
    """

    sums: dict[str, Any] = dataclasses.field(default_factory=dict)
    offsets: rel.Offsets = dataclasses.field(default_factory=dict)
    cut: int = 0
    left_out: int = 0


def measure(
    runner: Runner,
    chunks: Iterable[Chunk],
    *,
    unit: str,
    max_length: int,
    relations: Sequence[str] = (),
    before: LoadedModel | None = None,
    advance: Advance = no_op,
) -> Totals:
    """Measures all chunks.

    Args:
      chunks: The texts or trees, which may be read lazily.
      unit: The unit of the measures of heads, 'piece' or 'word'.
      max_length: The maximum sequence length. Longer texts are truncated, and longer trees are skipped.
      relations: The relations of the trees; () for texts.
      before: The model to compare with; None for no comparison.
      advance: A function that is called with the number of texts that were finished since the last call.

    Returns:
      The totals; `sums` is empty if all trees were too long.
    """
    model, totals = runner.model, Totals()
    forward = _make_forward(model, before, unit=unit, relations=len(relations))
    name = ('measure', unit, tuple(relations), before and before.where)
    params = {AFTER: model.params} | ({BEFORE: before.params} if before else {})
    inputs = (*INPUTS, UNIT, HEAD, RELATION) if relations else (*INPUTS, UNIT)
    max_rows = lambda length: max_batch_size(model.config, length)  # noqa: E731
    for chunk in chunks:
        features = make_features(model.tokenizer, chunk, relations, max_length)
        if isinstance(chunk, Texts):
            totals.cut += _count_truncated(model.tokenizer, chunk, max_length) if features.notes else 0
        else:
            trees = [] if features is None else [chunk[i] for i in features.record]
            totals.left_out += len(chunk) - len(trees)
            rel.count_offsets(totals.offsets, trees)
            if features is None:
                continue
        sums = runner.sum(name, forward, features, inputs=inputs, max_rows=max_rows, params=params, advance=advance)
        sums = jax.tree.map(lambda x: x.astype(np.int64 if x.dtype.kind == 'i' else np.float64), sums)
        totals.sums = jax.tree.map(np.add, totals.sums, sums) if totals.sums else sums
    return totals


def make_features(tokenizer: Tokenizer, chunk: Chunk, relations: Sequence[str], max_length: int) -> Features | None:
    """Makes the features of a chunk; returns None if all its trees are too long."""
    if isinstance(chunk, Texts):
        return make_text_features(tokenizer, *chunk, max_length)
    return make_tree_features(tokenizer, chunk, relations, max_length)


def _count_truncated(tokenizer: Tokenizer, texts: Texts, max_length: int) -> int:
    """Counts the texts or pairs with more than `max_length` tokens, including special tokens."""
    lengths = sum(np.array([len(ids) for ids in tokenizer.encode(part)]) for part in texts if part is not None)
    special = 2 if texts.second is None else 2 + tokenizer.separators
    return int((lengths + special > max_length).sum())


def _make_forward(model: LoadedModel, before: LoadedModel | None, *, unit: str, relations: int) -> Forward:
    def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
        mask = batch['attention_mask'].astype(jnp.float32)
        separators = (batch['input_ids'] == model.tokenizer.sep_id) * mask
        after = apply_encoder(model.module, params[AFTER], batch, hidden=before is not None)
        weights = after[PROBABILITIES]
        merged = merge_units(weights, batch[UNIT], mask) if relations or unit == 'word' else None
        if unit == 'word':
            unit_mask = jax.nn.one_hot(batch[UNIT], mask.shape[1]) * mask[..., None]  # [B, S, U]
            heads = head_sums(merged, unit_mask.max(1), jnp.einsum('BS,BSU->BU', separators, unit_mask))
        else:
            heads = head_sums(weights, mask, separators)
        sums: dict[str, Any] = {'heads': heads}
        if relations:
            sums['relations'] = rel.relation_sums(merged, batch[HEAD], batch[RELATION], relations)
        if before is not None:
            sums['changes'] = change_sums(apply_encoder(before.module, params[BEFORE], batch, hidden=True), after, mask)
        return sums

    return forward
