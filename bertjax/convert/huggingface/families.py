"""The relatives of BERT in transformers: the same computation with other names and a few other settings.

The readers and writers of directories use BERT's names. A `Family` defines the differences of a relative for both
directions of the conversion.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.model.config import BertConfig

POSITIONS = 'bert.embeddings.position_embeddings.weight'
_BLOCK, _DISTIL = 'bert.encoder.layer.{i}', 'distilbert.transformer.layer.{i}'
Renaming = tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models that compute the same function as BERT.

    Attributes:
      name: The `model_type`.
      classes: The prefix of the class names.
      prefix: The prefix of the names of the encoder's tensors.
      variants: Other families with equal definitions: {`model_type`: prefix of the class names}.
      tensors: Pairs (prefix in BERT, prefix in this family) of tensor names. A prefix ends at a dot, and {i} in it
        matches a number. The first match applies.
      classifier: The additional pairs for the class for sequence classification.
      keys: Pairs (key of BERT in config.json, key of this family).
      fixed: Pairs (key of BERT that this family lacks, its value).
      activation: The activation of the head for masked words if it is fixed; '' if it is that of the encoder.
      offset: Whether the first rows of the position table, up to the row of the padding's id, are unused.
    """

    name: str
    classes: str
    prefix: str
    variants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensors: Renaming = ()
    classifier: Renaming = ()
    keys: Renaming = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    activation: str = ''
    offset: bool = False

    def architecture(self, bert_class: str) -> str:
        """Returns the class of the family that corresponds to a class of BERT."""
        return bert_class.replace('Bert', self.classes, 1)

    def variant(self, model_type: str) -> 'Family':
        """Returns the family with the names of `model_type`, one of `variants`."""
        classes = self.variants.get(model_type)
        return dataclasses.replace(self, name=model_type, classes=classes) if classes else self

    def to_bert_name(self, name: str) -> str:
        """Returns the name in BERT of a tensor of the family, whose name may lack the encoder's prefix."""
        if re.match(r'(embeddings|encoder|transformer|pooler)\.', name):
            name = f'{self.prefix}.{name}'
        elif self.tensors and re.match(r'(bert|cls)\.', name):
            return f'other.{name}'  # The prefix marks a tensor that is not in the family.
        return _rename(name, tuple((theirs, ours) for ours, theirs in (*self.classifier, *self.tensors)))

    def to_family_name(self, name: str, architecture: str) -> str:
        """Returns the name in the family of a tensor of BERT, for one of the family's classes."""
        classifier = self.classifier if architecture.endswith('ForSequenceClassification') else ()
        return _rename(name, (*classifier, *self.tensors))

    def to_bert_values(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Converts a config.json of the family to one of BERT.

        Raises:
          UserError: The padding id is not a valid number, or the encoder's activation differs from the head's.
        """
        if self is BERT:
            return dict(values)
        result = {**values, **dict(self.fixed), 'model_type': 'bert'}
        for ours, theirs in self.keys:
            result.pop(ours, None)
            if theirs in values:
                result[ours] = values[theirs]
        if isinstance(values.get('architectures'), list):
            result['architectures'] = [_to_bert_class(name) for name in values['architectures']]
        if self.activation and values.get('hidden_act', self.activation) != self.activation:
            expected = f'{self.activation!r}, as in its head for masked words'
            raise UserError(where, f'hidden_act {values["hidden_act"]!r}', expected, 'give another model')
        positions = values.get('max_position_embeddings', 512)
        if self.offset and type(positions) is int:
            result['max_position_embeddings'] = positions - self.unused_positions(values, where)
        return result

    def to_family_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the config.json of a BERT to one of the family."""
        family_keys = dict(self.keys)
        result = {family_keys.get(key, key): value for key, value in values.items() if key not in dict(self.fixed)}
        result['model_type'] = self.name
        result['architectures'] = [self.architecture(name) for name in values['architectures']]
        if self.offset:
            result['max_position_embeddings'] += values['pad_token_id'] + 1
        return result

    def unused_positions(self, values: Mapping[str, Any], where: str) -> int:
        """Returns the number of unused rows at the start of the position table."""
        pad = values.get('pad_token_id', 1) if self.offset else -1
        if self.offset and (type(pad) is not int or pad < 0):
            raise UserError(where, f'pad_token_id {pad!r}', 'the id of the padding', 'take the original file')
        return pad + 1


BERT = Family('bert', 'Bert', 'bert')
# Source: models/roberta in transformers. Positions start at the padding's id + 1, as in fairseq. The first layer of the
# classifier is equivalent to BERT's pooler.
ROBERTA = Family(
    'roberta',
    'Roberta',
    'roberta',
    variants={'xlm-roberta': 'XLMRoberta', 'camembert': 'Camembert'},
    tensors=(
        ('cls.predictions.transform.dense', 'lm_head.dense'),
        ('cls.predictions.transform.LayerNorm', 'lm_head.layer_norm'),
        ('cls.predictions', 'lm_head'),
        ('bert', 'roberta'),
    ),
    classifier=(('bert.pooler.dense', 'classifier.dense'), ('classifier', 'classifier.out_proj')),
    activation='gelu',
    offset=True,
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
    fixed=(
        ('type_vocab_size', 0),
        ('layer_norm_eps', 1e-12),
        ('pooler_act', 'relu'),
        ('is_decoder', False),
        ('position_embedding_type', 'absolute'),
        ('use_cache', False),
    ),
)
FAMILIES = (BERT, ROBERTA, DISTILBERT)


def find_family(model_type: Any) -> Family:
    """Returns the family of a `model_type`; BERT for unknown types, which later checks reject."""
    return next((f for f in FAMILIES if model_type in (f.name, *f.variants)), BERT)


def choose_family(config: BertConfig, separators: int, *, pairs: bool) -> Family:
    """Returns the family in which a model is exported.

    A model without segment embedding is a DistilBERT. A model is a RoBERTa if it has one segment, two separators
    between the texts of a pair, the erf form of GELU, bidirectional attention and no pair head. Other models are BERTs.

    Args:
      config: The config of the model.
      separators: The tokenizer's number of separators.
      pairs: Whether the model has a pair head (NSP).
    """
    if not config.num_segments:
        return DISTILBERT
    fits_roberta = config.activation == ROBERTA.activation and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and fits_roberta else BERT


def _to_bert_class(name: Any) -> Any:
    return (
        re.sub(r'^(XLMRoberta|Roberta|Camembert|DistilBert)(?=For|Model)', 'Bert', name) if type(name) is str else name
    )


@functools.cache
def _rules(rows: Renaming) -> tuple[tuple[Callable[[str], re.Match | None], str], ...]:
    pattern = lambda name: re.escape(name).replace(r'\{i\}', r'(?P<i>\d+)') + r'(?P<rest>\..*)'  # noqa: E731
    return tuple((re.compile(pattern(old)).fullmatch, new) for old, new in rows)


def _rename(name: str, rows: Renaming) -> str:
    for fullmatch, new in _rules(rows):
        match = fullmatch(name)
        if match:
            return new.format(**match.groupdict()) + match['rest']
    return name
