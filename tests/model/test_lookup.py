"""Tests that the gradient of a lookup is summed in a fixed order: against float64, and compiled for a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_cases import hopper

from bertjax.model.lookup import GROUP, scatter_lookup, sorted_lookup, sum_rows_by_id
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import replicated

__all__ = ['hopper']


@pytest.mark.parametrize('kind', ['text', 'one', 'each', 'few'])
def test_every_id_has_the_sum_of_its_rows(kind):
    rng, V, D = np.random.default_rng(0), 300, 8
    N = 5 * GROUP + 17
    ids = {
        'text': np.minimum(rng.zipf(1.3, N) - 1, V + 5),  # Ids outside the table are ignored.
        'one': np.full(N, 7),
        'each': np.arange(N) % V,
        'few': np.arange(5),
    }[kind].astype(np.int32)
    rows = rng.standard_normal((len(ids), D))
    expected = np.zeros((V, D))
    np.add.at(expected, ids[ids < V], rows[ids < V])
    summed = jax.jit(sum_rows_by_id, static_argnums=2)(rows.astype(np.float32), ids, V)
    np.testing.assert_allclose(np.asarray(summed), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize('lookup', [scatter_lookup, pytest.param(sorted_lookup, marks=pytest.mark.slow)])
def test_in_bfloat16_only_the_sum_is_rounded(lookup):
    """A running sum of ones in bfloat16 would stop growing at 256."""
    ids, table = jnp.zeros((4, 250), jnp.int32), jnp.zeros((20, 4), jnp.bfloat16)
    gradient = jax.grad(lambda table: lookup(table, ids).astype(jnp.float32).sum())(table)
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(gradient, np.float32), np.eye(20, 1).repeat(4, 1) * 1000)


@pytest.mark.slow
def test_a_gpu_program_has_no_atomic_additions(hopper):
    sharding = replicated(make_mesh({'data': 1, 'fsdp': 1, 'tensor': 1}, hopper(1)))
    shapes = (((4096, 64), jnp.bfloat16), ((4096,), jnp.int32))
    inputs = [jax.ShapeDtypeStruct(*shape, sharding=sharding) for shape in shapes]
    options = {'xla_gpu_exclude_nondeterministic_ops': True}
    text = jax.jit(lambda x, i: sum_rows_by_id(x, i, 30592)).lower(*inputs).compile(compiler_options=options).as_text()
    assert 'scatter(' in text and 'unique_indices=true' in text
    assert 's32[262144' not in text  # XLA's deterministic scatter would sort this many elements.
