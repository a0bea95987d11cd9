"""Converts a BertConfig to the config.json of a Hugging Face BERT and back."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from bertjax.convert.heads import Head
from bertjax.convert.huggingface import modernbert
from bertjax.convert.huggingface.families import DISTILBERT, FAMILIES
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask

ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh', 'relu': 'relu'}
# {name in transformers: our name}. transformers has several names for some functions.
ACTIVATIONS_READ = {theirs: ours for ours, theirs in ACTIVATIONS.items()}
ACTIVATIONS_READ |= {'gelu_new': 'gelu_tanh', 'gelu_python': 'gelu', 'gelu_python_tanh': 'gelu_tanh'}

# (our field, their key)
FIELDS = (
    ('vocab_size', 'vocab_size'),
    ('num_layers', 'num_hidden_layers'),
    ('width', 'hidden_size'),
    ('num_heads', 'num_attention_heads'),
    ('mlp_dim', 'intermediate_size'),
    ('max_positions', 'max_position_embeddings'),
    ('num_segments', 'type_vocab_size'),
    ('dropout', 'hidden_dropout_prob'),
    ('attention_dropout', 'attention_probs_dropout_prob'),
    ('layer_norm_eps', 'layer_norm_eps'),
    ('init_stddev', 'initializer_range'),
    ('causal', 'is_decoder'),
)
# The keys of FIELDS that a file may lack. For these keys, our defaults equal the defaults of transformers.
_OPTIONAL = {'type_vocab_size', 'hidden_dropout_prob', 'attention_probs_dropout_prob'}
_OPTIONAL |= {'layer_norm_eps', 'initializer_range', 'max_position_embeddings', 'is_decoder'}
_FIX = 'set --config.export_formats=orbax to train it anyway'


def check_exportable(config: BertConfig, head: Head | None = None) -> None:
    """Raises a UserError if transformers cannot represent a pre-trained model or, with a `head`, a task's encoder.

    A model with features that BERT lacks must fit ModernBERT, and a model without a segment embedding DistilBERT.
    """
    if config.modern_fields:
        different = modernbert.misfit(config)
        if different is not None:
            name = config.modern_fields[0]
            found = f'{getattr(config, name)!r} with config.export on'
            expected = f'a value as in BERT, or a complete ModernBERT, which has {different[0]}={different[1]}'
            raise UserError(f'config.model.{name}', found, expected, _FIX)
        return
    if not config.num_segments:
        reason = 'as in DistilBERT, the export format of a model with config.model.num_segments=0'
        for name, theirs in (('causal', False), ('layer_norm_eps', dict(DISTILBERT.fixed)['layer_norm_eps'])):
            if getattr(config, name) != theirs:
                found = f'{getattr(config, name)!r} with config.export on'
                raise UserError(f'config.model.{name}', found, f'{theirs!r}, {reason}', _FIX)
        if config.nsp and head is None:
            found = 'a pair head with config.export on'
            raise UserError('config.pairs.mode', found, f"a mode without pairs such as 'doc_sentences', {reason}", _FIX)
    pooled = head.pools_cls if head else config.nsp
    theirs = 'tanh' if config.num_segments else 'relu'
    if pooled and config.pooler != theirs:
        found = f'{config.pooler!r} with config.model.num_segments={config.num_segments} and config.export on'
        raise UserError('config.model.pooler', found, f"{theirs!r}, as in transformers' classes", _FIX)


def check_head_exportable(model: BertForTask, head: Head) -> None:
    """Raises a UserError if transformers cannot represent a task's model.

    This is the case if `check_exportable` fails, transformers lacks the head, the model has a BiLSTM or unsupported
    `layers`, or the class of transformers reads [CLS] and the encoder is left-to-right.
    """
    check_exportable(model.config, head)
    if not head.architecture:
        expected = f'False, because transformers has no class for the head {head.module.__name__}'
        raise UserError('config.export', 'True', expected, _FIX)
    for name, possible in (('bilstm_units', (0,)), ('layers', head.layers)):
        value = getattr(model, name)
        if value not in possible:
            reason = f"the head of {head.architecture} is a projection of the last layer's states"
            found, expected = f'{value!r} with config.export on', f'{possible[0]!r}, because {reason}'
            raise UserError(f'config.task.{name}', found, expected, _FIX)
    if model.config.causal and head.pools_cls:
        expected = f'False: {head.architecture} reads [CLS], which in a left-to-right encoder attends only to itself'
        raise UserError('config.model.causal', 'True with config.export on', expected, _FIX)


def label_names(id2label: Any) -> tuple[str, ...]:
    """Returns the names of the outputs in order; () if the names are missing or placeholders (LABEL_0 ...).

    The names are case-folded, unless two of them differ only in case. `id2label` is {int or str: name}, or None.
    """
    if not isinstance(id2label, Mapping):
        return ()
    by_number = {str(number): str(name) for number, name in id2label.items()}
    labels = tuple(by_number.get(str(i), '') for i in range(len(by_number)))
    folded = tuple(map(str.casefold, labels))
    if folded == tuple(f'label_{i}' for i in range(len(labels))):
        return ()
    return folded if len({*folded}) == len({*labels}) else labels


def to_json(
    config: BertConfig,
    pad_id: int,
    head: Head | None = None,
    task: Mapping[str, Any] = MappingProxyType({}),
    missing_parts: Collection[str] = (),
) -> dict[str, Any]:
    """Returns a config.json with the keys of BERT, for a model that has passed `check_exportable`.

    `task` has the fields of the task in config.json (`id2label` ...), and `missing_parts` the parts of a pre-trained
    model, such as 'mlm' and 'nsp', that have no weights. A left-to-right model without a pair head is a BertForMaskedLM
    with `is_decoder`, which computes the loss at masked positions, as bertjax does. BertLMHeadModel has the same
    tensors, but predicts the next token.
    """
    nsp = config.nsp and 'nsp' not in missing_parts
    if 'mlm' in missing_parts:
        architecture = 'BertForNextSentencePrediction' if nsp else 'BertModel'
    else:
        architecture = 'BertForPreTraining' if nsp else 'BertForMaskedLM'
    return {
        **task,
        'architectures': [head.architecture if head else architecture],
        'model_type': 'bert',
        **({'hidden_act': ACTIVATIONS[config.mlp]} if config.mlp in ACTIVATIONS else {}),
        'pad_token_id': pad_id,
        'position_embedding_type': 'absolute',
        'tie_word_embeddings': True,
        'torch_dtype': 'float32',
        'use_cache': False,
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS},
    }


def from_json(
    values: Mapping[str, Any], where: str, key_names: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Returns the fields of a BertConfig from the content of a BERT's config.json.

    Two values extend BERT's config.json: `type_vocab_size` 0 means no segment embedding, and `pooler_act` is the
    activation of the pooler (default: 'tanh'). Error messages name the file `where` and its keys. `key_names` is
    {key in BERT: different key in the file}.

    Raises:
      UserError: The model is not a BERT or has unsupported features, or a required key is missing. BertConfig checks
        the types.
    """

    def fail(key: str, expected: str, fix: str) -> None:
        raise UserError(where, f'{key_names.get(key, key)} {values.get(key)!r}', expected, fix)

    other = 'give a directory of a BERT'
    classes = values.get('architectures')
    kind = str(classes[0]) if isinstance(classes, list) and classes else ''
    # Old files have no model_type. The name of the class then shows the family.
    if values.get('model_type', 'bert' if kind.startswith('Bert') or not kind else None) != 'bert':
        fix = f'{other}: {kind} computes another function' if kind else f'{other}: other models compute other functions'
        fail('model_type', 'one of ' + ', '.join(family.name for family in FAMILIES), fix)
    if values.get('hidden_act', 'gelu') not in tuple(ACTIVATIONS_READ):
        fail('hidden_act', 'one of ' + ', '.join(ACTIVATIONS_READ), other)
    if values.get('position_embedding_type', 'absolute') != 'absolute':
        fail('position_embedding_type', "'absolute'", other)
    if values.get('add_cross_attention', False):
        fail('add_cross_attention', 'False', f'{other}, not of a decoder with cross-attention')
    if not isinstance(values.get('architectures'), list | None):
        fail('architectures', "a list of transformers' classes", other)
    for _, theirs in FIELDS:
        if theirs not in values and theirs not in _OPTIONAL:
            fail(theirs, 'a number', other)
    fields = {ours: values[theirs] for ours, theirs in FIELDS if theirs in values}
    mlp = ACTIVATIONS_READ[values.get('hidden_act', 'gelu')]
    return {**fields, 'mlp': mlp, 'pooler': values.get('pooler_act', 'tanh')}
