"""Muon for the matrices of the blocks, AdamW for all other parameters (https://kellerjordan.github.io/posts/muon)."""

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertjax.optim.masks import STACKED, is_stacked, path_names
from bertjax.optim.trainable import combine, partition
from bertjax.parallel.partition import constrain, platform, shard_count

# The coefficients and the number of steps of the quintic Newton-Schulz iteration, from the post linked above.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


class MuonAdamState(NamedTuple):
    """The states of Muon and Adam, each for its part of the parameters."""

    muon: optax.TraceState
    adam: optax.ScaleByAdamState


def is_block_kernel(names: tuple[str, ...]) -> bool:
    """Returns whether the parameter at this path is a matrix of an encoder block, stacked or not."""
    return names[0] == 'encoder' and names[1].startswith(STACKED) and names[-1] == 'kernel'


def scale_by_muon(momentum: float, b1: float, b2: float, eps: float, dtype: str) -> optax.GradientTransformation:
    """Scales the updates of block kernels by Muon (orthogonalized Nesterov momentum), and all other updates by Adam.

    The update of a matrix with I inputs and O outputs is multiplied by sqrt(max(1, O / I)), as in optax.contrib.muon.
    The operands of the matrix products have the dtype `dtype`; the reference implementation uses bfloat16.
    """
    muon, adam = optax.trace(momentum, nesterov=True), optax.scale_by_adam(b1, b2, eps)

    def init(params: Any) -> MuonAdamState:
        kernels, rest = partition(params, is_block_kernel)
        return MuonAdamState(muon.init(kernels), adam.init(rest))

    def update(grads: Any, state: MuonAdamState, params: Any = None) -> tuple[Any, MuonAdamState]:
        del params
        kernels, rest = partition(grads, is_block_kernel)
        kernels, muon_state = muon.update(kernels, state.muon)
        rest, adam_state = adam.update(rest, state.adam)
        return combine(orthogonalize_kernels(kernels, dtype), rest), MuonAdamState(muon_state, adam_state)

    return optax.GradientTransformation(init, update)


def orthogonalize_kernels(kernels: Any, dtype: str = 'float32') -> Any:
    """Orthogonalizes each matrix in the tree of kernels, [I, O], and multiplies it by sqrt(max(1, O / I)).

    Query, key and value of each layer are separate matrices. Matrices with more inputs than outputs are transposed. All
    matrices of one shape form one array, so the iteration compiles once per shape. The array is split over the devices.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(kernels)
    matrices = [_as_matrices(path, kernel) for path, kernel in leaves]
    wide = [x if x.shape[1] <= x.shape[2] else x.mT for x in matrices]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, x in enumerate(wide):
        groups.setdefault(x.shape[1:], []).append(index)
    # XLA:CPU multiplies single matrices faster than batches: 1.3 times in float32, two to four times in bfloat16.
    one_by_one = platform() == 'cpu' and shard_count('act_matrices') == 1
    function = functools.partial(_orthogonalize, dtype)
    for members in groups.values():
        batch = constrain(jnp.concatenate([wide[i] for i in members]), 'act_matrices', None, None)
        batch = jax.lax.map(function, batch) if one_by_one else jax.vmap(function)(batch)
        batch = constrain(batch, 'act_matrices', None, None)
        bounds = list(itertools.accumulate(len(wide[i]) for i in members))[:-1]
        for i, x in zip(members, jnp.split(batch, bounds), strict=True):
            wide[i] = x
    results = []
    for (_, kernel), x, orthogonal in zip(leaves, matrices, wide, strict=True):
        orthogonal = orthogonal if orthogonal.shape == x.shape else orthogonal.mT
        results.append(orthogonal.reshape(kernel.shape) * math.sqrt(max(1.0, x.shape[2] / x.shape[1])))
    return jax.tree_util.tree_unflatten(structure, results)


def _orthogonalize(dtype: str, x: jax.Array) -> jax.Array:
    """Moves the singular values of a float32 matrix x [I, O], I <= O, close to 1 (0.7 to 1.2), with float32 sums."""
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    a, b, c = COEFFICIENTS
    x = x / (jnp.linalg.norm(x) + 1e-8)
    for _ in range(STEPS):
        narrow = x.astype(dtype)
        gram = dot('ij,kj->ik', narrow, narrow)
        narrow_gram = gram.astype(dtype)  # symmetric, so the product in the next line is its square
        polynomial = b * gram + c * dot('ij,kj->ik', narrow_gram, narrow_gram)
        x = a * x + dot('ij,jk->ik', polynomial.astype(dtype), narrow)
    return x


def _as_matrices(path: tuple[Any, ...], kernel: jax.Array) -> jax.Array:
    """Reshapes a kernel of a block to [N, I, O], where N is the number of stacked layers, or 1.

    Kernels have the shapes [D, H, K] (query, key, value), [H, K, D] (output of attention), [D, F] and [F, D] (MLP).
    """
    layers, shape = (len(kernel), kernel.shape[1:]) if is_stacked(path) else (1, kernel.shape)
    inputs = math.prod(shape[:-1]) if path_names(path)[-2] == 'output' else shape[0]
    return kernel.reshape(layers, inputs, -1)


def scale_adam_rate(ratio: float) -> optax.GradientTransformation:
    """Multiplies the updates of Adam's parameters by `ratio`: Adam's learning rate divided by Muon's learning rate."""

    def update(updates: Any, params: Any) -> Any:
        del params
        kernels, rest = partition(updates, is_block_kernel)
        return combine(kernels, jax.tree.map(lambda u: u * ratio, rest))

    return optax.stateless(update)
