"""Fixtures: small random BERT models of transformers, and a batch for them."""

import numpy as np
import pytest

DIMS = dict(
    vocab_size=203, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=80,
    max_position_embeddings=48, type_vocab_size=2,
)  # fmt: skip


@pytest.fixture(scope='session')
def torch():
    module = pytest.importorskip('torch', reason='compares with PyTorch')
    pytest.importorskip('transformers', reason="compares with transformers' BERT")
    module.set_num_threads(1)
    return module


@pytest.fixture(scope='session')
def make_peer(torch):
    """make_peer(class name, seed=0, **config) -> a random float32 model in evaluation mode with eager attention."""
    import transformers

    def make(kind='BertForPreTraining', seed=0, **changes):
        config = transformers.BertConfig(**{**DIMS, 'attn_implementation': 'eager', **changes})
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(config).float().eval()
        with torch.no_grad():  # Mistakes would be invisible with the initial biases of 0 and scales of 1.
            for name, x in model.named_parameters():
                noise = torch.randn_like(x)
                x.copy_(1 + 0.3 * noise if name.endswith('LayerNorm.weight') else 0.15 * noise)
        return model

    return make


@pytest.fixture(scope='session')
def batch():
    """Returns a pre-training batch with two segments, unused predictions, and rows of several lengths, one empty."""
    rng = np.random.default_rng(7)
    B, S, P, V = 5, 24, 6, DIMS['vocab_size']
    lengths = np.array([24, 17, 9, 2, 0])
    real = np.arange(S) < lengths[:, None]
    positions = np.zeros((B, P), np.int32)
    weights = np.zeros((B, P), np.float32)
    for row, count in enumerate([6, 4, 2, 1, 0]):
        positions[row, :count] = np.sort(rng.choice(lengths[row], count, replace=False)) if count else []
        weights[row, :count] = 1
    return {
        'input_ids': np.where(real, rng.integers(1, V, (B, S)), 0).astype(np.int32),
        'segment_ids': np.where(real, np.arange(S) >= lengths[:, None] // 2, 0).astype(np.int32),
        'attention_mask': real.astype(np.int32),
        'masked_positions': positions,
        'masked_ids': np.where(weights > 0, rng.integers(1, V, (B, P)), 0).astype(np.int32),
        'masked_weights': weights,
        'nsp_labels': np.array([0, 1, 1, 0, 0], np.int32),
        'nsp_weights': np.array([1, 1, 1, 1, 0], np.float32),
    }
