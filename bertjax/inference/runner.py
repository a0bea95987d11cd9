"""Runs forward functions of a model on any number of sequences.

Sequences are batched by length. Each function is compiled once per shape.
"""

import copy
import itertools
import pathlib
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config.inference import InputKeys
from bertjax.cores import available_cores
from bertjax.data.features import INPUTS, Features
from bertjax.data.length_buckets import find_buckets
from bertjax.data.loader import global_arrays, local_rows
from bertjax.data.packing_plan import Cost, PackingPlan, choose_batch_rows, choose_plan, plan_single_rows
from bertjax.errors import UserError
from bertjax.loading.load_model import LoadedModel, load_requested_model
from bertjax.parallel.mesh import is_cpu, row_shards
from bertjax.parallel.partition import batch_sharding, mesh_context, replicated
from bertjax.progress import Advance, ensure_progress
from bertjax.training.predict import Forward, Predictor

# The padded lengths, up to the model's number of positions. A length is compiled when it is first needed. From 48
# on, each length is a third to a half longer than the one before it. If the lengths of the sequences are uniformly
# distributed, 10 to 20 % of the positions are padding.
LENGTHS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_SMALL_SIZES = (1, 8)  # the batch sizes for small numbers of sequences
# The maximum number of positions per CPU core. The activations of more positions do not fit in the core's cache.
_CACHED_POSITIONS = 1536


