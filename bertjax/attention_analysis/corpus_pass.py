"""Measures attention heads in one pass over a corpus. The memory use does not depend on the size of the corpus."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.attention_analysis import relations as rel
from bertjax.attention_analysis.analysis_input import Tree
from bertjax.attention_analysis.changes import change_rows, change_sums, parameter_changes
from bertjax.attention_analysis.heads import head_means, head_sums
from bertjax.attention_analysis.words import HEAD, RELATION, UNIT, make_features, merge_units
from bertjax.data.features import INPUTS
from bertjax.inference.attention import apply_encoder, max_batch_size
from bertjax.inference.runner import Forward, Runner
from bertjax.loading.load_model import LoadedModel
from bertjax.model.capture import PROBABILITIES
from bertjax.progress import Advance
from bertjax.tasks.reading.records import Row

BEFORE, AFTER = 'before', 'after'


@dataclasses.dataclass(frozen=True)
class Findings:
    """The statistics of a model's heads on a corpus.

    Attributes:
      unit: 'piece' or 'word'.
      texts, positions: The numbers of measured texts, and of their pieces or words and special tokens.
      cut, left_out: The numbers of texts that were truncated, and of trees that were skipped as too long.
      means: {name in `heads.MEASURES`: float64 [L, H]}, the mean of each measure for L layers of H heads.
      relations: The rows of `relation_table`; empty for texts.
      changes: The rows of `change_rows`; empty without a model to compare with.
    """

    unit: str
    texts: int
    positions: int
    cut: int
    left_out: int
    means: dict[str, np.ndarray]
    relations: list[dict[str, Any]]
    changes: list[dict[str, Any]]


def measure(
    runner: Runner,
    chunks: Iterable[Sequence[Row] | Sequence[Tree]],
    *,
    unit: str,
    relations: Sequence[str],
    before: LoadedModel | None,
    advance: Advance,
) -> Findings | None:
    """Measures the heads of a model on all chunks of texts or trees. Returns None if all trees are too long.

    Texts with more than `runner.max_length` tokens are truncated. Trees with more tokens are skipped.

    Args:
      unit: The unit of the positions, 'piece' or 'word'.
      relations: The relations of the trees; empty for texts.
      before: The model to compare with; None for no comparison.
      advance: Takes the number of texts that were finished since its last call.
    """
    model, max_length, sums, cut, left_out = runner.model, runner.max_length, None, 0, 0
    offsets: rel.Offsets = {}
    forward = _make_forward(model, before, unit=unit, relations=len(relations))
    params = {AFTER: model.params} | ({BEFORE: before.params} if before else {})
    inputs = (*INPUTS, UNIT, HEAD, RELATION) if relations else (*INPUTS, UNIT)
    max_rows = lambda length: max_batch_size(model.config, length)  # noqa: E731
    for chunk in chunks:
        features = make_features(model.tokenizer, chunk, relations, max_length)
        if relations:
            trees = [] if features is None else [chunk[i] for i in features.record]
            left_out += len(chunk) - len(trees)
            rel.count_offsets(offsets, trees)
            if features is None:
                continue
        elif features.notes:  # some texts are truncated; with one more token allowed, these exceed `max_length`
            cut += int((make_features(model.tokenizer, chunk, (), max_length + 1).lengths > max_length).sum())
        part = runner.sum(forward, features, inputs=inputs, max_rows=max_rows, params=params, advance=advance)
        part = jax.tree.map(lambda x: x.astype(np.int64 if x.dtype.kind == 'i' else np.float64), part)
        sums = part if sums is None else jax.tree.map(np.add, sums, part)
    if sums is None:
        return None
    changes = []
    if before is not None:
        changes = change_rows(parameter_changes(before.params, model.params), sums['changes'])
    return Findings(
        unit=unit,
        texts=int(sums['heads']['texts']),
        positions=int(sums['heads']['positions']),
        cut=cut,
        left_out=left_out,
        means=head_means(sums['heads']),
        relations=rel.relation_table(sums['relations'], relations, offsets) if relations else [],
        changes=changes,
    )


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
