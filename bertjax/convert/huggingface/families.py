"""BERT's relatives in transformers: the same computation under other names, with a few fixed or moved settings.

The readers and writers of directories use BERT's names. A `Family` holds the differences of a relative, for both
directions.
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
    """A kind of model.

    Attributes:
      name: The `model_type`.
      classes: The prefix of the class names.
      prefix: The prefix of the names of the encoder's tensors.
      read_as_well: {`model_type` of another family of the same form: the prefix of its class names}.
      tensors: (prefix in BERT, prefix in this family) of tensor names, up to a dot; the first match applies, and {i}
        matches a number.
      classifier: The additional prefixes of the class for sequence classification.
      keys: (BERT's key of config.json, the family's key).
      fixed: (BERT's key that the family lacks, its value).
      activation: The only activation of the head for masked words; '' if it is that of the encoder.
      offset: Whether the position table begins with unused rows, up to the row of the padding's id.
    """

    name: str
    classes: str
    prefix: str
    read_as_well: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensors: Renaming = ()
    classifier: Renaming = ()
    keys: Renaming = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    activation: str = ''
    offset: bool = False

    def architecture(self, bert_class: str) -> str:
        """Returns the family's class that corresponds to a class of BERT."""
        return bert_class.replace('Bert', self.classes, 1)

    def variant(self, model_type: str) -> 'Family':
        """Returns the family under the name of one of `read_as_well`."""
        classes = self.read_as_well.get(model_type)
        return dataclasses.replace(self, name=model_type, classes=classes) if classes else self

    def bert_name(self, name: str) -> str:
        """Returns BERT's name of a tensor of the family, with or without the encoder's prefix."""
        if re.match(r'(embeddings|encoder|transformer|pooler)\.', name):
            name = f'{self.prefix}.{name}'
        elif self.tensors and re.match(r'(bert|cls)\.', name):
            return f'other.{name}'  # not a tensor of the family, and must not be mistaken for one
        return _rename(name, tuple((theirs, ours) for ours, theirs in (*self.classifier, *self.tensors)))

    def own_name(self, name: str, architecture: str) -> str:
        """Returns the family's name of a tensor of BERT in one of the family's classes."""
        classifier = self.classifier if architecture.endswith('ForSequenceClassification') else ()
        return _rename(name, (*classifier, *self.tensors))

    def bert_values(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Converts a config.json of the family to one of BERT.

        Raises:
          UserError: The padding id is not a number, or the activation differs from that of the head.
        """
        if self is BERT:
            return dict(values)
        result = {**values, **dict(self.fixed), 'model_type': 'bert'}
        for ours, theirs in self.keys:
            result.pop(ours, None)
            if theirs in values:
                result[ours] = values[theirs]
        if isinstance(values.get('architectures'), list):
            result['architectures'] = [_as_bert(name) for name in values['architectures']]
        if self.activation and values.get('hidden_act', self.activation) != self.activation:
            expected = f'{self.activation!r}, as in its head for masked words'
            raise UserError(where, f'hidden_act {values["hidden_act"]!r}', expected, 'give another model')
        positions = values.get('max_position_embeddings', 512)
        if self.offset and type(positions) is int:
            result['max_position_embeddings'] = positions - self.unused_positions(values, where)
        return result

    def own_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the config.json of a BERT to one of the family."""
        own_keys = dict(self.keys)
        result = {own_keys.get(key, key): value for key, value in values.items() if key not in dict(self.fixed)}
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
# transformers: models/roberta. Positions count from the padding's id + 1 (fairseq's convention). The classifier has an
# equivalent layer instead of the pooler.
ROBERTA = Family(
    'roberta',
    'Roberta',
    'roberta',
    read_as_well={'xlm-roberta': 'XLMRoberta', 'camembert': 'Camembert'},
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
# transformers: models/distilbert.
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
    """Returns the family of a config.json; BERT for unknown ones, which later checks reject."""
    return next((f for f in FAMILIES if model_type in (f.name, *f.read_as_well)), BERT)


def choose_family(config: BertConfig, separators: int, *, pairs: bool) -> Family:
    """Returns the family for the export of a model: BERT, unless the model has the form of another family.

    A model without segment embedding is a DistilBERT. A model with a single segment, two separators between the texts
    of a pair, the erf form of gelu, bidirectional attention and no pair head is a RoBERTa.

    Args:
      config: The config of the model.
      separators: The tokenizer's number of separators.
      pairs: Whether the model has a pair head (NSP).
    """
    if not config.num_segments:
        return DISTILBERT
    fits_roberta = config.mlp == ROBERTA.activation and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and fits_roberta else BERT


def _as_bert(name: Any) -> Any:
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
