"""Tests the embedding rows of new pieces."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bertjax.convert.vocabulary import add_piece_rows, set_embedding_rows
from bertjax.model.config import BertConfig


def test_new_rows_are_means_and_other_rows_are_unchanged():
    rng = np.random.default_rng(0)
    table, bias = rng.normal(size=(128, 4)).astype(np.float32), rng.normal(size=128).astype(np.float32)
    table[120:], bias[120:] = 0, 0  # Padding rows.
    mlm = {'bias': bias, 'decoder': {'embedding': 2 * table}}
    params = {'encoder': {'embeddings': {'token': {'embedding': table}, 'norm': 1}, 'layers': 2}, 'mlm': mlm}
    model = BertConfig(vocab_size=130, width=4, num_heads=1)
    grown = add_piece_rows(params, model, {1: [7, 8], 120: [9], 129: [0, 1, 2]})
    new = grown['encoder']['embeddings']['token']['embedding']
    assert new.shape == (256, 4) and grown['mlm']['bias'].shape == (256,)
    np.testing.assert_array_equal(new[1], table[7:9].mean(0))
    np.testing.assert_array_equal(new[120], table[9])
    np.testing.assert_array_equal(new[129], table[:3].mean(0))  # The mean of old rows, not of new ones.
    np.testing.assert_array_equal(grown['mlm']['decoder']['embedding'], 2 * new)  # An untied decoder grows too.
    assert grown['mlm']['bias'][1] == bias[7:9].mean()
    others = np.setdiff1d(np.arange(128), [1, 120])
    np.testing.assert_array_equal(new[others], table[others])
    assert not new[130:].any() and grown['encoder']['layers'] == 2 and grown['encoder']['embeddings']['norm'] == 1
    assert params['encoder']['embeddings']['token']['embedding'] is table


def test_rows_are_set_to_given_embeddings():
    before = np.full((128, 4), 7, np.float32)
    params = {'encoder': {'embeddings': {'token': {'embedding': before}}}, 'mlm': {'bias': np.ones(128)}}
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    table = set_embedding_rows(params, np.array([2, 5, 6]), matrix)['encoder']['embeddings']['token']['embedding']
    np.testing.assert_array_equal(table[[2, 5, 6]], matrix)
    assert (np.delete(table, [2, 5, 6], 0) == 7).all() and (before == 7).all()
    sharding = NamedSharding(Mesh(jax.devices(), ('data',)), PartitionSpec('data'))
    params['encoder']['embeddings']['token']['embedding'] = jax.device_put(before, sharding)
    sharded = set_embedding_rows(params, np.array([2, 5, 6]), matrix)['encoder']['embeddings']['token']['embedding']
    np.testing.assert_array_equal(sharded, table)
    assert sharded.sharding == sharding
