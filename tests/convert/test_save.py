"""Tests that `bert.save` writes models in each format and that they are read back."""

import dataclasses
import json
import os
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from flax.traverse_util import unflatten_dict

import bertjax
from bertjax.config.files import load_recipe
from bertjax.convert.content import ExportContent
from bertjax.convert.heads import QUESTION_ANSWERING, SEQUENCE_CLASSIFICATION
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.trees import stacked_shapes
from bertjax.errors import UserError
from bertjax.finetune.restore import merge_task_file
from bertjax.model.bert import BertForPreTraining
from bertjax.model.heads import BertForClassification, BertForSpans
from bertjax.tasks.late_interaction.task import LateInteractionTask

TENSORS = 'model.safetensors'
# Classes of transformers -> whether google-research/bert has an equivalent.
CLASSES = {
    'BertModel': True, 'BertForPreTraining': True, 'BertForMaskedLM': True, 'BertForNextSentencePrediction': True,
    'BertForSequenceClassification': True, 'BertForQuestionAnswering': True, 'BertForTokenClassification': False,
    'BertForMultipleChoice': False, 'RobertaModel': False, 'RobertaForMaskedLM': False,
    'RobertaForSequenceClassification': False, 'XLMRobertaForTokenClassification': False,
    'CamembertForMaskedLM': False, 'DistilBertModel': False, 'DistilBertForMaskedLM': False,
    'DistilBertForSequenceClassification': False,
}  # fmt: skip


@pytest.fixture(scope='module')
def sources(tmp_path_factory, small_config, tokenizer):
    """sources(name, module, **options) -> the Hugging Face directory of a randomly initialized model.

    The tests of this module share the directory and do not change it.
    """

    def make(name, module, **options):
        rng = np.random.default_rng(0)
        shapes = stacked_shapes(module)
        params = {path: rng.standard_normal(shape, np.float32) for path, shape in shapes.items()}
        folder = tmp_path_factory.mktemp(name) / 'source'
        export_huggingface(ExportContent(module, unflatten_dict(params, sep='/'), tokenizer, **options), folder)
        return folder

    return make


@pytest.fixture(scope='module')
def pretrained(sources, small_config):
    """Returns the directory of a model for pre-training."""
    return sources('pretrained', BertForPreTraining(small_config()))


@pytest.fixture(scope='module')
def regression(sources, small_config):
    """Returns a directory as another program writes it: a float16 regression model with a card and modules."""
    names = {'id2label': {'0': 'likeness'}, 'label2id': {'likeness': 0}}
    kind = {'head': SEQUENCE_CLASSIFICATION, 'task': names, 'dtype': 'float16'}
    source = sources('regression', BertForClassification(small_config(), 1), **kind)
    facts = json.loads((source / 'config.json').read_text())
    facts |= {'classifier_dropout': 0.3, '_name_or_path': '/home/me', 'use_cache': True}
    (source / 'config.json').write_text(json.dumps(facts))
    (source / 'README.md').write_text('---\nlicense: mit\n---\n# Mine\n')
    (source / 'tokenizer_config.json').write_text('{"model_max_length": 20, "do_lower_case": true}')
    (source / 'modules.json').write_text('[{"path": ""}, {"path": "1_Pooling"}, {"path": "../.."}]')
    (source / 'sentence_roberta_config.json').write_text('{"max_seq_length": 16}')
    (source / '1_Pooling').mkdir()
    (source / '1_Pooling' / 'config.json').write_text('{"pooling_mode_mean_tokens": true}')
    return source


@pytest.mark.parametrize(('problem', 'labels'), [('single', ['spam']), ('multi', ['', 'spam'])])
def test_a_classifier_with_labels_that_are_no_valid_option_is_saved(sources, small_config, tmp_path, problem, labels):
    facts = {
        'id2label': {str(i): label for i, label in enumerate(labels)},
        'label2id': {label: i for i, label in enumerate(labels)},
        'problem_type': f'{problem}_label_classification',
    }
    module = BertForClassification(small_config(), len(labels))
    bert = bertjax.load(sources(problem, module, head=SEQUENCE_CLASSIFICATION, task=facts))
    bert.save(tmp_path / 'saved')
    assert json.loads((tmp_path / 'saved' / 'config.json').read_text())['id2label'] == facts['id2label']
    assert bertjax.load(tmp_path / 'saved', max_length=16).task.labels == labels


def in_bfloat16(source, target, prefix=''):
    """Copies a directory, keeps only tensors whose names start with `prefix`, as bfloat16, and returns them."""
    shutil.copytree(source, target)
    tensors = safetensors.numpy.load_file(target / TENSORS)
    tensors = {name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items() if name.startswith(prefix)}
    safetensors.numpy.save_file(tensors, target / TENSORS)
    return tensors


