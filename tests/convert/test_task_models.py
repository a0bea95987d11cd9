"""Tests that fine-tuned models are exported to transformers' classes with label names, and are read back."""

import dataclasses
import json
import re

import jax
import numpy as np
import pytest
import safetensors.numpy
from json_tokenizers import write_tokenizer
from marks import SCAN, mostly_slow, slow

from bertjax.convert.content import ExportContent
from bertjax.convert.heads import (
    MULTIPLE_CHOICE,
    QUESTION_ANSWERING,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Head,
)
from bertjax.convert.huggingface.config import check_head_exportable
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model, load_task_model, read_config
from bertjax.convert.orbax import export_orbax
from bertjax.errors import UserError
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForClassification, BertForMultipleChoice, BertForSpans, BertForTokens
from bertjax.tasks.tagging.features import word_pieces
from bertjax.text.tokenizer import load_tokenizer


def _labels(*names):
    return {'id2label': dict(enumerate(names)), 'label2id': {name: i for i, name in enumerate(names)}}


TAGS = _labels('O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')
ENTAILMENT = _labels('entailment', 'neutral', 'contradiction')
CLASSIFIER = {'head': SEQUENCE_CLASSIFICATION, 'task': ENTAILMENT}
# name: (head, our module, its arguments after the config, transformers' class, label fields of config.json)
CASES = {
    'classification': (
        SEQUENCE_CLASSIFICATION, BertForClassification, (3,), 'BertForSequenceClassification', ENTAILMENT,
    ),
    'two_classes': (
        SEQUENCE_CLASSIFICATION, BertForClassification, (2,), 'BertForSequenceClassification', _labels('ham', 'spam'),
    ),
    'regression': (
        SEQUENCE_CLASSIFICATION, BertForClassification, (1,), 'BertForSequenceClassification',
        {**_labels('similarity'), 'problem_type': 'regression'},
    ),
    'tokens': (TOKEN_CLASSIFICATION, BertForTokens, (5,), 'BertForTokenClassification', TAGS),
    'spans': (QUESTION_ANSWERING, BertForSpans, (), 'BertForQuestionAnswering', {}),
    'multiple_choice': (MULTIPLE_CHOICE, BertForMultipleChoice, (), 'BertForMultipleChoice', {}),
}  # fmt: skip
KINDS = {case: CASES[case] for case in ('classification', 'tokens', 'spans', 'multiple_choice')}


def _export(model, params, tokenizer, folder, **content):
    export_huggingface(ExportContent(model, params, tokenizer, **content), folder)


def _inputs(kind, vocab_size):
    rng = np.random.default_rng(1)
    mask = (np.arange(12) < np.array([12, 7, 4, 9])[:, None]).astype(np.int32)
    inputs = {
        'input_ids': rng.integers(5, vocab_size, mask.shape).astype(np.int32) * mask,
        'segment_ids': (np.arange(12) >= 5).astype(np.int32) * mask,
        'attention_mask': mask,
    }
    return {name: x.reshape(2, 2, 12) if kind is BertForMultipleChoice else x for name, x in inputs.items()}


def _assert_equal_logits(transformers, directory, model, params, name):
    import torch

    peer, info = getattr(transformers, name).from_pretrained(directory, output_loading_info=True)
    assert not any(info.values()), info
    assert type(transformers.AutoConfig.from_pretrained(directory)) is transformers.BertConfig
    inputs = _inputs(type(model), model.config.vocab_size)
    their_names = {'input_ids': 'input_ids', 'segment_ids': 'token_type_ids', 'attention_mask': 'attention_mask'}
    with torch.no_grad():
        theirs = peer.eval()(**{b: torch.tensor(inputs[a], dtype=torch.long) for a, b in their_names.items()})
    ours = model.apply({'params': params}, *inputs.values())
    real = inputs['attention_mask'] > 0
    for name, actual in ours.items():
        expected = theirs[name.removeprefix('token_')].numpy()
        assert actual.shape == expected.shape and actual.dtype == np.float32
        actual = np.asarray(actual)
        if name != 'logits':
            actual, expected = actual[real], expected[real]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
    return peer.config


