"""BERT's relatives in transformers: the same computation under other names, with a few things fixed or moved.

Whoever reads or writes a directory speaks of BERT. What differs in a relative is in its record here, for both ways.
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
      name: its `model_type`.
      classes: how the names of its classes begin.
      prefix: of the names of its encoder's tensors.
      read_as_well: {`model_type` of the same form: how the names of its classes begin}.
      tensors: (BERT's name, theirs), from the front up to a dot; the first that fits. {i} stands for a number.
      classifier: the same for what differs in its class for sequences.
      keys: (BERT's key of config.json, theirs).
      fixed: (BERT's key that it lacks, what it would be).
      activation: the only one of its head for masked words; '' where that has the encoder's.
      offset: its table of positions begins with rows that no token of a text takes, up to that of the padding's id.
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

    def architecture(self, of_bert: str) -> str:
        """Its class that computes the same as BERT's."""
        return of_bert.replace('Bert', self.classes, 1)

    def variant(self, model_type: str) -> 'Family':
        """The same form under the name of one of `read_as_well`."""
        classes = self.read_as_well.get(model_type)
        return dataclasses.replace(self, name=model_type, classes=classes) if classes else self

    def bert_name(self, name: str) -> str:
        """BERT's name of a tensor of theirs, with or without the encoder's prefix."""
        if re.match(r'(embeddings|encoder|transformer|pooler)\.', name):
            name = f'{self.prefix}.{name}'
        elif self.tensors and re.match(r'(bert|cls)\.', name):
            return f'other.{name}'  # not theirs, and not to be taken for it
        return _renamed(name, tuple((theirs, ours) for ours, theirs in (*self.classifier, *self.tensors)))

    def own_name(self, name: str, architecture: str) -> str:
        """Their name of a tensor of BERT's, in one of their classes."""
        classifier = self.classifier if architecture.endswith('ForSequenceClassification') else ()
        return _renamed(name, (*classifier, *self.tensors))

    def bert_values(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A config.json of theirs as one of a BERT.

        Raises:
          UserError: a padding id that is no number, an activation that its head does not share.
        """
        if self is BERT:
            return dict(values)
        found = {**values, **dict(self.fixed), 'model_type': 'bert'}
        for ours, theirs in self.keys:
            found.pop(ours, None)
            if theirs in values:
                found[ours] = values[theirs]
        if isinstance(values.get('architectures'), list):
            found['architectures'] = [_as_bert(name) for name in values['architectures']]
        if self.activation and values.get('hidden_act', self.activation) != self.activation:
            expected = f'{self.activation!r}, as in its head for masked words'
            raise UserError(where, f'hidden_act {values["hidden_act"]!r}', expected, 'give another model')
        positions = values.get('max_position_embeddings', 512)
        if self.offset and type(positions) is int:
            found['max_position_embeddings'] = positions - self.unused_positions(values, where)
        return found

    def own_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The config.json of a BERT as one of theirs."""
        theirs_of = dict(self.keys)
        found = {theirs_of.get(key, key): value for key, value in values.items() if key not in dict(self.fixed)}
        found['model_type'] = self.name
        found['architectures'] = [self.architecture(name) for name in values['architectures']]
        if self.offset:
            found['max_position_embeddings'] += values['pad_token_id'] + 1
        return found

    def unused_positions(self, values: Mapping[str, Any], where: str) -> int:
        """Rows of their table of positions in front of that of the first token."""
        pad = values.get('pad_token_id', 1) if self.offset else -1
        if self.offset and (type(pad) is not int or pad < 0):
            raise UserError(where, f'pad_token_id {pad!r}', 'the id of the padding', 'take the original file')
        return pad + 1


BERT = Family('bert', 'Bert', 'bert')
# transformers: models/roberta. Positions count from the padding's id + 1 (fairseq's convention); the classifier has its
# own layer in place of the pooler, which computes the same.
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


def family_read(model_type: Any) -> Family:
    """The family of a config.json; BERT for one that is none of them, which is refused as a BERT."""
    return next((f for f in FAMILIES if model_type in (f.name, *f.read_as_well)), BERT)


def family_of(config: BertConfig, separators: int, *, pairs: bool) -> Family:
    """The family in which a model is written: BERT's but for a model of another one's form.

    Without segment embedding it is a DistilBERT. With a single segment, a tokenizer that writes two separators between
    the texts of a pair, erf's gelu, attention to both sides and no head on pairs it is a RoBERTa.

    Args:
      config: of the model.
      separators: of the tokenizer.
      pairs: whether it has a head that judges pairs (NSP).
    """
    if not config.num_segments:
        return DISTILBERT
    plain = config.activation == ROBERTA.activation and not config.causal and not pairs
    return ROBERTA if separators == 2 and config.num_segments == 1 and plain else BERT


def _as_bert(name: Any) -> Any:
    return (
        re.sub(r'^(XLMRoberta|Roberta|Camembert|DistilBert)(?=For|Model)', 'Bert', name) if type(name) is str else name
    )


@functools.cache
def _rules(rows: Renaming) -> tuple[tuple[Callable[[str], re.Match | None], str], ...]:
    pattern = lambda name: re.escape(name).replace(r'\{i\}', r'(?P<i>\d+)') + r'(?P<rest>\..*)'  # noqa: E731
    return tuple((re.compile(pattern(before)).fullmatch, after) for before, after in rows)


def _renamed(name: str, rows: Renaming) -> str:
    for fits, after in _rules(rows):
        found = fits(name)
        if found:
            return after.format(**found.groupdict()) + found['rest']
    return name