def assert_same(bert, other):
    """Checks that two models have the same tokenizer, labels and parameters, and lacked the same parameters.

    Missing parameters are always initialized with the same values.
    """
    assert other.missing == bert.missing
    assert jax.tree.all(jax.tree.map(np.array_equal, bert.params, other.params))
    assert [type(one.task) for one in (bert, other)] == [type(bert.task)] * 2
    assert other.tokenizer.fingerprint == bert.tokenizer.fingerprint
    if bert.task is not None:
        assert list(other.task.labels) == list(bert.task.labels)


def test_a_hugging_face_directory_keeps_its_metadata(regression, tmp_path):
    bertjax.load(regression).save(tmp_path / 'hf')
    kept = ['README.md', 'tokenizer_config.json', 'vocab.txt', TENSORS]
    kept += ['modules.json', 'sentence_roberta_config.json', '1_Pooling/config.json']
    assert all((tmp_path / 'hf' / name).read_bytes() == (regression / name).read_bytes() for name in kept)
    before, after = (json.loads((path / 'config.json').read_text()) for path in (regression, tmp_path / 'hf'))
    assert before.pop('_name_or_path') and after.pop('problem_type') == 'regression' and after == before
    assert before['torch_dtype'] == 'float16' and before['classifier_dropout'] == 0.3


def test_a_saved_model_has_no_option_that_its_source_lacks(sources, regression, small_config, repository, tmp_path):
    """A copy of another program's model can be evaluated as the original, and its thresholds can be tuned."""
    spans = sources('spans', BertForSpans(small_config()), head=QUESTION_ANSWERING)
    for source, recipe, key, value in (
        (spans, 'squad.py', 'version', '2.0'),
        (spans, 'squad.py', 'stride', 64),
        (regression, 'classify.py', 'text_b', 'b'),
    ):
        copy = tmp_path / key
        bertjax.load(source).save(copy)
        config = load_recipe(f'{repository}/configs/{recipe}')
        config.init, config.task[key] = str(copy), value
        merged = merge_task_file(config)
        assert merged.task[key] == value and merged.seq_len == 32
        assert json.loads((copy / 'task.json').read_text())['finished'] is False


def test_a_saved_model_keeps_the_options_that_its_source_states(sources, small_config, repository, tmp_path):
    """The folder of a late interaction model also states options that have their defaults."""
    task, config = LateInteractionTask('', 32), small_config()
    source = sources('colbert', task.build_module(config), head=task.head, files=task.model_files(config))
    bertjax.load(source).save(tmp_path / 'copy')
    config = load_recipe(f'{repository}/configs/colbert.py:query=64,seq=300')
    config.init = str(tmp_path / 'copy')
    merged = merge_task_file(config)
    assert merged.task.query_len == task.query_len == 32 and merged.seq_len == 32


@pytest.mark.slow
def test_other_formats_keep_the_names_of_outputs(regression, tmp_path):
    """The other formats lack float16, so they contain the same values in float32."""
    bert = bertjax.load(regression)
    for name in ('orbax', 'google'):
        bert.save(tmp_path / name, format=name)
        again = bertjax.load(tmp_path / name)
        assert_same(bert, again)
        again.save(tmp_path / f'{name}_hf')
        facts = json.loads((tmp_path / f'{name}_hf' / 'config.json').read_text())
        assert facts['problem_type'] == 'regression' and facts['torch_dtype'] == 'float32'


def test_a_randomly_initialized_head_is_not_saved(pretrained, tmp_path, monkeypatch):
    tensors = in_bfloat16(pretrained, tmp_path / 'source')
    bert = bertjax.load(tmp_path / 'source')
    # A slow test loads a bare encoder, which compiles a model to initialize the heads. This test only pretends to.
    monkeypatch.setattr(bert, '_model', dataclasses.replace(bert._model, missing=('mlm/bias', 'nsp/bias')))
    bert.save(tmp_path / 'hf')
    assert json.loads((tmp_path / 'hf' / 'config.json').read_text())['architectures'] == ['BertModel']
    saved, encoder = safetensors.numpy.load_file(tmp_path / 'hf' / TENSORS), {n for n in tensors if n[:4] == 'bert'}
    assert saved.keys() == encoder and all(x.tobytes() == tensors[name].tobytes() for name, x in saved.items())


@pytest.mark.slow
def test_a_bare_encoder_is_saved_in_every_format(pretrained, tmp_path):
    in_bfloat16(pretrained, tmp_path / 'source', 'bert.')
    bert = bertjax.load(tmp_path / 'source')
    for name in ('hf', 'orbax', 'google'):
        bert.save(tmp_path / name, format=name)
        assert_same(bert, bertjax.load(tmp_path / name))
    bertjax.load(tmp_path / 'orbax').save(tmp_path / 'again')  # An Orbax export keeps bfloat16.
    assert (tmp_path / 'again' / TENSORS).read_bytes() == (tmp_path / 'hf' / TENSORS).read_bytes()
    bert.save(tmp_path / 'functions', format='stablehlo')
    described = json.loads((tmp_path / 'functions' / 'functions.json').read_text())
    assert {name: list(facts['outputs']) for name, facts in described.items()} == {'encoder': ['hidden', 'pooled']}