@pytest.mark.parametrize('case', [*KINDS, 'regression', *slow('two_classes')])
def test_transformers_loads_everything_with_equal_logits(
    transformers, tokenizer, small_config, make_params, tmp_path, case
):
    head, kind, options, architecture, task = CASES[case]
    assert (head.module, head.architecture) == (kind, architecture)
    model = kind(small_config(max_positions=64), *options)
    check_head_exportable(model, head)
    params = make_params(model)
    card = {'title': 'T', 'task': case}
    _export(model, params, tokenizer, tmp_path, card=card, head=head, task=task)
    theirs = _assert_equal_logits(transformers, tmp_path, model, params, architecture)
    for name, value in task.items():
        assert getattr(theirs, name) == value
    described = json.loads((tmp_path / 'config.json').read_text())
    assert described['architectures'] == [architecture] and 'classifier_dropout' not in described
    card = (tmp_path / 'README.md').read_text()
    count = sum(x.size for x in safetensors.numpy.load_file(tmp_path / 'model.safetensors').values())
    assert f'A BERT of {count:,} parameters' in card and 'fine-tuned with bertjax' in card
    assert f'import AutoTokenizer, {architecture}' in card and 'fill-mask' not in card
    # The card's code must run.
    exec('\n'.join(re.findall(r'```python\n(.*?)```', card, re.DOTALL)).replace('PATH', str(tmp_path)), {})


@pytest.mark.parametrize('kind', ['modern', *slow('gemma')])
def test_a_tagger_splits_words_as_in_training(transformers, small_config, make_params, tmp_path, kind):
    write_tokenizer(kind, ['the cat sat on the mat, and on the hat.', 'A café: "the cat is fat"'] * 9, tmp_path)
    tokenizer, exported, words = load_tokenizer(tmp_path), tmp_path / 'hf', ['the', 'café', "isn't", '"fat"', '.']
    model = BertForTokens(small_config(vocab_size=tokenizer.vocab_size), 5)
    _export(model, make_params(model), tokenizer, exported, head=TOKEN_CLASSIFICATION, task=TAGS)
    theirs, expected = transformers.AutoTokenizer.from_pretrained(exported), word_pieces(words, tokenizer)[0]
    # Gemma's tokenizer has no setting for the space before a word. The model card has it in the words.
    inputs = theirs([f' {word}' for word in words] if kind == 'gemma' else words, is_split_into_words=True)
    assert inputs['input_ids'] == [tokenizer.cls_id, *expected, tokenizer.sep_id]
    exec(re.search(r'words = .*', (exported / 'README.md').read_text())[0], found := {})
    assert all(word.startswith(' ') for word in found['words'])
    # bertjax reads the tokenizer of the training.
    assert load_tokenizer(exported).fingerprint == tokenizer.fingerprint
    export_orbax(ExportContent(model, make_params(model), tokenizer, head=TOKEN_CLASSIFICATION, task=TAGS), exported)
    assert load_tokenizer(exported).fingerprint == tokenizer.fingerprint
    # With another model, it reads the tokenizer as transformers does.
    theirs.save_pretrained(tmp_path / 'theirs')
    (tmp_path / 'theirs' / 'config.json').write_text('{"architectures": ["ModernBertForSequenceClassification"]}')
    ids = theirs('the cat', add_special_tokens=False)['input_ids']
    assert load_tokenizer(tmp_path / 'theirs').encode(['the cat'])[0].tolist() == ids


@SCAN
@pytest.mark.parametrize('case', mostly_slow(KINDS, 'tokens', 'multiple_choice'))
def test_back_to_the_same_bits(tokenizer, small_config, make_params, tmp_path, case, scan):
    head, kind, options, _, task = KINDS[case]
    config = small_config(mlp='gelu_tanh', dropout=0.2, attention_dropout=0.0)
    params = make_params(kind(config, *options))
    _export(kind(config, *options), params, tokenizer, tmp_path, head=head, task=task)
    model = kind(read_config(tmp_path, scan_layers=scan), *options)
    assert model.config == dataclasses.replace(config, scan_layers=scan)
    imported = load_task_model(tmp_path, model, head, id2label=task.get('id2label'))
    assert imported.config == model.config and imported.missing == imported.unused == []
    inputs = _inputs(kind, config.vocab_size).values()
    expected = kind(config, *options).apply({'params': params}, *inputs)
    actual = model.apply({'params': imported.params}, *inputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), expected, actual)
    for name in set(params) - {'encoder'}:
        jax.tree.map(np.testing.assert_array_equal, imported.params[name], params[name])


