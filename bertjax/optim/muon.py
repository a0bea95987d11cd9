"""Muon for the matrices of the blocks, AdamW for all other parameters (https://kellerjordan.github.io/posts/muon)."""

import math
from typing import Any, NamedTuple

import jax
import optax
from optax import contrib

from bertjax.optim.masks import STACKED, is_stacked, path_names
from bertjax.optim.selection import combine, partition

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic Newton-Schulz step, from the same source
NS_STEPS = 5


class MuonAdamState(NamedTuple):
    """The states of both optimisers, each for its own part of the parameters."""

    muon: contrib.MuonState
    adam: optax.ScaleByAdamState


def is_block_kernel(names: tuple[str, ...]) -> bool:
    """Whether the parameter with these path names is a matrix of a block of the encoder, stacked or not."""
    return names[0] == 'encoder' and names[1].startswith(STACKED) and names[-1] == 'kernel'


def matrix_dimensions(path: tuple[Any, ...], kernel: jax.Array) -> contrib.MuonDimensionNumbers:
    """Which dimensions of a block's kernel are the rows of its matrix, and which are the columns.

    Query, key and value have [D, H, K], the attention's output [H, K, D], the MLP [D, F] and [F, D]; stacked kernels
    have the layers in front, each of which is a matrix of its own.
    """
    first = 1 if is_stacked(path) else 0
    axes = tuple(range(first, kernel.ndim))
    inputs = len(axes) - 1 if path_names(path)[-2] == 'output' else 1
    return contrib.MuonDimensionNumbers(axes[:inputs], axes[inputs:])


def scale_by_muon(momentum: float, b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Orthogonalised Nesterov momentum for the kernels of the blocks, Adam's direction for the rest.

    The update of an I x O matrix is multiplied by sqrt(max(1, I / O)).

    Args:
      momentum: Muon's, in [0, 1).
      b1, b2, eps: Adam's.
    """

    def dimensions(kernels: Any) -> Any:
        return jax.tree_util.tree_map_with_path(matrix_dimensions, kernels)

    def scale(path: tuple[Any, ...], update: jax.Array) -> jax.Array:
        numbers = matrix_dimensions(path, update)
        rows, columns = (math.prod(update.shape[i] for i in axes) for axes in numbers)
        return update * math.sqrt(max(1.0, rows / columns))

    muon = contrib.scale_by_muon(NS_COEFFICIENTS, NS_STEPS, momentum, weight_dimension_numbers=dimensions)
    adam = optax.scale_by_adam(b1, b2, eps)

    def init(params: Any) -> MuonAdamState:
        kernels, rest = partition(params, is_block_kernel)
        return MuonAdamState(muon.init(kernels), adam.init(rest))

    def update(grads: Any, state: MuonAdamState, params: Any = None) -> tuple[Any, MuonAdamState]:
        del params
        kernels, rest = partition(grads, is_block_kernel)
        kernels, muon_state = muon.update(kernels, state.muon)
        kernels = jax.tree_util.tree_map_with_path(scale, kernels)
        rest, adam_state = adam.update(rest, state.adam)
        return combine(kernels, rest), MuonAdamState(muon_state, adam_state)

    return optax.GradientTransformation(init, update)


def scale_adam_rate(ratio: float) -> optax.GradientTransformation:
    """Multiplies the updates of what Adam trains, so that its learning rate is `ratio` times that of Muon."""

    def update(updates: Any, state: optax.EmptyState, params: Any = None) -> tuple[Any, optax.EmptyState]:
        del params
        kernels, rest = partition(updates, is_block_kernel)
        return combine(kernels, jax.tree.map(lambda u: u * ratio, rest)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
