"""Fixtures: a small bertjax model and its tokenizer to export."""

import jax
import numpy as np
import pytest

from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params
from bertjax.text.tokenizer import load_tokenizer

VOCABULARY = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *[chr(c) for c in range(97, 123)]]
VOCABULARY += [f'##{chr(c)}' for c in range(97, 123)] + [f'word{i}' for i in range(143 - 57)]


@pytest.fixture(scope='session')
def small_config():
    """small_config(**changes) -> BertConfig."""

    def make(**changes):
        fields = dict(vocab_size=len(VOCABULARY), num_layers=2, width=16, num_heads=2, mlp_dim=48, max_positions=32)
        return BertConfig(**{**fields, 'dropout': 0.0, 'attention_dropout': 0.0, **changes})

    return make


@pytest.fixture(scope='session')
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp('tokenizer') / 'vocab.txt'
    path.write_text('\n'.join(VOCABULARY) + '\n')
    return load_tokenizer(path)


@pytest.fixture(scope='session')
def transformers():
    pytest.importorskip('torch', reason='compares with PyTorch').set_num_threads(1)
    return pytest.importorskip('transformers', reason='loads our exports')


@pytest.fixture(scope='session')
def make_params(draw_params):
    """make_params(config or task module, seed=0) -> NumPy parameters; no array is all 0 or all 1."""

    def make(model, seed=0):
        model = BertForPreTraining(model) if isinstance(model, BertConfig) else model
        return draw_params(lambda key: init_params(model, key), stddev=0.2, seed=seed)

    return make


@pytest.fixture(scope='session')
def assert_same_params():
    """assert_same_params(actual, params): bit-equal, except for the padding rows of the vocabulary."""

    def check(path, actual, expected):
        by_piece = [key.key for key in path] in (['encoder', 'embeddings', 'token', 'embedding'], ['mlm', 'bias'])
        rows = len(VOCABULARY) if by_piece else None
        np.testing.assert_array_equal(actual[:rows], expected[:rows])

    return lambda actual, params: jax.tree_util.tree_map_with_path(check, actual, params)