def test_a_causal_token_classifier_is_exported(transformers, tokenizer, small_config, make_params, tmp_path):
    model = BertForTokens(small_config(causal=True), 5)
    head = TOKEN_CLASSIFICATION
    check_head_exportable(model, head)
    params = make_params(model)
    _export(model, params, tokenizer, tmp_path, head=head, task=TAGS)
    _assert_equal_logits(transformers, tmp_path, model, params, 'BertForTokenClassification')


def test_a_pretrained_directory_gives_encoder_and_pooler(tokenizer, small_config, make_params, tmp_path):
    params = make_params(small_config())
    _export(BertForPreTraining(small_config()), params, tokenizer, tmp_path)
    mlm = {name for name in safetensors.numpy.load_file(tmp_path / 'model.safetensors') if name.startswith('cls.')}
    model = BertForClassification(read_config(tmp_path), 3)
    imported = load_task_model(tmp_path, model, SEQUENCE_CLASSIFICATION)
    assert imported.missing == ['head/bias', 'head/kernel'] and set(imported.unused) == mlm
    for name in ('attention', 'mlp', 'mlp_norm'):
        actual, expected = (p['encoder']['layers'][name] for p in (imported.params, params))
        jax.tree.map(np.testing.assert_array_equal, actual, expected)
    np.testing.assert_array_equal(imported.params['pooler']['kernel'], params['pooler']['kernel'])
    head = SEQUENCE_CLASSIFICATION
    drawn = [load_task_model(tmp_path, model, head, seed=seed).params['head']['kernel'] for seed in (0, 0, 1)]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    assert drawn[0].shape == (16, 3) and 0 < np.abs(drawn[0]).max() <= 2 * 0.02
    tokens = load_task_model(tmp_path, BertForTokens(model.config, 3), TOKEN_CLASSIFICATION)
    assert set(tokens.unused) == mlm | {'bert.pooler.dense.bias', 'bert.pooler.dense.weight'}
    assert set(tokens.params) == {'encoder', 'head'}


@pytest.mark.parametrize(
    'head, outputs, names, used',
    [
        (SEQUENCE_CLASSIFICATION, 3, ENTAILMENT, True),
        (SEQUENCE_CLASSIFICATION, 3, _labels('ENTAILMENT', 'NEUTRAL', 'CONTRADICTION'), True),
        (SEQUENCE_CLASSIFICATION, 3, _labels('LABEL_0', 'LABEL_1', 'LABEL_2'), True),
        (SEQUENCE_CLASSIFICATION, 3, {}, True),
        (SEQUENCE_CLASSIFICATION, 3, _labels('contradiction', 'neutral', 'fact'), False),
        (SEQUENCE_CLASSIFICATION, 2, {}, False),
        (TOKEN_CLASSIFICATION, 3, ENTAILMENT, False),
    ],
    ids=['equal', 'case', 'made_up', 'none', 'names', 'outputs', 'class'],
)
def test_only_the_head_of_the_same_task_is_used(
    tokenizer, small_config, make_params, tmp_path, head, outputs, names, used
):
    trained = make_params(BertForClassification(small_config(), 3))
    _export(BertForClassification(small_config(), 3), trained, tokenizer, tmp_path, **CLASSIFIER)
    imported = load_task_model(tmp_path, head.module(small_config(), outputs), head, id2label=names.get('id2label'))
    assert imported.missing == ([] if used else ['head/bias', 'head/kernel'])
    assert ('classifier.weight' in imported.unused) is not used
    assert np.array_equal(imported.params['head']['kernel'], trained['head']['kernel']) is used
    if not used and head is SEQUENCE_CLASSIFICATION and outputs == 3:
        assert imported.describe('it').endswith(
            'the outputs of its head are entailment, neutral, contradiction, not contradiction, neutral, fact'
        )


