"""A small model of ours with its tokenizer, to export."""

import functools

import jax
import numpy as np
import pytest
from flax import linen as nn

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
def make_params():
    """make_params(config or a task's model, seed=0) -> numpy parameters of which none is 0 or 1 all over."""

    @functools.cache
    def draw(model):
        inputs = [np.zeros(shape, np.int32) for shape in model.smallest_inputs]
        init = lambda key: nn.unbox(init_params(model, key, *inputs))  # noqa: E731
        quick = {'xla_backend_optimization_level': 0, 'xla_llvm_disable_expensive_passes': True}
        return jax.device_get(jax.jit(init, compiler_options=quick)(jax.random.key(0)))

    def make(model, seed=0):
        params = draw(BertForPreTraining(model) if isinstance(model, BertConfig) else model)
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda x: x + 0.2 * rng.standard_normal(x.shape).astype(np.float32), params)

    return make
