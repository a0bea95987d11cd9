"""How sequences become batches: each once, no longer than it must be, in rows that the mesh can share out."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.data.features import FeatureBuilder, Features
from bertjax.inference.runner import Runner
from bertjax.parallel.mesh import make_mesh

MESH = {'data': -1, 'fsdp': 1, 'tensor': 1}


def runner(devices: int = 1, batch_size: int = 6) -> Runner:
    model = types.SimpleNamespace(
        config=types.SimpleNamespace(max_positions=96, width=16, num_layers=2),
        tokenizer=types.SimpleNamespace(pad_id=0),
        mesh=make_mesh(MESH, jax.devices()[:devices]),
        params=np.float32(2),
    )
    return Runner(model, batch_size=batch_size)


def rows(lengths: list[int]) -> Features:
    builder = FeatureBuilder()
    for i, length in enumerate(lengths):
        builder.add_sequence(np.full(length, i + 1))
        builder.add_row(i)
    return builder.build()


def summed(params, batch) -> dict:
    by_text = jnp.bincount(batch['input_ids'].ravel(), length=40)
    return {'tokens': params * batch['attention_mask'].sum(), 'by_text': by_text}


@pytest.mark.parametrize('devices', [1, 4])
def test_a_total_sees_every_row_once(devices: int):
    lengths = np.random.default_rng(0).integers(3, 97, 30).tolist()
    most, told = (lambda length: 300 // length), []
    of = runner(devices)
    total = of.total('sum', summed, rows(lengths), most=most, advance=told.append)
    assert total['tokens'] == 2 * sum(lengths) and sum(told) == 30
    np.testing.assert_array_equal(total['by_text'][1:31], lengths)
    for chosen, length in of._batches(np.array(lengths), most):
        assert len(chosen) % devices == 0 and len(chosen) <= max(6, most(length)) + devices - 1
        assert max(lengths[i] for i in chosen if i >= 0) <= length


def test_what_is_short_is_not_padded_to_the_longest(monkeypatch: pytest.MonkeyPatch):
    seen, batch = [], Features.batch

    def noted(features: Features, rows: np.ndarray, length: int, pad_id: int) -> dict:
        seen.append(length)
        return batch(features, rows, length, pad_id)

    monkeypatch.setattr(Features, 'batch', noted)
    of = runner()
    found = of.run('ids', lambda params, batch: {'ids': batch['input_ids']}, rows([5, 12, 3]), per_token=('ids',))
    assert set(seen) == {16} and [len(ids) for ids in found['ids']] == [5, 12, 3]
    of.total('sum', summed, rows([5, 7, 3]))
    assert set(seen) == {16, 8}
