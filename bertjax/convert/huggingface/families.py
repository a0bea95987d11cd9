"""The families of models in transformers that bertjax reads and writes, and how they differ from BERT.

The readers and writers of tensors use BERT's names, and the names of convert/names.py for parts that BERT lacks. A
`Family` converts these names to its own names and back.
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
# {our field: its key in BERT's config.json}
FIELDS = {
    'vocab_size': 'vocab_size',
    'num_layers': 'num_hidden_layers',
    'width': 'hidden_size',
    'num_heads': 'num_attention_heads',
    'mlp_dim': 'intermediate_size',
    'max_positions': 'max_position_embeddings',
    'num_segments': 'type_vocab_size',
    'dropout': 'hidden_dropout_prob',
    'attention_dropout': 'attention_probs_dropout_prob',
    'layer_norm_eps': 'layer_norm_eps',
    'init_stddev': 'initializer_range',
    'causal': 'is_decoder',
    'mlp': 'hidden_act',
}
# {activation in transformers: our `mlp`}. Some functions have several names, of which the first is written.
ACTIVATIONS = {
    'gelu': 'gelu',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'relu': 'relu',
    'gelu_new': 'gelu_tanh',
    'gelu_python': 'gelu',
    'gelu_python_tanh': 'gelu_tanh',
}


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
      keys: {our field: its key in config.json}, where it differs from BERT's key in FIELDS.
      fixed: {our field: the value in all models of this family}, for fields whose key this family lacks.
      activations: {activation of the encoder and the MLM head: our `mlp`}.
      offset: Whether the rows 0 to `pad_token_id` of the position table are unused.
      one_segment: Whether the family's own tokenizers return no segment ids, so that all tokens are in segment 0.
      defaults: {key of this family: default value}, for optional keys of config.json with other defaults than BERT's.
      token_ids: Pairs (key of config.json, attribute of the tokenizer) for the ids of special tokens except [PAD].
      read_fields: A function (content of config.json with `defaults`, its path for messages) -> fields of BertConfig
        that replace the fields in `keys`.
      write_values: A function BertConfig -> the entries of config.json that BERT lacks or that replace BERT's.
    """

    name: str
    classes: str
    prefix: str
    tensors: Renaming = ()
    classifier: Renaming = ()
    spans: Renaming = ()
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    offset: bool = False
    one_segment: bool = False
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    token_ids: Renaming = ()
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

    @property
    def all_keys(self) -> dict[str, str]:
        """{our field: its key in config.json} of all fields that are not `fixed`."""
        return {ours: key for ours, key in {**FIELDS, **self.keys}.items() if ours not in self.fixed}

    @property
    def encoder_only(self) -> bool:
        """Whether the family has no decoders, and no keys in config.json for decoders or for kinds of positions."""
        return 'causal' in self.fixed

    def unused_positions(self, values: Mapping[str, Any], where: str) -> int:
        """Returns the number of unused rows at the start of the position table.

        With an `offset`, raises a UserError if `pad_token_id` is not an integer of at least 0.
        """
        pad = values.get('pad_token_id', 1) if self.offset else -1
        if self.offset and (type(pad) is not int or pad < 0):
            raise UserError(where, f'pad_token_id {pad!r}', 'the id of the padding', 'use the published config.json')
        return pad + 1


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
    activations={'gelu': 'gelu'},  # the MLM head has no other activation
    offset=True,
    one_segment=True,
)
XLM_ROBERTA = dataclasses.replace(ROBERTA, name='xlm-roberta', classes='XLMRoberta')
CAMEMBERT = dataclasses.replace(ROBERTA, name='camembert', classes='Camembert')
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
    keys={
        'width': 'dim',
        'num_layers': 'n_layers',
        'num_heads': 'n_heads',
        'mlp_dim': 'hidden_dim',
        'dropout': 'dropout',
        'attention_dropout': 'attention_dropout',
        'mlp': 'activation',
    },
    fixed={'num_segments': 0, 'causal': False, 'layer_norm_eps': 1e-12, 'pooler': 'relu'},
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
    defaults=modernbert.DEFAULTS,
    fused=(
        (f'{_MODERN}.attn.Wqkv', tuple(f'{_BLOCK}.attention.self.{name}' for name in ('query', 'key', 'value'))),
        (f'{_MODERN}.mlp.Wi', (f'{_BLOCK}.intermediate.gate', f'{_BLOCK}.intermediate.dense')),
    ),
    spans=(('qa_outputs', 'classifier'),),
    keys=modernbert.KEYS,
    fixed=modernbert.FIXED,
    activations=modernbert.ACTIVATIONS,
    # These ids are written because transformers' defaults only fit the vocabulary of the published ModernBERT.
    token_ids=(
        ('bos_token_id', 'cls_id'),
        ('cls_token_id', 'cls_id'),
        ('eos_token_id', 'sep_id'),
        ('sep_token_id', 'sep_id'),
    ),
    read_fields=modernbert.read_fields,
    write_values=modernbert.write_values,
)
FAMILIES = (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, DISTILBERT, MODERNBERT)


def find_family(model_type: Any) -> Family:
    """Returns the family of a `model_type`, or BERT for unknown types, which later checks reject."""
    return next((family for family in FAMILIES if family.name == model_type), BERT)


def to_bert_class(name: Any) -> Any:
    """Converts the name of a class of any family to the name of BERT's class."""
    pattern = rf'^({"|".join(family.classes for family in FAMILIES)})(?=For|Model)'
    return re.sub(pattern, 'Bert', name) if type(name) is str else name


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
    fits_roberta = config.mlp in ROBERTA.activations.values() and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and fits_roberta else BERT
