"""Tests the measured changes of layers for known parameters, hidden states and attention."""

import types

import jax
import numpy as np
import pytest

from bertjax.attention_analysis.changes import (
    change_rows,
    change_sums,
    check_comparable,
    parameter_changes,
)
from bertjax.errors import UserError


def tree(stacked: bool, query: float = 1.0) -> dict:
    """Makes an encoder of two blocks with kernels of ones; the second block's query kernel is `query`."""
    query = np.stack([np.ones((2, 3)), np.full((2, 3), query)])
    layers = {
        'attention': {'query': {'kernel': query, 'bias': np.zeros((2, 3))}},
        'mlp': {'gate': {'kernel': np.zeros((2, 7))}},
        'mlp_norm': {'scale': np.ones((2, 4))},
    }
    embeddings = {'token': {'embedding': np.ones((5, 2))}}
    blocks = {f'layers_{i}': jax.tree.map(lambda x, i=i: x[i], layers) for i in range(2)}
    encoder = {'embeddings': embeddings, **({'layers': layers} if stacked else blocks)}
    return {'encoder': encoder, 'head': {'kernel': np.ones(3)}}


@pytest.mark.parametrize('stacked', [True, False])
def test_parameter_changes_are_relative_distances(stacked):
    """The layers of a model may be stacked or not. The task head does not count."""
    embeddings, first, second = parameter_changes(tree(True), tree(stacked, query=3.0))
    assert embeddings == {'layer': 0, 'whole': 0.0}
    assert first == {'layer': 1, 'whole': 0.0, 'attention/query': 0.0, 'mlp/gate': 0.0, 'norms': 0.0}
    # 6 weights move from 1 to 3; the layer has 6 + 4 weights of 1.
    assert second == pytest.approx({**first, 'layer': 2, 'whole': (24 / 10) ** 0.5, 'attention/query': 2.0})


def test_changes_of_hidden_states_and_attention():
    mask = np.array([[1, 1, 0]], np.float32)
    hidden = np.zeros((2, 1, 3, 2), np.float32)
    hidden[..., 0] = 1
    other = hidden.copy()
    other[1, 0, 0] = [0, 5]  # The state of [CLS] after the block turns by a right angle.
    other[1, 0, 2] = [-1, 0]  # Padding.
    same, different = np.zeros((1, 1, 2, 3, 3), np.float32), np.zeros((1, 1, 2, 3, 3), np.float32)
    same[..., 0] = different[0, 0, 0, :, 0] = 1
    same[0, 0, :, :, 2] = 1.5e-38  # Half of this value is subnormal, so some devices flush it to 0.
    different[0, 0, 1, :, 1] = 1  # The second head attends to another position.
    states = {'hidden': hidden, 'probabilities': same}, {'hidden': other, 'probabilities': different}
    sums = jax.device_get(jax.jit(change_sums)(*states, mask))
    np.testing.assert_allclose(sums['cosine'], [0, 1], atol=1e-6)  # over two tokens
    np.testing.assert_allclose(sums['cosine_cls'], [0, 1], atol=1e-6)
    np.testing.assert_allclose(sums['divergence'], [[0, 2]], atol=1e-6)
    rows = change_rows([{'layer': 0, 'whole': 0.0}, {'layer': 1, 'whole': 2.0}], sums)
    assert rows[0] == {'layer': 0, 'parameters': {'whole': 0.0}, 'hidden': 0.0, 'hidden_cls': 0.0}
    assert rows[1]['hidden'] == pytest.approx(0.5) and rows[1]['hidden_cls'] == pytest.approx(1)
    assert rows[1]['attention'] == pytest.approx(0.5) and rows[1]['attention_of_heads'] == pytest.approx([0, 1])


def test_models_with_other_embeddings_or_tokenizers_are_refused():
    new = types.SimpleNamespace

    def model(params: dict, fingerprint: str = 'a') -> types.SimpleNamespace:
        sizes, tokenizer = new(num_layers=2, width=2), new(fingerprint=fingerprint)
        return new(params=params, where='after', config=sizes, tokenizer=tokenizer)

    check_comparable(model(tree(True)), model(tree(False)))
    small = tree(True)
    small['encoder']['embeddings'] = {'token': {'embedding': np.ones((6, 2))}}
    with pytest.raises(UserError, match='parameters of other shapes'):
        check_comparable(model(small), model(tree(False)))
    with pytest.raises(UserError, match='another tokenizer'):
        check_comparable(model(tree(True), 'b'), model(tree(True)))