def test_changed_parameters_are_saved(regression, tmp_path):
    """They are saved in float32, because float16 cannot represent them, and without the card of the source."""
    bert = bertjax.load(regression)
    changed = bert.with_params(jax.tree.map(lambda x: np.asarray(x) * np.float32(1.001), bert.params))
    changed.save(tmp_path / 'hf')
    again = bertjax.load(tmp_path / 'hf')
    assert_same(changed, again)
    assert 'license' not in (tmp_path / 'hf' / 'README.md').read_text()
    assert (tmp_path / 'hf' / '1_Pooling').is_dir() and again.tokenizer.lowercase


def test_models_that_cannot_be_saved_are_errors(pretrained, tmp_path, monkeypatch):
    bert = bertjax.load(pretrained)
    (tmp_path / 'file').write_text('mine')
    (tmp_path / 'link').symlink_to(tmp_path / 'nowhere')
    for path, part in (
        (pretrained, 'source: found a folder with files, expected nothing, or an empty folder'),
        (tmp_path / 'file', 'file: found a file'),
        (tmp_path / 'link', 'link: found a file'),
        (tmp_path / 'file' / 'below', 'file: found file exists'),
        ('', "path: found ''"),
        ('a\0b', 'path: found'),
        (3, 'path: found 3'),
        ('gs://bucket/model', 'path: found gs://bucket/model, expected a folder on this machine'),
    ):
        with pytest.raises(UserError) as refused:
            bert.save(path)
        assert part in str(refused.value)
    for format in ('tf', None, ['hf']):
        with pytest.raises(UserError, match=r'format: found .* expected one of hf, orbax, google, stablehlo, onnx'):
            bert.save(tmp_path / 'new', format=format)
    config = dataclasses.replace(bert.config, layer_norm_eps=1e-5)
    monkeypatch.setattr(bert, '_model', dataclasses.replace(bert._model, module=type(bert._model.module)(config)))
    with pytest.raises(UserError) as refused:
        bert.save(tmp_path / 'new', format='google')
    assert str(refused.value) == (
        'format: found google for a model with model.layer_norm_eps 1e-05, expected 1e-12, because '
        'google-research/bert has no other; choose another format, such as orbax'
    )
    assert sorted(os.listdir(tmp_path)) == ['file', 'link']
    (tmp_path / 'new').mkdir()
    bert.save(tmp_path / 'new')  # An empty folder may be replaced.


@pytest.mark.slow
@pytest.mark.parametrize('name', CLASSES)
def test_every_class_of_transformers_is_saved(name, tokenizer, tmp_path):
    torch = pytest.importorskip('torch', reason='transformers needs it')
    transformers = pytest.importorskip('transformers', reason='makes the models')
    family = name.split('For')[0].removesuffix('Model')
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80)
    sizes |= dict(max_position_embeddings=48, type_vocab_size=2)
    if family not in ('Bert', 'DistilBert'):
        sizes |= dict(type_vocab_size=1, layer_norm_eps=1e-5)
    if family == 'DistilBert':
        sizes = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=80, max_position_embeddings=48)
    config_class = getattr(transformers, f'{family}Config')
    sizes |= {'num_labels': 3} if name.endswith(('SequenceClassification', 'TokenClassification')) else {}
    # As in many models, the embedding has more rows than the vocabulary has pieces.
    config = config_class(vocab_size=tokenizer.vocab_size + 5, pad_token_id=0, **sizes)
    torch.manual_seed(0)
    getattr(transformers, name)(config).save_pretrained(tmp_path / 'source')
    tokenizer.save(tmp_path / 'source')
    bert = bertjax.load(tmp_path / 'source')
    for format in ('hf', 'orbax', *(('google',) if CLASSES[name] else ())):
        bert.save(tmp_path / format, format=format)
        assert_same(bert, bertjax.load(tmp_path / format))
    _, info = getattr(transformers, name).from_pretrained(tmp_path / 'hf', output_loading_info=True)
    assert not any(info.values()), info
    before, after = (json.loads((tmp_path / path / 'config.json').read_text()) for path in ('source', 'hf'))
    assert [after[key] for key in ('architectures', 'model_type')] == [[name], before['model_type']]
    ours, theirs = (safetensors.numpy.load_file(tmp_path / path / TENSORS) for path in ('hf', 'source'))
    prefix = '' if ours.keys() == theirs.keys() else f'{"roberta" if "Rob" in name else family.lower()}.'
    for key, x in theirs.items():
        rows = 1 if 'position_embeddings' in key and ('Roberta' in name or 'Camembert' in name) else 0
        np.testing.assert_array_equal(ours[f'{prefix}{key}'][rows:], x[rows:])  # The padding rows are zeros.
    if not CLASSES[name]:
        with pytest.raises(UserError, match='format: found google for '):
            bert.save(tmp_path / 'google', format='google')
