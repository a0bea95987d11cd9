"""Tests the weight decay mask."""

import jax
from flax import linen as nn

from bertjax.optim.masks import decay_mask, describe_decay, is_stacked, path_names

BLOCK = [f'attention/{name}/kernel' for name in ('query', 'key', 'value', 'output')] + [
    'mlp/up/kernel',
    'mlp/down/kernel',
]
OUTSIDE = {
    'encoder/embeddings/token/embedding', 'encoder/embeddings/position/embedding',
    'encoder/embeddings/segment/embedding', 'pooler/kernel', 'mlm/dense/kernel', 'nsp/kernel',
}  # fmt: skip


def decaying(params):
    flat = jax.tree_util.tree_flatten_with_path(decay_mask(params))[0]
    return {'/'.join(path_names(path)) for path, decays in flat if decays}, len(flat)


def test_only_matrices_and_embeddings_decay(scanned_boxed, unrolled_boxed):
    names, total = decaying(nn.unbox(scanned_boxed))
    assert names == OUTSIDE | {f'encoder/layers/{name}' for name in BLOCK}
    # 3 embeddings and their norm; 6 projections and 2 norms of a block; pooler; mlm dense, norm and bias; nsp.
    assert total == 5 + 16 + 2 + 5 + 2
    names, _ = decaying(nn.unbox(unrolled_boxed))
    assert names == OUTSIDE | {f'encoder/layers_{i}/{name}' for i in range(3) for name in BLOCK}


def test_boxes_do_not_change_the_mask(scanned_boxed, unrolled_boxed):
    for boxed in (scanned_boxed, unrolled_boxed):
        assert any(
            isinstance(x, nn.Partitioned) for x in jax.tree.leaves(boxed, is_leaf=lambda x: not isinstance(x, dict))
        )
        assert decaying(boxed) == decaying(nn.unbox(boxed))


def test_only_the_scanned_blocks_are_stacked(scanned, unrolled_boxed):
    def stacked(params):
        flat = jax.tree_util.tree_flatten_with_path(params)[0]
        return {'/'.join(path_names(path)): x.shape for path, x in flat if is_stacked(path)}

    shapes = stacked(scanned)
    assert len(shapes) == 16
    assert all(name.startswith('encoder/layers/') and shape[0] == 3 for name, shape in shapes.items())
    assert not stacked(nn.unbox(unrolled_boxed))


def test_the_description_counts_every_tensor_once(scanned_boxed):
    decay, no_decay = describe_decay(scanned_boxed).splitlines()
    assert decay.startswith('weight decay on 12 tensors: ')
    assert no_decay.startswith('no weight decay on 18 tensors: ')
    assert 'query/kernel' in decay
    assert 'token/embedding' in decay
    assert 'attention_norm/scale' in no_decay
    assert 'mlm/bias' in no_decay
    assert 'scale' not in decay
    assert 'kernel' not in no_decay
