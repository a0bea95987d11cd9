"""Tests the paper's LTR + BiLSTM (table 5): fine-tuning with a BiLSTM between a left-to-right encoder and the head."""

import pathlib
from collections.abc import Callable

import jax
import numpy as np
import pytest

from bertjax.config.schema import Change
from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_task_model, read_config
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.stacking import init_params
from bertjax.tasks.registry import KINDS, build_task, options
from bertjax.tasks.sentence.task import Example
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer


@pytest.fixture(scope='module')
def left_to_right(
    tokenizer: Tokenizer, draw_params: Callable, tmp_path_factory: pytest.TempPathFactory
) -> pathlib.Path:
    """Returns the path of a small random model like the exports of configs/pretrain_base.py:ltr."""
    sizes = dict(num_layers=1, width=16, num_heads=2, mlp_dim=32, max_positions=32)
    config = BertConfig(vocab_size=tokenizer.vocab_size, causal=True, nsp=False, **sizes)
    params = draw_params(lambda key: init_params(BertForPreTraining(config), key))
    path = tmp_path_factory.mktemp('ltr') / 'hf'
    export_huggingface(ExportContent(BertForPreTraining(config), params, tokenizer), path)
    return path


def glue(units: int) -> tuple[Task, list]:
    records = [Example('a b c', 'd e', 'entailment'), Example('a f', 'g', 'not_entailment')]
    return build_task('glue', data='', seq_len=16, task='rte', bilstm_units=units), records


def squad(units: int) -> tuple[Task, list]:
    records = [SquadQuestion('1', 'a b', 'c d e f', ('e',), (4,)), SquadQuestion('2', 'a', 'f g', ('f',), (0,))]
    return build_task('squad', data='', seq_len=16, max_query=4, bilstm_units=units), records


@pytest.mark.slow
@pytest.mark.parametrize('kind', [glue, squad])
def test_the_parameters_of_the_bilstm_are_new_and_the_loss_depends_on_them(kind, left_to_right, tokenizer: Tokenizer):
    encoder = read_config(left_to_right, dropout=0.0, attention_dropout=0.0)
    assert encoder.causal

    def load(units: int):
        task, records = kind(units)
        model = task.build_module(encoder)
        features = task.features(records, tokenizer, training=True)
        return task, model, load_task_model(left_to_right, model, task.head), features.batch(np.arange(2), 16, 0)

    _, _, plain, _ = load(0)
    task, model, imported, batch = load(5)
    assert 'bilstm' not in plain.params
    missing = {path.split('/')[0] for path in imported.missing}
    assert {'bilstm', 'head'} <= missing and 'encoder' not in missing

    def loss(params):
        outputs = model.apply({'params': params}, *(batch[name] for name in task.objective.inputs))
        total, weight = task.objective.losses(outputs, batch)['loss']
        return total / weight

    value, gradient = jax.jit(jax.value_and_grad(loss))(imported.params)
    assert np.isfinite(value)
    layers = gradient['bilstm']
    assert set(layers) == {f'{way}_{i}' for way in ('forward', 'backward') for i in (0, 1)}
    assert all(np.abs(layer['kernel']).max() > 0 for layer in layers.values())


@pytest.mark.parametrize('kind', [kind for kind in KINDS if 'bilstm_units' in options(kind)])
def test_a_run_cannot_continue_with_other_bilstm_units(kind: str):
    assert options(kind)['bilstm_units'].change is Change.STATE
