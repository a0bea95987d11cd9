"""A model's outputs for all rows of a task's features, in row order."""

import collections
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.data.features import Features
from bertjax.data.length_buckets import sorted_batches
from bertjax.data.loader import global_arrays, local_rows
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.parallel.zero1 import unshard
from bertjax.train.on_compile import OnCompile, ignore_compile
from bertjax.train.step import Batch

_AHEAD = 1  # Batches that the devices may compute while another is fetched and the next one made.


def no_op(rows: int) -> None:
    """Wants to know of no progress."""


class Predictor:
    """Computes outputs batch by batch; compiles once for each padded length.

    Args:
      forward: (params, batch) -> outputs by name, the rows of the batch first.
      mesh: whose data axes the rows are split over.
      inputs: the arrays of a batch that `forward` takes.
      per_token: outputs with a value for each token, whose padding is cut off.
      batch_size: rows at a time, rounded up to a multiple of the mesh's row shards.
      shapes: the padded lengths, ascending; every row fits the last one.
      pad_id: of [PAD].
      members: above 0, parameters and outputs are those of as many models, stacked.
    """

    def __init__(
        self,
        forward: Callable[[Any, Batch], Mapping[str, jax.Array]],
        mesh: Mesh,
        *,
        inputs: Collection[str],
        per_token: Collection[str],
        batch_size: int,
        shapes: tuple[int, ...],
        pad_id: int,
        members: int = 0,
    ):
        shards = row_shards(mesh)
        self._batch_size = -(-batch_size // shards) * shards
        self._inputs, self._per_token = tuple(inputs), per_token
        self._met: set[tuple[int, ...]] = set()
        self._mesh, self._shapes, self._pad_id, self._members = mesh, shapes, pad_id, members
        # Replicated, because every process needs all rows; they are small.
        self._forward = jax.jit(
            jax.vmap(forward, in_axes=(0, None)) if members else forward, out_shardings=replicated(mesh)
        )

    def outputs(
        self,
        params: Any,
        features: Features,
        on_compile: OnCompile = ignore_compile,
        advance: Callable[[int], object] = no_op,
        batches: Iterable[tuple[np.ndarray, int]] | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """{name: an array for each row}; with members, their axis comes first in each array.

        `advance` is told, batch by batch, of how many rows more the outputs are there. `batches`, where they are given,
        are the rows, -1 for an empty place, and the padded length of each batch; every row is in one of them.
        """
        found: list[Mapping[str, np.ndarray] | None] = [None] * len(features)
        sharding, lead = batch_sharding(self._mesh), 1 if self._members else 0
        mine, params = local_rows(sharding, self._batch_size), unshard(params)
        begun: collections.deque[tuple[np.ndarray, Mapping[str, jax.Array]]] = collections.deque()

        def fetch() -> None:
            rows, outputs = begun.popleft()
            outputs = jax.device_get(outputs)
            for place, row in enumerate(rows.tolist()):
                if row >= 0:
                    found[row] = {name: np.take(x, place, axis=lead) for name, x in outputs.items()}
            advance(int((rows >= 0).sum()))

        if batches is None:
            batches = sorted_batches(features, batch_size=self._batch_size, shapes=self._shapes)
        for rows, length in batches:
            batch = features.batch(rows[mine], length, self._pad_id)
            arrays = global_arrays({name: batch[name] for name in self._inputs}, sharding, self._batch_size)
            shape = arrays['input_ids'].shape
            compiling = nullcontext() if shape in self._met else on_compile(f'the evaluation of length {length}')
            self._met.add(shape)
            with compiling, mesh_context(self._mesh):
                begun.append((rows, self._forward(params, arrays)))
            if len(begun) > _AHEAD:
                fetch()
        while begun:
            fetch()
        lengths = features.lengths
        return {
            name: [
                _cut(row[name], length, lead) if name in self._per_token else row[name]
                for row, length in zip(found, lengths, strict=True)
            ]
            for name in found[0]
        }


def _cut(x: np.ndarray, length: int, lead: int) -> np.ndarray:
    return x[:, :length] if lead else x[:length]
