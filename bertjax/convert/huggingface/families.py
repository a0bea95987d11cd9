"""The families of models in transformers that bertjax reads and writes, and how they differ from BERT.

The readers and writers of directories use BERT's names, and the names of convert/names.py for parts that BERT lacks. A
`Family` converts these names to its own names and back. `Family.read_fields` and `Family.write_values` convert the keys
of config.json that BERT lacks.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bertjax.convert.huggingface import modernbert
from bertjax.errors import UserError
from bertjax.model.config import BertConfig

SEGMENTS = 'bert.embeddings.token_type_embeddings.weight'
POSITIONS = 'bert.embeddings.position_embeddings.weight'
_DISTIL = 'distilbert.transformer.layer.{i}'
_MODERN = 'model.layers.{i}'
_BLOCK = 'bert.encoder.layer.{i}'
Renaming = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
      name: The `model_type`.
      classes: The prefix of the class names.
      prefix: The prefix of the names of the encoder's tensors.
      tensors: Pairs (prefix in BERT, prefix in this family) of tensor names. A dot follows each prefix, and {i} in a
        prefix matches a number. The first match applies.
      classifier: Additional pairs of tensor names in the class for sequence classification.
      spans: Additional pairs of tensor names in the class for question answering.
      fused: Pairs (prefix in this family, prefixes in BERT) of tensors that concatenate several tensors of BERT.
      keys: Pairs (key of BERT in config.json, key of this family).
      fixed: Pairs (key of BERT that this family lacks, the value that describes this family).
      activation: The fixed activation of the MLM head; '' if the head has the encoder's activation.
      offset: Whether the rows 0 to `pad_token_id` of the position table are unused.
      one_segment: Whether the family's own tokenizers return no segment ids, so that all tokens are in segment 0.
      defaults: {key of this family: default value}, for optional keys of config.json with other defaults than BERT's.
      token_ids: Pairs (key of config.json, attribute of the tokenizer) for the ids of special tokens except [PAD].
      field_names: {field from `read_fields`: its key in config.json}, for messages.
      read_fields: A function (content of config.json, its path for messages) -> fields of BertConfig that extend
        or replace the fields from BERT's keys.
      write_values: A function BertConfig -> the entries of config.json that BERT lacks or that replace BERT's.
    """

    name: str
    classes: str
    prefix: str
    tensors: Renaming = ()
    classifier: Renaming = ()
    spans: Renaming = ()
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keys: Renaming = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    activation: str = ''
    offset: bool = False
    one_segment: bool = False
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    token_ids: Renaming = ()
    field_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    read_fields: Callable[[Mapping[str, Any], str], dict[str, Any]] = lambda values, where: {}
    write_values: Callable[[BertConfig], dict[str, Any]] = lambda config: {}

    def to_bert_names(self, name: str, architecture: str = '') -> tuple[str, ...]:
        """Converts the name of a tensor of the family to its name in BERT, or to several names for a fused tensor.

        The name may lack the encoder's prefix. `architecture` is the class of the model in BERT or in the family.
        """
        if re.match(r'(embeddings|encoder|transformer|pooler|layers|final_norm)\.', name):
            name = f'{self.prefix}.{name}'
        elif self.tensors and re.match(r'(bert|cls)\.', name):
            return (f'other.{name}',)  # The family has no such name. The prefix makes the tensor unused.
        for theirs, ours in self.fused:
            parts = tuple(_rename(name, [(theirs, part)]) for part in ours)
            if name not in parts:
                return parts
        rows = (*self._of_class(architecture), *self.classifier, *self.tensors)
        return (_rename(name, ((theirs, ours) for ours, theirs in rows)),)

    def to_family_name(self, name: str, architecture: str) -> str:
        """Converts the name of a tensor of BERT to its name in the class `architecture` of the family."""
        fused = tuple((part, theirs) for theirs, ours in self.fused for part in ours)
        return _rename(name, (*fused, *self._of_class(architecture), *self.tensors))

    def _of_class(self, architecture: str) -> Renaming:
        if architecture.endswith('ForQuestionAnswering'):
            return self.spans
        return self.classifier if architecture.endswith('ForSequenceClassification') else ()

    def to_bert_values(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Converts a config.json of the family to a config.json of BERT.

        Raises a UserError if `unused_positions` fails, or if the encoder lacks the fixed activation of the MLM head.
        """
        if self.name == 'bert':
            return dict(values)
        values = {**self.defaults, **values}
        result = {**values, **dict(self.fixed), 'model_type': 'bert'}
        for ours, theirs in self.keys:
            result.pop(ours, None)
            if theirs in values:
                result[ours] = values[theirs]
        if isinstance(values.get('architectures'), list):
            result['architectures'] = [_to_bert_class(name) for name in values['architectures']]
        if self.activation and values.get('hidden_act', self.activation) != self.activation:
            expected = f'{self.activation!r}, the activation of the MLM head'
            raise UserError(where, f'hidden_act {values["hidden_act"]!r}', expected, 'give another model')
        positions = values.get('max_position_embeddings', 512)
        if self.offset and type(positions) is int:
            result['max_position_embeddings'] = positions - self.unused_positions(values, where)
        return result

    def to_family_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Converts a config.json of BERT to a config.json of the family."""
        family_keys = dict(self.keys)
        result = {family_keys.get(key, key): value for key, value in values.items() if key not in dict(self.fixed)}
        result['model_type'] = self.name
        result['architectures'] = [name.replace('Bert', self.classes, 1) for name in values['architectures']]
        if self.offset:
            result['max_position_embeddings'] += values['pad_token_id'] + 1
        return result

    def unused_positions(self, values: Mapping[str, Any], where: str) -> int:
        """Returns the number of unused rows at the start of the position table.

        With an `offset`, raises a UserError if `pad_token_id` is not an integer of at least 0.
        """
        pad = values.get('pad_token_id', 1) if self.offset else -1
        if self.offset and (type(pad) is not int or pad < 0):
            raise UserError(where, f'pad_token_id {pad!r}', 'the id of the padding', 'use the published config.json')
        return pad + 1


def _to_bert_class(name: Any) -> Any:
    pattern = r'^(XLMRoberta|Roberta|Camembert|DistilBert|ModernBert)(?=For|Model)'
    return re.sub(pattern, 'Bert', name) if type(name) is str else name


def _rename(name: str, rows: Iterable[tuple[str, str]]) -> str:
    for old, new in rows:
        pattern = re.escape(old).replace(r'\{i\}', r'(?P<i>\d+)') + r'(?P<rest>\..*)'
        if match := re.fullmatch(pattern, name):
            return new.format(**match.groupdict()) + match['rest']
    return name


BERT = Family('bert', 'Bert', 'bert')
# Source: models/roberta in transformers. The first token has the position (padding id + 1), as in fairseq. The first
# layer of the classifier is equivalent to BERT's pooler.
ROBERTA = Family(
    'roberta',
    'Roberta',
    'roberta',
    tensors=(
        ('cls.predictions.transform.dense', 'lm_head.dense'),
        ('cls.predictions.transform.LayerNorm', 'lm_head.layer_norm'),
        ('cls.predictions', 'lm_head'),
        ('bert', 'roberta'),
    ),
    classifier=(('bert.pooler.dense', 'classifier.dense'), ('classifier', 'classifier.out_proj')),
    activation='gelu',
    offset=True,
    one_segment=True,
)
XLM_ROBERTA = dataclasses.replace(ROBERTA, name='xlm-roberta', classes='XLMRoberta')
CAMEMBERT = dataclasses.replace(ROBERTA, name='camembert', classes='Camembert')
# Keys of BERT that DistilBERT and ModernBERT lack, with their values.
_ENCODER_ONLY = (
    ('type_vocab_size', 0),
    ('is_decoder', False),
    ('position_embedding_type', 'absolute'),
    ('use_cache', False),
)
# Source: models/distilbert in transformers.
DISTILBERT = Family(
    'distilbert',
    'DistilBert',
    'distilbert',
    tensors=(
        (f'{_BLOCK}.attention.self.query', f'{_DISTIL}.attention.q_lin'),
        (f'{_BLOCK}.attention.self.key', f'{_DISTIL}.attention.k_lin'),
        (f'{_BLOCK}.attention.self.value', f'{_DISTIL}.attention.v_lin'),
        (f'{_BLOCK}.attention.output.dense', f'{_DISTIL}.attention.out_lin'),
        (f'{_BLOCK}.attention.output.LayerNorm', f'{_DISTIL}.sa_layer_norm'),
        (f'{_BLOCK}.intermediate.dense', f'{_DISTIL}.ffn.lin1'),
        (f'{_BLOCK}.output.dense', f'{_DISTIL}.ffn.lin2'),
        (f'{_BLOCK}.output.LayerNorm', f'{_DISTIL}.output_layer_norm'),
        ('bert.pooler.dense', 'pre_classifier'),
        ('cls.predictions.transform.dense', 'vocab_transform'),
        ('cls.predictions.transform.LayerNorm', 'vocab_layer_norm'),
        ('cls.predictions.decoder', 'vocab_projector'),
        ('cls.predictions', 'vocab_projector'),
        ('bert', 'distilbert'),
    ),
    keys=(
        ('hidden_size', 'dim'),
        ('num_hidden_layers', 'n_layers'),
        ('num_attention_heads', 'n_heads'),
        ('intermediate_size', 'hidden_dim'),
        ('hidden_dropout_prob', 'dropout'),
        ('attention_probs_dropout_prob', 'attention_dropout'),
        ('hidden_act', 'activation'),
    ),
    fixed=(*_ENCODER_ONLY, ('layer_norm_eps', 1e-12), ('pooler_act', 'relu')),
)
# Source: models/modernbert in transformers.
MODERNBERT = Family(
    'modernbert',
    'ModernBert',
    'model',
    tensors=(
        ('bert.embeddings.word_embeddings', 'model.embeddings.tok_embeddings'),
        ('bert.embeddings.LayerNorm', 'model.embeddings.norm'),
        (f'{_BLOCK}.attention.output.LayerNorm', f'{_MODERN}.attn_norm'),
        (f'{_BLOCK}.attention.output.dense', f'{_MODERN}.attn.Wo'),
        (f'{_BLOCK}.output.LayerNorm', f'{_MODERN}.mlp_norm'),
        (f'{_BLOCK}.output.dense', f'{_MODERN}.mlp.Wo'),
        ('bert.final_norm', 'model.final_norm'),
        ('cls.predictions.transform.dense', 'head.dense'),
        ('cls.predictions.transform.LayerNorm', 'head.norm'),
        ('cls.predictions.decoder', 'decoder'),
        ('cls.predictions', 'decoder'),
    ),
    defaults={'norm_eps': 1e-5, 'max_position_embeddings': 8192, 'mlp_dropout': 0.0, 'attention_dropout': 0.0},
    fused=(
        (f'{_MODERN}.attn.Wqkv', tuple(f'{_BLOCK}.attention.self.{name}' for name in ('query', 'key', 'value'))),
        (f'{_MODERN}.mlp.Wi', (f'{_BLOCK}.intermediate.gate', f'{_BLOCK}.intermediate.dense')),
    ),
    spans=(('qa_outputs', 'classifier'),),
    keys=(
        ('layer_norm_eps', 'norm_eps'),
        ('hidden_dropout_prob', 'mlp_dropout'),
        ('attention_probs_dropout_prob', 'attention_dropout'),
    ),
    fixed=(*_ENCODER_ONLY, ('hidden_act', 'gelu')),
    # These ids are written because transformers' defaults only fit the vocabulary of the published ModernBERT.
    token_ids=(
        ('bos_token_id', 'cls_id'),
        ('cls_token_id', 'cls_id'),
        ('eos_token_id', 'sep_id'),
        ('sep_token_id', 'sep_id'),
    ),
    field_names=modernbert.FIELD_NAMES,
    read_fields=modernbert.read_fields,
    write_values=modernbert.write_values,
)
FAMILIES = (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, MODERNBERT)


def find_family(model_type: Any) -> Family:
    """Returns the family of a `model_type`, or BERT for unknown types, which later checks reject."""
    return next((family for family in FAMILIES if family.name == model_type), BERT)


def choose_family(config: BertConfig, separators: int, *, pairs: bool) -> Family:
    """Returns the family in which a model is exported.

    A model with features that BERT lacks is a ModernBERT. Else, a model without a segment embedding is a DistilBERT.
    Else, a model is a RoBERTa if it has one segment, two `separators` between the texts of a pair, the erf form of
    GELU, bidirectional attention, and no pair head (`pairs` is False). All other models are BERTs.
    """
    if config.modern_fields:
        return MODERNBERT
    if not config.num_segments:
        return DISTILBERT
    fits_roberta = config.mlp == ROBERTA.activation and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and fits_roberta else BERT
