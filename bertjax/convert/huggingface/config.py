"""Converts a BertConfig to the config.json of a model of transformers and back."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.convert.heads import Head
from bertjax.convert.huggingface import modernbert
from bertjax.convert.huggingface.families import BERT, DISTILBERT, FAMILIES, FIELDS, Family
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask

# The fields of FIELDS that a file may lack. For these fields, our defaults equal the defaults of transformers.
_OPTIONAL = {'max_positions', 'num_segments', 'dropout', 'attention_dropout', 'layer_norm_eps', 'init_stddev'}
_OPTIONAL |= {'causal', 'mlp'}
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
        for name, theirs in (('causal', False), ('layer_norm_eps', DISTILBERT.fixed['layer_norm_eps'])):
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
    family: Family,
    pad_id: int,
    head: Head | None,
    task: Mapping[str, Any],
    missing_parts: Collection[str],
) -> dict[str, Any]:
    """Returns the config.json of a model that has passed `check_exportable`.

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
    architecture = head.architecture if head else architecture
    values = {key: getattr(config, ours) for ours, key in family.all_keys.items()}
    values[family.all_keys['mlp']] = next(theirs for theirs, mlp in family.activations.items() if mlp == config.mlp)
    values |= {} if family.encoder_only else {'position_embedding_type': 'absolute', 'use_cache': False}
    if family.offset:
        values['max_position_embeddings'] += pad_id + 1
    return {
        **task,
        'architectures': [architecture.replace('Bert', family.classes, 1)],
        'model_type': family.name,
        'pad_token_id': pad_id,
        'tie_word_embeddings': True,
        **values,
        **family.write_values(config),
    }


def from_json(values: Mapping[str, Any], where: str, family: Family = BERT) -> dict[str, Any]:
    """Returns the fields of a BertConfig from the content of the config.json of a model of a family.

    Two values extend BERT's config.json: `type_vocab_size` 0 means no segment embedding, and `pooler_act` is the
    activation of the pooler (default: 'tanh'). Error messages name the file `where`.

    Raises:
      UserError: The model is not of the family or has unsupported features, or a required key is missing. BertConfig
        checks the types.
    """
    keys, values = family.all_keys, {**family.defaults, **values}

    def fail(key: str, expected: str, fix: str) -> None:
        raise UserError(where, f'{key} {values.get(key)!r}', expected, fix)

    other = 'give a directory of a BERT'
    classes = values.get('architectures')
    kind = str(classes[0]) if isinstance(classes, list) and classes else ''
    # Old files have no model_type. The name of the class then shows the family.
    if values.get('model_type', 'bert' if kind.startswith('Bert') or not kind else None) != family.name:
        fix = f'{other}: {kind} computes another function' if kind else f'{other}: other models compute other functions'
        fail('model_type', 'one of ' + ', '.join(family.name for family in FAMILIES), fix)
    activation = values.get(keys['mlp'], 'gelu')
    if activation not in tuple(family.activations):
        fail(keys['mlp'], 'one of ' + ', '.join(family.activations), f'give another {family.name} model')
    if not family.encoder_only and values.get('position_embedding_type', 'absolute') != 'absolute':
        fail('position_embedding_type', "'absolute'", other)
    if values.get('add_cross_attention', False):
        fail('add_cross_attention', 'False', f'{other}, not of a decoder with cross-attention')
    if not isinstance(classes, list | None):
        fail('architectures', "a list of transformers' classes", other)
    for ours, key in keys.items():
        if ours in FIELDS and ours not in _OPTIONAL and key not in values:
            fail(key, 'a number', other)
    fields = {ours: values[key] for ours, key in keys.items() if key in values}
    fields |= {'mlp': family.activations[activation], 'pooler': values.get('pooler_act', 'tanh')}
    positions = values.get('max_position_embeddings', 512)
    if family.offset and type(positions) is int:
        fields['max_positions'] = positions - family.unused_positions(values, where)
    return fields | family.fixed | family.read_fields(values, where)