class Runner:
    """Runs forward functions of a model on sequences, in batches of up to `batch_size` rows.

    The batch size is rounded up to a multiple of the mesh's row shards. A CPU computes long rows in smaller batches.

    Attributes:
      max_length: The length in tokens to which users of the runner truncate texts.

    Raises:
      UserError: `max_length` is neither 0 nor from 4 to the model's number of positions. The error calls it `key`.
    """

    def __init__(self, model: LoadedModel, *, batch_size: int = 64, max_length: int = 0, key: str = 'max_length'):
        longest = model.config.max_positions
        if max_length and not 4 <= max_length <= longest:
            expected = f"4 to {longest}, the model's number of positions"
            raise UserError(key, str(max_length), expected, 'leave it out to use the default of the model')
        self.model, self.max_length = model, max_length or model.max_length
        self._is_cpu = is_cpu(model.mesh)
        self._cost = Cost.of(model.config.width, model.config.num_layers)
        self.lengths = (*(length for length in LENGTHS if length < longest), longest)
        self._sizes = (*(size for size in _SMALL_SIZES if size < batch_size), batch_size)
        self._predictors: dict[tuple[Hashable, int, int], Predictor] = {}

    def with_model(self, model: LoadedModel) -> 'Runner':
        """Returns a runner for a model with the same module. Both runners share compiled functions."""
        other = copy.copy(self)
        other.model = model
        return other

    def run(
        self,
        name: Hashable,
        make_forward: Callable[[nn.Module], Forward],
        features: Features,
        *,
        inputs: Collection[str] = INPUTS,
        per_token: Collection[str] = (),
        max_rows: int = 0,
        title: str = '',
        advance: Advance | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """Computes a forward function for each row. Except for rounding, the outputs of a row depend only on this row.

        Short sequences are packed into shared rows if that costs less (data/packing_plan.py). The layout depends only
        on the arguments, the runner and, on a CPU, the number of cores.

        Args:
          name: The name of the function. Each name must identify one function, which is compiled once per shape.
          make_forward: Maps `model.module`, with `packing` set for packed rows, to a function (params, batch) ->
            {output name: array}. The first axis of an output indexes the rows.
          features: The rows. No sequence may be longer than the model's number of positions.
          inputs: The names of the arrays in `batch`.
          per_token: The names of the outputs whose second axis indexes the positions. Their padding is removed.
          max_rows: The maximum batch size; 0 for the runner's `batch_size`. If > 0, sequences are not packed. Set it
            for large outputs and for outputs from inside the encoder.
          title: The title of the progress bar, which appears after two seconds; '' for no bar.
          advance: Called instead of the bar, with the number of newly finished rows.

        Returns:
          {output name: a list with one array per row}, in the order of the rows.
        """
        plan = self._plan(features, max_rows)
        key, rows = (name, plan.size, plan.count), plan.size * plan.count
        if key not in self._predictors:
            module = self.model.module
            self._predictors[key] = Predictor(
                make_forward(module if plan.count == 1 else module.clone(packing=plan.count)),
                self.model.mesh,
                inputs=inputs,
                per_token=per_token,
                batch_size=rows,
                shapes=self.lengths,
                pad_id=self.model.tokenizer.pad_id,
            )
        with ensure_progress(advance, title, len(features)) as report:
            return self._predictors[key].outputs(self.model.params, features, advance=report, batches=plan.batches())

    def _plan(self, features: Features, max_rows: int) -> PackingPlan:
        """Plans the batches. Their sizes are multiples of the mesh's row shards."""
        shards = row_shards(self.model.mesh)

        def round_up(size: int, length: float) -> int:
            if self._is_cpu:
                size = min(size, max(1, int(_CACHED_POSITIONS * available_cores() / max(1, length))))
            return -(-size // shards) * shards

        lengths = features.lengths
        mean = features.choices * lengths.sum() / max(1, len(lengths))
        size = round_up(min(choose_batch_rows(len(features), self._sizes), max_rows or self._sizes[-1]), mean)
        if max_rows or features.choices > 1:
            return plan_single_rows(lengths, self.lengths, size)
        # Packed batches get half the rows, so that they contain about as many sequences as other batches.
        half = (*(size for size in _SMALL_SIZES if size < self._sizes[-1] // 2), max(1, self._sizes[-1] // 2))
        sizes = lambda length: tuple(dict.fromkeys(round_up(size, length) for size in half))  # noqa: E731
        return choose_plan(lengths, self.lengths, size, sizes, self._cost)

    def sum(
        self,
        forward: Forward,
        features: Features,
        *,
        inputs: Collection[str],
        max_rows: Callable[[int], int],
        params: Any,
        advance: Advance,
    ) -> dict[str, np.ndarray]:
        """Sums the outputs of `forward` over all batches on the devices, and returns the sums as host arrays.

        Args:
          forward: A function (params, batch) -> {output name: sum over the rows of the batch, without padding rows}. It
            is compiled once per shape; JAX recognizes the same function in later calls.
          features, inputs, advance: See `run`.
          max_rows: A function that returns the maximum batch size for a padded length.
        """
        mesh = self.model.mesh
        sharding, compiled = batch_sharding(mesh), jax.jit(forward, out_shardings=replicated(mesh))
        total = None
        for rows, length in self._batches(features.lengths, max_rows):
            batch = features.batch(rows[local_rows(sharding, len(rows))], length, self.model.tokenizer.pad_id)
            arrays = global_arrays({name: batch[name] for name in inputs}, sharding, len(rows))
            with mesh_context(mesh):
                sums = compiled(params, arrays)
                total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            advance(int((rows >= 0).sum()))
        return jax.device_get(total)

    def _batches(self, lengths: np.ndarray, max_rows: Callable[[int], int]) -> Iterator[tuple[np.ndarray, int]]:
        """Yields (rows, padded length) of batches that contain each row once.

        `rows` are row indices, -1 for an empty row. Their number is a multiple of the mesh's row shards. Rows that do
        not fill a batch of their length move to the next length if the batches of both lengths have the same size.
        """
        shards, bucket = row_shards(self.model.mesh), find_buckets(lengths, self.lengths)

        def batch_size(number: int) -> int:
            size = min(choose_batch_rows(len(lengths), self._sizes), max_rows(self.lengths[number]))
            return -(-size // shards) * shards

        for size, numbers in itertools.groupby(np.unique(bucket).tolist(), batch_size):
            rows = np.flatnonzero(np.isin(bucket, [*numbers]))
            for batch, length in plan_single_rows(lengths[rows], self.lengths, size).batches():
                yield np.where(batch < 0, -1, rows[batch]), length


def load_runner(settings: InputKeys, workdir: pathlib.Path) -> Runner:
    """Makes a runner for the model of `load_requested_model`, with the batch size and the length of `settings`."""
    model = load_requested_model(settings, workdir)
    return Runner(model, batch_size=settings.batch_size, max_length=settings.max_length, key='config.max_length')
