"""Evaluation on held-out examples. Every evaluation uses the same examples and masks."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from bertjax.data.loader import Examples, global_arrays, local_rows
from bertjax.metrics.rows import WeightedSums, add_sums, pretraining_values
from bertjax.parallel.partition import batch_sharding, mesh_context
from bertjax.parallel.zero1 import unshard

# on_compile('length 128') -> a context manager that surrounds the compilation.
OnCompile = Callable[[str], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass
class Evaluator:
    """Computes the values of a metrics row, such as mean losses, over the first `count` examples."""

    # (params, batch) -> {name: (sum, weight)}, jitted (training/step.py)
    eval_step: Callable[[Any, Mapping[str, jax.Array]], dict[str, tuple[jax.Array, jax.Array]]]
    examples: Examples
    count: int
    batch_size: int  # rows of a batch; the last batch is padded with rows of weight 0
    mesh: Mesh
    values: Callable[[WeightedSums], dict[str, float | None]] = pretraining_values  # sums -> values of a metrics row
    split: str = 'heldout'  # the name of the examples in metrics rows
    _is_compiled: bool = dataclasses.field(default=False, init=False)

    def batches(self) -> Iterator[dict[str, jax.Array]]:
        """Yields the batches on the mesh, in order."""
        sharding = batch_sharding(self.mesh)
        local = local_rows(sharding, self.batch_size)
        for first in range(0, self.count, self.batch_size):
            numbers = first + local.astype(np.int64)
            rows = self.examples.batch(np.minimum(numbers, self.count - 1))
            if numbers[-1] >= self.count:  # rows of zeros, which have no effect on a loss, pad the last batch
                count = int((numbers < self.count).sum())
                rows = {name: np.concatenate([x[:count], np.zeros_like(x[count:])]) for name, x in rows.items()}
            yield global_arrays(rows, sharding, self.batch_size)

    def sums(self, params: Any, on_compile: OnCompile = contextlib.nullcontext) -> dict[str, tuple[float, float]]:
        """Computes {name: (sum, weight)} over the first `count` examples, with one transfer from the devices."""
        parts, params = [], unshard(params)
        with mesh_context(self.mesh):
            for batch in self.batches():
                with contextlib.nullcontext() if self._is_compiled else on_compile('the evaluation'):
                    parts.append(self.eval_step(params, batch))
                self._is_compiled = True
        return add_sums(jax.device_get(parts))

    def run(
        self, params: Any, on_compile: OnCompile = contextlib.nullcontext
    ) -> tuple[dict[str, float | None], float | None]:
        """Returns the values of a metrics row, and the value `loss`, which selects the best checkpoint."""
        values = self.values(self.sums(params, on_compile))
        return values, values['loss']
