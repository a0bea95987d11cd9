"""Runs functions of a model's parameters on any number of sequences: batched by length, compiled once per shape."""

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
from bertjax.data.packing_plan import Cost, PackingPlan, choose_batch_rows, choose_plan, plan_single_rows
from bertjax.loading.load_model import LoadedModel
from bertjax.model.packed_encoder import packed_rows
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.progress import Advance, ensure_progress
from bertjax.train.predict import Predictor, no_op
from bertjax.train.step import Batch

# The padded lengths, up to the model's number of positions. A length is compiled when it is first needed. With steps of
# a third to a half, 10 to 20 % of the positions are padding if lengths are evenly distributed.
LENGTHS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_SMALL_SIZES = (1, 8)  # The batch sizes for a few sequences.
_CACHED = 1536  # Positions per CPU core; the activations of more do not fit in its cache (docs/performance.md).

Forward = Callable[[Any, Batch], Mapping[str, jax.Array]]


class Runner:
    """Runs functions of a model's parameters on sequences.

    Args:
      model: The model whose parameters the functions get.
      batch_size: The maximum batch size; a CPU computes long rows in smaller batches.
    """

    def __init__(self, model: LoadedModel, *, batch_size: int = 64):
        longest = model.config.max_positions
        self.model = model
        self.lengths = (*(length for length in LENGTHS if length < longest), longest)
        self._sizes = (*(size for size in _SMALL_SIZES if size < batch_size), batch_size)
        self._predictors: dict[tuple[Hashable, int, int], Predictor] = {}
        self._adders: dict[Hashable, tuple[Callable, Callable]] = {}

    def with_model(self, model: LoadedModel) -> 'Runner':
        """Returns a runner of a model that differs only in its parameters; both share compiled functions."""
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
        max_rows: int = 0,
        title: str = '',
        advance: Advance | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Computes the outputs of `forward` for each row; up to rounding they do not depend on the other rows.

        Short sequences are packed into shared rows if that saves padding (data/packing_plan.py). The layout depends
        only on `features` and, on a CPU, on the number of cores.

        Args:
          name: The name of the function; a name stands for one function, which is compiled once per shape.
          forward: (params, batch) -> outputs by name, whose first dimension is the rows.
          features: The rows; no sequence is longer than the model's number of positions.
          inputs: The arrays of a batch that `forward` uses.
          per_token: The outputs whose second dimension is the positions; their padding is cut off.
          max_rows: If > 0, the maximum batch size, for outputs that are large or that come from within the encoder;
            sequences then share no rows.
          title: The title of the progress bar, which appears after two seconds; '' for none.
          advance: Called after each batch with the number of newly finished rows, in place of the bar.

        Returns:
          {name of the output: an array for each row}, in the order of the rows.
        """
        plan = self._plan(features, max_rows)
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
        with ensure_progress(advance, title, len(features)) as tell:
            return self._predictors[key].outputs(self.model.params, features, advance=tell, batches=plan.batches())

    def _plan(self, features: Features, max_rows: int) -> PackingPlan:
        """Plans the batches; their sizes are multiples of the mesh's row shards."""
        shards = row_shards(self.model.mesh)

        def round_up(size: int, length: float) -> int:
            return -(-min(size, self._cached(length)) // shards) * shards

        lengths = features.lengths
        mean = features.choices * lengths.sum() / max(1, len(lengths))
        size = round_up(self._size(len(features), max_rows or self._sizes[-1]), mean)
        if max_rows or features.choices > 1:
            return plan_single_rows(lengths, self.lengths, size)
        # Half the rows, so that a batch has about as many sequences as without packing.
        half = (*(size for size in _SMALL_SIZES if size < self._sizes[-1] // 2), max(1, self._sizes[-1] // 2))
        sizes = lambda length: tuple(dict.fromkeys(round_up(size, length) for size in half))  # noqa: E731
        config = self.model.config
        return choose_plan(lengths, self.lengths, size, sizes, Cost.of(config.width, config.num_layers))

    def _cached(self, length: float) -> int:
        """Returns the maximum batch size for rows of `length` tokens."""
        if self.model.mesh.devices.flat[0].platform != 'cpu':
            return self._sizes[-1]
        return max(1, int(_CACHED * available_cores() / max(1, length)))

    def sum(
        self,
        name: Hashable,
        forward: Forward,
        features: Features,
        *,
        inputs: Collection[str] = INPUTS,
        max_rows: Callable[[int], int] | None = None,
        params: Any = None,
        advance: Advance = no_op,
    ) -> dict[str, np.ndarray]:
        """Sums the outputs of `forward` over all batches on the devices.

        Args:
          name, forward, features, inputs: See `run`; here the outputs are sums over the rows of a batch, and rows of
            padding must add nothing.
          max_rows: Returns the maximum batch size for a padded length.
          params: The parameters for `forward`; None for those of the model.
          advance: Called after each batch with the number of newly finished rows.

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
        for rows, length in self._batches(features.lengths, max_rows or (lambda length: self._sizes[-1])):
            batch = features.batch(rows[local_rows(sharding, len(rows))], length, self.model.tokenizer.pad_id)
            arrays = global_arrays({name: batch[name] for name in inputs}, sharding, len(rows))
            with mesh_context(mesh):
                total = first(params, arrays) if total is None else add(params, arrays, total)
            advance(int((rows >= 0).sum()))
        return jax.device_get(total)

    def _batches(self, lengths: np.ndarray, max_rows: Callable[[int], int]) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (rows, padded length) of batches that cover every row once.

        A batch is padded with -1 to a multiple of the mesh's row shards. The rows that do not fill a batch of their
        length move to the next length if its batches have the same size.
        """
        shards, bucket = row_shards(self.model.mesh), find_buckets(lengths, self.lengths)
        waiting, size, length = np.zeros(0, np.int64), 0, 0

        def rest() -> Iterator[tuple[np.ndarray, int]]:
            if len(waiting):
                yield np.pad(waiting, (0, size - len(waiting)), constant_values=-1), length

        for number in np.unique(bucket):
            next_size = -(-self._size(len(lengths), max_rows(self.lengths[number])) // shards) * shards
            if next_size != size:
                yield from rest()
                waiting = waiting[:0]
            waiting, size, length = (
                np.concatenate([waiting, np.flatnonzero(bucket == number)]),
                next_size,
                self.lengths[number],
            )
            for begin in range(0, len(waiting) - size + 1, size):
                yield waiting[begin : begin + size], length
            waiting = waiting[len(waiting) // size * size :]
        yield from rest()

    def _size(self, rows: int, max_rows: int) -> int:
        """Returns the batch size for `rows` sequences, at most `max_rows`."""
        return min(choose_batch_rows(rows, self._sizes), max_rows)


def _packed(forward: Forward, count: int) -> Forward:
    def packed(params: Any, batch: Batch) -> Mapping[str, jax.Array]:
        with packed_rows(count):
            return forward(params, batch)

    return packed
