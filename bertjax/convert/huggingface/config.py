"""config.json of a Hugging Face BERT, from a BertConfig and back."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from bertjax.convert.heads import Head
from bertjax.convert.huggingface.families import DISTILBERT, FAMILIES
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.model.heads import TaskModel

ACTIVATIONS = {'gelu': 'gelu', 'gelu_tanh': 'gelu_pytorch_tanh', 'relu': 'relu'}
# Other names of the same functions in transformers.
ACTIVATIONS_READ = {**{theirs: ours for ours, theirs in ACTIVATIONS.items()}, 'gelu_new': 'gelu_tanh'}

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
)
# Where an older file lacks one of these, transformers' default applies, which is ours, too; sizes have no default.
_OPTIONAL = {'type_vocab_size', 'hidden_dropout_prob', 'attention_probs_dropout_prob'}
_OPTIONAL |= {'layer_norm_eps', 'initializer_range', 'max_position_embeddings'}


def check_exportable(config: BertConfig, head: Head | None = None) -> None:
    """Refuses a model that Hugging Face's BERT cannot represent; cheap, to be called before training starts.

    Args:
      config: of the model.
      head: of a task's model.

    Raises:
      UserError: a pre-LN model; one without segments that is no DistilBERT; a pooler that no class has.
    """
    fix = 'set --config.export_formats=orbax to train it all the same'
    if not config.num_segments:
        reason = 'as in DistilBERT, which a model with config.model.num_segments=0 is exported as'
        for name, there in (('causal', False), ('layer_norm_eps', dict(DISTILBERT.fixed)['layer_norm_eps'])):
            if getattr(config, name) != there:
                found = f'{getattr(config, name)!r} with config.export on'
                raise UserError(f'config.model.{name}', found, f'{there!r}, {reason}', fix)
        if config.nsp and head is None:
            found = 'a head on pairs with config.export on'
            raise UserError('config.pairs.mode', found, f"'full_sentences' or 'doc_sentences', {reason}", fix)
    pooled = head.pools_cls if head else config.nsp
    known = 'tanh' if config.num_segments else 'relu'
    if pooled and config.pooler_activation != known:
        what = f'with config.model.num_segments={config.num_segments} and config.export on'
        raise UserError(
            'config.model.pooler_activation',
            f'{config.pooler_activation!r} {what}',
            f"{known!r}, as transformers' classes",
            fix,
        )
    if config.pre_norm:
        raise UserError(
            'config.model.pre_norm',
            'True with config.export on',
            "False, as Hugging Face's BERT normalises after each block and has no place for the final norm",
            'set --config.export_formats=orbax to train it all the same, or config.model.pre_norm=False',
        )


def check_head_exportable(model: TaskModel, head: Head) -> None:
    """Refuses a task's model that no class of transformers computes; cheap, to be called before training starts.

    Args:
      model: the task's.
      head: of its kind.

    Raises:
      UserError: see `check_exportable`; a head that transformers lacks, a BiLSTM, other layers than the last, [CLS] of
        a left-to-right encoder.
    """
    check_exportable(model.config, head)
    fix = 'set --config.export_formats=orbax to train it all the same'
    if not head.architecture:
        expected = f'False, as transformers has no class for the head {head.module.__name__}'
        raise UserError('config.export', 'True', expected, fix)
    for name, plain in (('bilstm_units', 0), ('layers', 'last')):
        value = getattr(model, name)
        if value != plain:
            expected = f"{plain!r}, as {head.architecture} has a projection of the last layer's states only"
            raise UserError(f'config.task.{name}', f'{value!r} with config.export on', expected, fix)
    if model.config.causal and head.pools_cls:
        expected = f'False: {head.architecture} reads [CLS], which sees only itself when attention is left to right'
        raise UserError('config.model.causal', 'True with config.export on', expected, fix)


def label_names(id2label: Any) -> tuple[str, ...]:
    """Names of the outputs in order, case folded; () if there are none but transformers' placeholders LABEL_0 ...

    Args:
      id2label: {number, or its digits: name}, or None.
    """
    if not isinstance(id2label, Mapping):
        return ()
    found = {str(number): str(name).casefold() for number, name in id2label.items()}
    labels = tuple(found.get(str(i), '') for i in range(len(found)))
    return () if labels == tuple(f'label_{i}' for i in range(len(labels))) else labels


def architecture(config: BertConfig, lacking: Collection[str] = ()) -> str:
    """transformers' class for this model; `lacking` are the parts ('mlm', 'nsp') that it has no weights of.

    A left-to-right model without pair head stays a BertForMaskedLM: with `is_decoder` set that class hides the keys
    to the right, and its loss is at the masked positions themselves, as ours is; BertLMHeadModel, which loads the
    same tensors, shifts the labels.
    """
    nsp = config.nsp and 'nsp' not in lacking
    if 'mlm' in lacking:
        return 'BertForNextSentencePrediction' if nsp else 'BertModel'
    return 'BertForPreTraining' if nsp else 'BertForMaskedLM'


def to_json(
    config: BertConfig,
    pad_id: int,
    head: Head | None = None,
    task: Mapping[str, Any] = MappingProxyType({}),
    lacking: Collection[str] = (),
) -> dict[str, Any]:
    """The contents of config.json.

    Args:
      config: of the model.
      pad_id: of [PAD].
      head: of a task's model.
      task: fields of the task (`id2label` ...).
      lacking: see `architecture`.

    Raises:
      UserError: see `check_exportable`.
    """
    check_exportable(config, head)
    return {
        **task,
        'architectures': [head.architecture if head else architecture(config, lacking)],
        'model_type': 'bert',
        'hidden_act': ACTIVATIONS[config.activation],
        'is_decoder': config.causal,
        'pad_token_id': pad_id,
        'position_embedding_type': 'absolute',
        'tie_word_embeddings': True,
        'torch_dtype': 'float32',
        'use_cache': False,
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS},
    }


def from_json(
    values: Mapping[str, Any], where: str, called: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Fields of a BertConfig from a config.json.

    Args:
      values: see Source.
      where: the file, for messages.
      called: what it calls a key, where that differs.

    Raises:
      UserError: another kind of model, or a BERT with features that ours lacks.
    """

    def refuse(key: str, expected: str, fix: str) -> None:
        raise UserError(where, f'{called.get(key, key)} {values.get(key)!r}', expected, fix)

    other = 'give a directory of a BERT'
    if values.get('model_type', 'bert') != 'bert':
        known = [name for family in FAMILIES for name in (family.name, *family.read_as_well)]
        refuse('model_type', 'one of ' + ', '.join(known), f'{other}: the tensors of other families mean other things')
    if values.get('hidden_act', 'gelu') not in tuple(ACTIVATIONS_READ):
        refuse('hidden_act', 'one of ' + ', '.join(ACTIVATIONS_READ), other)
    if values.get('position_embedding_type', 'absolute') != 'absolute':
        refuse('position_embedding_type', "'absolute'", other)
    if values.get('add_cross_attention', False):
        refuse('add_cross_attention', 'False', f'{other}, not of a decoder on an encoder')
    if not isinstance(values.get('is_decoder', False), bool):
        refuse('is_decoder', 'true or false', other)
    if not isinstance(values.get('architectures'), list | None):
        refuse('architectures', "a list of transformers' classes", other)
    fields = {ours: values[theirs] for ours, theirs in FIELDS if theirs in values}
    for ours, theirs in FIELDS:
        if ours not in fields and theirs not in _OPTIONAL:
            refuse(theirs, 'a number', other)
        if isinstance(fields.get(ours), bool):
            refuse(theirs, 'a number', other)
    fields['activation'] = ACTIVATIONS_READ[values.get('hidden_act', 'gelu')]
    fields['causal'] = bool(values.get('is_decoder', False))
    fields['pooler_activation'] = values.get('pooler_act', 'tanh')
    return fields
