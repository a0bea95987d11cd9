"""Tests the batches of a Runner."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.features import INPUTS, FeatureBuilder, Features
from bertjax.inference.runner import Runner
from bertjax.parallel.mesh import make_mesh
from bertjax.training.predict import no_op

MESH = {'data': -1, 'fsdp': 1, 'tensor': 1}


def runner(devices: int = 1, batch_size: int = 6) -> Runner:
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(max_positions=96, width=16, num_layers=2),
        tokenizer=types.SimpleNamespace(pad_id=0),
        mesh=make_mesh(MESH, jax.devices()[:devices]),
        module=None,  # The functions of these tests need no module.
        params=np.float32(2),
        max_length=96,
    )
    return Runner(model, batch_size=batch_size)


def rows(lengths: list[int]) -> Features:
    builder = FeatureBuilder()
    for i, length in enumerate(lengths):
        builder.add_sequence(np.full(length, i + 1))
        builder.add_row(i)
    return builder.build()


def count_tokens(params, batch) -> dict:
    by_text = jnp.bincount(batch['input_ids'].ravel(), length=40)
    return {'tokens': params * batch['attention_mask'].sum(), 'by_text': by_text}


@pytest.mark.parametrize('devices', [1, 4])
def test_a_sum_covers_every_row_once(devices: int):
    lengths = np.random.default_rng(0).integers(3, 97, 30).tolist()
    max_rows, finished = (lambda length: 300 // length), []
    test_runner = runner(devices)
    options = {'inputs': INPUTS, 'max_rows': max_rows, 'params': 2, 'advance': finished.append}
    total = test_runner.sum(count_tokens, rows(lengths), **options)
    assert total['tokens'] == 2 * sum(lengths) and sum(finished) == 30
    np.testing.assert_array_equal(total['by_text'][1:31], lengths)
    for batch, length in test_runner._batches(np.array(lengths), max_rows):
        assert len(batch) % devices == 0 and len(batch) <= max(6, max_rows(length)) + devices - 1
        assert max(lengths[i] for i in batch if i >= 0) <= length


def test_short_sequences_are_not_padded_to_the_longest_length(monkeypatch: pytest.MonkeyPatch):
    padded_lengths, make_batch = [], Features.batch

    def record_length(features: Features, rows: np.ndarray, length: int, pad_id: int) -> dict:
        padded_lengths.append(length)
        return make_batch(features, rows, length, pad_id)

    monkeypatch.setattr(Features, 'batch', record_length)
    test_runner = runner()
    make_forward = lambda module: lambda params, batch: {'ids': batch['input_ids']}  # noqa: E731
    outputs = test_runner.run('ids', make_forward, rows([5, 12, 3]), per_token=('ids',))
    assert set(padded_lengths) == {16} and [len(ids) for ids in outputs['ids']] == [5, 12, 3]
    options = {'inputs': INPUTS, 'max_rows': lambda length: 64, 'params': 2, 'advance': no_op}
    test_runner.sum(count_tokens, rows([5, 7, 3]), **options)
    assert set(padded_lengths) == {16, 8}
