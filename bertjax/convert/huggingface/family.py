"""Families of models in transformers: how the names and settings of a family differ from BERT.

The readers and writers of directories use BERT's names, and the names of convert/names.py for parts that BERT lacks. A
`Family` converts these names to its own names and back. `Family.read_fields` and `Family.write_values` convert the keys
of config.json that BERT lacks.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.model.config import BertConfig

BLOCK = 'bert.encoder.layer.{i}'
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