def test_labels_that_differ_only_in_case_are_kept(tokenizer, small_config, make_params, tmp_path):
    module, names = BertForClassification(small_config(), 2), _labels('us', 'US')
    trained = make_params(module)
    _export(module, trained, tokenizer, tmp_path, **{**CLASSIFIER, 'task': names})
    for order, labels in (([0, 1], names), ([1, 0], _labels('US', 'us'))):
        imported = load_task_model(tmp_path, module, SEQUENCE_CLASSIFICATION, id2label=labels['id2label'])
        assert imported.missing == []
        assert np.array_equal(imported.params['head']['kernel'], trained['head']['kernel'][:, order])


def test_the_outputs_of_a_head_are_matched_by_name(tokenizer, small_config, make_params, tmp_path):
    trained = make_params(BertForClassification(small_config(), 3))
    _export(BertForClassification(small_config(), 3), trained, tokenizer, tmp_path, **CLASSIFIER)
    model, head = BertForClassification(small_config(), 3), SEQUENCE_CLASSIFICATION
    names = _labels('contradiction', 'Entailment', 'neutral')['id2label']
    imported = load_task_model(tmp_path, model, head, id2label=names)
    assert imported.missing == []
    for name in ('kernel', 'bias'):
        np.testing.assert_array_equal(imported.params['head'][name], trained['head'][name][..., [2, 0, 1]])
    assert imported.describe('it').endswith('reordered from entailment, neutral, contradiction')
    config = json.loads((tmp_path / 'config.json').read_text())
    for key in ('id2label', 'label2id'):
        del config[key]
    (tmp_path / 'config.json').write_text(json.dumps(config))
    imported = load_task_model(tmp_path, model, head, id2label=names)
    np.testing.assert_array_equal(imported.params['head']['kernel'], trained['head']['kernel'])
    assert imported.describe('it').endswith('have no names, and are taken as contradiction, entailment, neutral')


@pytest.mark.slow
def test_layers_between_encoder_and_head_are_randomly_initialized(tokenizer, small_config, make_params, tmp_path):
    config = small_config(num_layers=4)
    trained = make_params(BertForTokens(config, 5))
    head = TOKEN_CLASSIFICATION
    _export(BertForTokens(config, 5), trained, tokenizer, tmp_path, head=head, task=TAGS)
    model = BertForTokens(config, 5, bilstm_units=3, layers='sum_all', frozen=True)
    imported = load_task_model(tmp_path, model, head)
    assert {path.split('/')[0] for path in imported.missing} == {'bilstm', 'mix', 'head'}  # The new head has 6 inputs.
    assert imported.unused == ['classifier.bias', 'classifier.weight']
    mixed = load_task_model(tmp_path, BertForTokens(config, 5, layers='sum_last_four'), head)
    assert mixed.missing == ['mix/scale', 'mix/weights'] and mixed.unused == []

    trained = make_params(config)
    _export(BertForPreTraining(config), trained, tokenizer, tmp_path)
    wide = BertForClassification(config, 5, layers='concat_last_four')
    wide = load_task_model(tmp_path, wide, SEQUENCE_CLASSIFICATION)
    assert 'pooler/kernel' in wide.missing and 'bert.pooler.dense.weight' in wide.unused
    assert wide.params['pooler']['kernel'].shape == (64, 16)


