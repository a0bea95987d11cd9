"""Tests model configs: parameter counts, FLOPs, errors for invalid values, and the kinds of fields."""

import dataclasses

import jax
import pytest
from flax import linen as nn

from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import SIZES, BertConfig, FieldKind, fields_of, parameter_count, train_flops_per_sequence
from bertjax.model.stacking import init_params


def config_of_size(size, **changes):
    return BertConfig(**{**SIZES[size], **changes})


def test_parameter_counts_equal_published_ones():
    assert parameter_count(config_of_size('base')) == 110_106_428
    assert parameter_count(config_of_size('large')) == 336_226_108


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('vocab_size, nsp', [(30522, True), (28996, False)])
def test_parameter_counts_equal_transformers(size, vocab_size, nsp):
    torch = pytest.importorskip('torch', reason='counts the parameters of a PyTorch model')
    transformers = pytest.importorskip('transformers', reason='has the model to count')
    config = config_of_size(size, vocab_size=vocab_size, nsp=nsp)
    theirs = transformers.BertConfig(
        vocab_size=vocab_size, hidden_size=config.width, num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads, intermediate_size=config.mlp_dim,
    )  # fmt: skip
    with torch.device('meta'):
        model = (transformers.BertForPreTraining if nsp else transformers.BertForMaskedLM)(theirs)
    assert parameter_count(config) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    'changes',
    [{}, {'nsp': False, 'num_segments': 1}, {'pre_norm': True, 'scan_layers': False}, {'mlp_dim': 96}],
    ids=str,
)
def test_parameter_counts_equal_the_model_without_vocabulary_padding(changes):
    config = config_of_size('tiny', **changes)
    abstract = jax.eval_shape(lambda: nn.unbox(init_params(BertForPreTraining(config), jax.random.key(0))))
    padding = (config.padded_vocab_size - config.vocab_size) * (config.width + 1)
    assert config.padded_vocab_size == 30592 and padding
    assert sum(x.size for x in jax.tree.leaves(abstract)) - padding == parameter_count(config)


@pytest.mark.parametrize(
    'size, seq_len, predictions, gflop',
    [('base', 128, 20, 69.9), ('base', 512, 76, 300.9), ('large', 128, 20, 240.6), ('large', 512, 76, 1019.8)],
)
def test_training_flops_per_sequence(size, seq_len, predictions, gflop):
    flops = train_flops_per_sequence(config_of_size(size), seq_len, predictions)
    assert round(flops / 1e9, 1) == gflop


@pytest.mark.parametrize(
    'changes, message',
    [
        ({'num_heads': 5}, 'config.model.num_heads: found 5, expected a divisor of width 768'),
        ({'num_layers': 0}, 'config.model.num_layers: found 0'),
        ({'width': 12.0}, 'config.model.width: found 12.0, expected a whole number'),
        ({'dropout': 1.0}, 'config.model.dropout: found 1.0'),
        ({'attention_dropout': -0.1}, 'config.model.attention_dropout'),
        (
            {'mlp': 'gelu_new'},
            "config.model.mlp: found 'gelu_new', expected one of gelu, gelu_tanh, relu, relu2, geglu, swiglu",
        ),
        ({'remat': 'all'}, 'config.model.remat'),
        (
            {'attention': 'flash'},
            "config.model.attention: found 'flash', "
            'expected one of auto, fused_tpu, blocks_tpu, flash_tpu, cudnn, fused_gpu, by_head_cpu, dot_product',
        ),
        ({'dtype': 'float16'}, "config.model.dtype: found 'float16', expected one of float32, bfloat16"),
        ({'layer_norm_eps': 0.0}, 'config.model.layer_norm_eps'),
    ],
)
def test_invalid_values_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        BertConfig(**changes)


def test_every_field_has_a_kind():
    names = [name for kind in FieldKind for name in fields_of(kind)]
    assert sorted(names) == sorted(field.name for field in dataclasses.fields(BertConfig))
    assert set(fields_of(FieldKind.TRAINING)) == {'dropout', 'dropout_sites', 'attention_dropout'}
    assert set(fields_of(FieldKind.EXECUTION)) == {'attention', 'remat', 'dtype'}
    assert fields_of(FieldKind.LAYOUT) == {'scan_layers': True}
    for name, default in fields_of(*FieldKind).items():
        assert getattr(BertConfig(), name) == default


def test_fields_of_training_and_execution_do_not_change_the_parameters():
    def shapes(config):
        return jax.eval_shape(lambda: nn.unbox(init_params(BertForPreTraining(config), jax.random.key(0))))

    changed = {
        'dropout': 0.3,
        'dropout_sites': 'attention_output',
        'attention_dropout': 0.3,
        'attention': 'dot_product',
        'remat': 'full',
        'dtype': 'bfloat16',
    }
    assert set(changed) == set(fields_of(FieldKind.TRAINING, FieldKind.EXECUTION))
    assert shapes(config_of_size('tiny', **changed)) == shapes(config_of_size('tiny'))
