"""Computes a model's outputs for all rows of a task's features, in row order."""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from bertjax.data.features import INPUTS, Features
from bertjax.data.loader import global_arrays, local_rows
from bertjax.data.packing_plan import plan_single_rows
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.parallel.zero1 import unshard
from bertjax.training.evaluate import OnCompile
from bertjax.training.step import Batch

Forward = Callable[[Any, Batch], Mapping[str, jax.Array]]
SCORE_INPUTS = (*INPUTS, 'masked_positions', 'masked_ids')  # the batch arrays that `make_token_scores` uses

_AHEAD = 1  # the number of batches that the devices compute while the host fetches an earlier result


def no_op(rows: int) -> None:
    """Ignores the number of finished rows."""


def make_token_scores(module: nn.Module) -> Forward:
    """Makes (params, batch) -> {'log_probabilities': log p of the `masked_ids` by the MLM head, float32 [B, P]}."""

    def forward(params: Any, batch: Batch) -> dict[str, jax.Array]:
        inputs = [batch[name] for name in (*INPUTS, 'masked_positions')]
        logits = module.apply({'params': params}, *inputs)['mlm_logits']  # [B, P, V]
        correct = jnp.take_along_axis(logits, batch['masked_ids'][..., None], axis=-1)[..., 0]
        return {'log_probabilities': correct - jax.nn.logsumexp(logits, axis=-1)}

    return forward


@dataclasses.dataclass(eq=False)
class Predictor:
    """Computes outputs batch by batch, with one compilation for each padded length.

    Attributes:
      forward: (params, batch) -> {name: output}, with the rows of the batch along the first axis.
      per_token: The names of outputs with a value per token. The values of padding are cut off.
      batch_size: The number of rows of a batch, rounded up to a multiple of the mesh's row shards.
      shapes: The padded lengths, ascending; no row is longer than the last length.
      members: If > 0, the number of models. Their parameters and outputs are stacked along a first axis.
    """

    forward: Forward
    mesh: Mesh
    _: dataclasses.KW_ONLY
    inputs: Collection[str]
    per_token: Collection[str]
    batch_size: int
    shapes: tuple[int, ...]
    pad_id: int
    members: int = 0

    def __post_init__(self):
        shards = row_shards(self.mesh)
        self.batch_size = -(-self.batch_size // shards) * shards
        self._compiled_shapes: set[tuple[int, ...]] = set()
        forward = jax.vmap(self.forward, in_axes=(0, None)) if self.members else self.forward
        self._forward = jax.jit(forward, out_shardings=replicated(self.mesh))  # every process needs all rows

    def outputs(
        self,
        params: Any,
        features: Features,
        on_compile: OnCompile = nullcontext,
        advance: Callable[[int], object] = no_op,
        batches: Iterable[tuple[np.ndarray, int]] | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Computes the outputs of all rows.

        Args:
          advance: A callback that gets the number of rows of `features` in each batch that is done.
          batches: (row indices, padded length) of each batch; the index -1 stands for padding. The batches must contain
            every row of `features`. None for the batches of `plan_single_rows`.

        Returns:
          {name: an array per row}; if `members` > 0, each array has one entry per model along its first axis.
        """
        row_outputs: list[Mapping[str, np.ndarray] | None] = [None] * len(features)
        sharding, lead = batch_sharding(self.mesh), 1 if self.members else 0
        local, params = local_rows(sharding, self.batch_size), unshard(params)
        pending: collections.deque[tuple[np.ndarray, Mapping[str, jax.Array]]] = collections.deque()

        def fetch() -> None:
            rows, outputs = pending.popleft()
            outputs = jax.device_get(outputs)
            for slot, row in enumerate(rows.tolist()):
                if row >= 0:
                    row_outputs[row] = {name: np.take(x, slot, axis=lead) for name, x in outputs.items()}
            advance(int((rows >= 0).sum()))

        if batches is None:
            batches = plan_single_rows(features.lengths, self.shapes, self.batch_size).batches()
        for rows, length in batches:
            batch = features.batch(rows[local], length, self.pad_id)
            arrays = global_arrays({name: batch[name] for name in self.inputs}, sharding, self.batch_size)
            shape, what = arrays['input_ids'].shape, f'the evaluation of length {length}'
            with nullcontext() if shape in self._compiled_shapes else on_compile(what), mesh_context(self.mesh):
                pending.append((rows, self._forward(params, arrays)))
            self._compiled_shapes.add(shape)
            if len(pending) > _AHEAD:
                fetch()
        while pending:
            fetch()
        results = {name: [row[name] for row in row_outputs] for name in row_outputs[0]}
        for name in results.keys() & set(self.per_token):
            pairs = zip(results[name], features.lengths, strict=True)
            results[name] = [x[:, :length] if lead else x[:length] for x, length in pairs]
        return results