@pytest.mark.parametrize(
    'head, changes, options, message',
    [
        (
            TOKEN_CLASSIFICATION,
            {},
            {'bilstm_units': 4},
            r'config.task.bilstm_units: found 4 .*ted 0, because the head of BertForToken',
        ),
        (TOKEN_CLASSIFICATION, {}, {'layers': 'sum_all'}, r"config.task.layers: found 'sum_all' .*expected 'last'"),
        (TOKEN_CLASSIFICATION, {'pre_norm': True}, {}, 'config.model.pre_norm'),
        (SEQUENCE_CLASSIFICATION, {'causal': True}, {}, 'config.model.causal: found True'),
        (MULTIPLE_CHOICE, {'causal': True}, {}, 'config.model.causal: found True'),
        (
            Head(BertForTokens),
            {},
            {},
            'config.export: found True, .* no class for the head BertForTokens',
        ),
    ],
)
def test_heads_that_transformers_lacks_are_refused_before_training(small_config, head, changes, options, message):
    with pytest.raises(UserError, match=message + r'.*config.export_formats=orbax'):
        check_head_exportable(head.module(small_config(**changes), 3, **options), head)


def test_a_head_that_does_not_fit_is_not_exported(tokenizer, small_config, make_params, tmp_path):
    config = small_config()
    model = BertForClassification(config, 3)
    params = make_params(model)
    for fields in (_labels('a', 'b'), {}):  # Without labels, transformers assumes two.
        with pytest.raises(ValueError, match='2 labels for 3 outputs'):
            _export(model, params, tokenizer, tmp_path, head=SEQUENCE_CLASSIFICATION, task=fields)
    with pytest.raises(ValueError, match='do not fit the config'):
        _export(BertForTokens(config, 3), params, tokenizer, tmp_path, head=TOKEN_CLASSIFICATION, task=ENTAILMENT)
    with pytest.raises(ValueError, match='do not fit the config'):
        _export(BertForPreTraining(config), params, tokenizer, tmp_path)
    assert not any(tmp_path.iterdir())


def test_pretraining_can_start_from_a_task_model(tokenizer, small_config, make_params, tmp_path):
    params = make_params(BertForClassification(small_config(), 3))
    _export(BertForClassification(small_config(), 3), params, tokenizer, tmp_path, **CLASSIFIER)
    imported = load_pretraining_model(tmp_path)
    assert imported.unused == ['classifier.bias', 'classifier.weight']
    np.testing.assert_array_equal(imported.params['pooler']['kernel'], params['pooler']['kernel'])


def test_read_config_needs_only_config_json(tmp_path):
    with pytest.raises(UserError, match=r'no config\.json'):
        read_config(tmp_path)
    sizes = dict(vocab_size=99, hidden_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24)
    (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'bert', **sizes}))
    expected = BertConfig(vocab_size=99, width=8, num_layers=3, num_heads=2, mlp_dim=24, dropout=0.3, scan_layers=False)
    assert read_config(tmp_path, dropout=0.3, scan_layers=False) == expected
    (tmp_path / 'config.json').write_text(json.dumps({**sizes, 'model_type': 'bert', 'num_attention_heads': 3}))
    with pytest.raises(UserError, match=r'config\.json: found num_attention_heads 3'):
        read_config(tmp_path)
    (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'bert', **sizes}))
    with pytest.raises(UserError, match=r'config\.model\.dropout: found 2'):
        read_config(tmp_path, dropout=2)


def test_orbax_keeps_the_facts_of_the_head(tokenizer, small_config, make_params, tmp_path):
    import orbax.checkpoint as ocp

    model = BertForTokens(small_config(num_layers=4), 5, bilstm_units=3, layers='sum_all', frozen=True)
    params = make_params(model)
    export_orbax(ExportContent(model, params, tokenizer, head=TOKEN_CLASSIFICATION, task=TAGS), tmp_path)
    values = json.loads((tmp_path / 'model.json').read_text())
    facts = {'class': 'BertForTokens', 'outputs': 5, 'bilstm_units': 3, 'layers': 'sum_all', 'frozen': True}
    facts |= {'architecture': 'BertForTokenClassification', 'projection': 'classifier'}
    assert values.pop('head') == {**facts, 'task': json.loads(json.dumps(TAGS))}
    assert BertConfig(**values) == model.config
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore((tmp_path / 'params').resolve())
    jax.tree.map(np.testing.assert_array_equal, restored, params)
    export_orbax(ExportContent(BertForPreTraining(model.config), params, tokenizer), tmp_path)
    assert 'head' not in json.loads((tmp_path / 'model.json').read_text())
