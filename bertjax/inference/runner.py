"""Runs functions of a model's parameters over any number of sequences: batched by length, compiled once a shape."""

import copy
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.cores import available_cores
from bertjax.data.features import INPUTS, Features
from bertjax.data.length_buckets import find_buckets
from bertjax.data.loader import global_arrays, local_rows
from bertjax.data.packing_plan import Cost, PackingPlan, cheapest_plan, one_per_row, size_of
from bertjax.loading.load_model import LoadedModel
from bertjax.model.packed_encoder import packed_rows
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.progress import Advance, telling
from bertjax.train.predict import Predictor, no_op
from bertjax.train.step import Batch

# The padded lengths, as far as the model knows as many positions. A length is compiled when the first sequence of it
# comes; with steps of a third to a half, 10 to 20 % of the positions of evenly spread lengths are padding.
LENGTHS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_FEW = (1, 8)  # rows of the batches that a few sequences are computed in
_CACHED = 1536  # positions for each core of a CPU: of more the activations leave its cache (docs/performance.md)

Forward = Callable[[Any, Batch], Mapping[str, jax.Array]]


class Runner:
    """Computes what functions of a model's parameters give for sequences.

    Args:
      model: whose parameters the functions get.
      batch_size: rows at a time, where there are so many; of long ones a CPU computes fewer.
    """

    def __init__(self, model: LoadedModel, *, batch_size: int = 64):
        longest = model.config.max_positions
        self.model = model
        self.lengths = (*(length for length in LENGTHS if length < longest), longest)
        self._sizes = (*(size for size in _FEW if size < batch_size), batch_size)
        self._predictors: dict[tuple[Hashable, int, int], Predictor] = {}
        self._adders: dict[Hashable, tuple[Callable, Callable]] = {}

    def with_model(self, model: LoadedModel) -> 'Runner':
        """The same for a model that differs in its parameters alone; what is compiled is shared."""
        other = copy.copy(self)
        other.model = model
        return other

    def run(
        self,
        name: Hashable,
        forward: Forward,
        features: Features,
        *,
        inputs: Collection[str] = INPUTS,
        per_token: Collection[str] = (),
        most: int = 0,
        title: str = '',
        advance: Advance | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """The outputs of `forward` for each row, whatever else is computed beside it but for rounding.

        Short sequences share rows where that saves padding (data/packing_plan.py), by `features` alone, on a CPU by its
        cores, too.

        Args:
          name: of the function: one of the same name is compiled once for each shape, and must be the same.
          forward: (params, batch) -> outputs by name, whose first dimension is that of the rows.
          features: the rows; no sequence longer than the model's positions.
          inputs: the arrays of a batch that `forward` takes.
          per_token: outputs whose next dimension is that of the positions, so that padding is cut off.
          most: above 0: at most so many rows at a time, for outputs that are large, or of what the encoder computes on
            its way; then none share one.
          title: of the progress bar that a person sees where it takes long; '' for none.
          advance: told, batch by batch, how many more rows are done, in place of that bar.

        Returns:
          {name of the output: an array for each row}, in the order of the rows.
        """
        plan = self._plan(features, most)
        key, rows = (name, plan.size, plan.count), plan.size * plan.count
        if key not in self._predictors:
            self._predictors[key] = Predictor(
                forward if plan.count == 1 else _packed(forward, plan.count),
                self.model.mesh,
                inputs=inputs,
                per_token=per_token,
                batch_size=rows,
                shapes=self.lengths,
                pad_id=self.model.tokenizer.pad_id,
            )
        with telling(advance, title, len(features)) as tell:
            return self._predictors[key].outputs(self.model.params, features, advance=tell, batches=plan.batches())

    def _plan(self, features: Features, most: int) -> PackingPlan:
        """Which rows are computed together; the rows of a batch are a multiple of the mesh's row shards."""
        shards = row_shards(self.model.mesh)

        def whole(size: int, length: float) -> int:
            return -(-min(size, self._cached(length)) // shards) * shards

        lengths = features.lengths
        mean = features.choices * lengths.sum() / max(1, len(lengths))
        size = whole(self._size(len(features), most or self._sizes[-1]), mean)
        if most or features.choices > 1:
            return one_per_row(lengths, self.lengths, size)
        # About as many sequences at a time as without sharing.
        half = (*(size for size in _FEW if size < self._sizes[-1] // 2), max(1, self._sizes[-1] // 2))
        sizes = lambda length: tuple(dict.fromkeys(whole(size, length) for size in half))  # noqa: E731
        config = self.model.config
        return cheapest_plan(lengths, self.lengths, size, sizes, Cost.of(config.width, config.num_layers))

    def _cached(self, length: float) -> int:
        """The rows of so many tokens that are computed at a time at most."""
        if self.model.mesh.devices.flat[0].platform != 'cpu':
            return self._sizes[-1]
        return max(1, int(_CACHED * available_cores() / max(1, length)))

    def total(
        self,
        name: Hashable,
        forward: Forward,
        features: Features,
        *,
        inputs: Collection[str] = INPUTS,
        most: Callable[[int], int] | None = None,
        params: Any = None,
        advance: Advance = no_op,
    ) -> dict[str, np.ndarray]:
        """The sum over all batches of what `forward` gives for each, added up on the devices.

        Args:
          name, forward, features, inputs: see `run`; but the outputs are sums over the rows of a batch, in which empty
            rows, of padding alone, count for nothing.
          most: the most rows of a batch, by its padded length.
          params: for `forward`; None for the model's.
          advance: told, batch by batch, how many more rows are done.

        Returns:
          {name of the output: its sum}.
        """
        mesh = self.model.mesh
        sharding = batch_sharding(mesh)
        if name not in self._adders:
            add = lambda p, batch, total: jax.tree.map(jnp.add, total, forward(p, batch))  # noqa: E731
            first = jax.jit(forward, out_shardings=replicated(mesh))
            self._adders[name] = first, jax.jit(add, out_shardings=replicated(mesh))
        first, add = self._adders[name]
        params, total = self.model.params if params is None else params, None
        for rows, length in self._batches(features.lengths, most or (lambda length: self._sizes[-1])):
            batch = features.batch(rows[local_rows(sharding, len(rows))], length, self.model.tokenizer.pad_id)
            arrays = global_arrays({name: batch[name] for name in inputs}, sharding, len(rows))
            with mesh_context(mesh):
                total = first(params, arrays) if total is None else add(params, arrays, total)
            advance(int((rows >= 0).sum()))
        return jax.device_get(total)

    def _batches(self, lengths: np.ndarray, most: Callable[[int], int]) -> Iterator[tuple[np.ndarray, int]]:
        """(rows, padded length) of batches that see every row once; empty places, with which their number is a multiple
        of the mesh's row shards, are -1. What is left of a length goes to the next one of as many rows a batch."""
        shards, bucket = row_shards(self.model.mesh), find_buckets(lengths, self.lengths)
        waiting, size, length = np.zeros(0, np.int64), 0, 0

        def rest() -> Iterator[tuple[np.ndarray, int]]:
            if len(waiting):
                yield np.pad(waiting, (0, size - len(waiting)), constant_values=-1), length

        for number in np.unique(bucket):
            here = -(-self._size(len(lengths), most(self.lengths[number])) // shards) * shards
            if here != size:
                yield from rest()
                waiting = waiting[:0]
            waiting, size, length = (
                np.concatenate([waiting, np.flatnonzero(bucket == number)]),
                here,
                self.lengths[number],
            )
            for begin in range(0, len(waiting) - size + 1, size):
                yield waiting[begin : begin + size], length
            waiting = waiting[len(waiting) // size * size :]
        yield from rest()

    def _size(self, rows: int, most: int) -> int:
        """Rows of a batch: few for few sequences, at most `most`."""
        return min(size_of(rows, self._sizes), most)


def _packed(forward: Forward, count: int) -> Forward:
    def packed(params: Any, batch: Batch) -> Mapping[str, jax.Array]:
        with packed_rows(count):
            return forward(params, batch)

    return packed
