"""A family of models in transformers: how its names and settings differ from BERT's, for both directions.

The readers and writers of directories use BERT's names. A model that is more than a BERT has further names
(convert/names.py), and its family converts its config.json itself.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.model.config import BertConfig

BLOCK = 'bert.encoder.layer.{i}'
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
      spans: The additional prefixes of the class for question answering.
      fused: (prefix in this family, prefixes in BERT) of a tensor that is a concatenation of several of BERT's.
      keys: (BERT's key of config.json, the family's key).
      fixed: (BERT's key that the family lacks, its value).
      activation: The only activation of the head for masked words; '' if it is that of the encoder.
      offset: Whether the position table begins with unused rows, up to the row of the padding's id.
      read_fields: Returns the fields of a BertConfig that `keys` does not cover, from a config.json and its name.
      write_values: Returns the keys of a config.json that `keys` does not cover. None for a family of BERT's form.
    """

    name: str
    classes: str
    prefix: str
    read_as_well: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tensors: Renaming = ()
    classifier: Renaming = ()
    spans: Renaming = ()
    fused: tuple[tuple[str, tuple[str, ...]], ...] = ()
    keys: Renaming = ()
    fixed: tuple[tuple[str, Any], ...] = ()
    activation: str = ''
    offset: bool = False
    read_fields: Callable[[Mapping[str, Any], str], dict[str, Any]] | None = None
    write_values: Callable[[BertConfig], dict[str, Any]] | None = None

    def architecture(self, bert_class: str) -> str:
        """Returns the family's class that corresponds to a class of BERT."""
        return bert_class.replace('Bert', self.classes, 1)

    def variant(self, model_type: str) -> 'Family':
        """Returns the family under the name of one of `read_as_well`."""
        classes = self.read_as_well.get(model_type)
        return dataclasses.replace(self, name=model_type, classes=classes) if classes else self

    def bert_names(self, name: str, architecture: str = '') -> tuple[str, ...]:
        """Returns BERT's name of a tensor of the family, with or without the encoder's prefix; names if it is fused."""
        if re.match(r'(embeddings|encoder|transformer|pooler|layers|final_norm)\.', name):
            name = f'{self.prefix}.{name}'
        elif self.tensors and re.match(r'(bert|cls)\.', name):
            return (f'other.{name}',)  # not a tensor of the family, and must not be mistaken for one
        for theirs, ours in self.fused:
            parts = tuple(_rename(name, ((theirs, part),)) for part in ours)
            if name not in parts:
                return parts
        rows = (*self._of_class(architecture), *self.classifier, *self.tensors)
        return (_rename(name, tuple((theirs, ours) for ours, theirs in rows)),)

    def own_name(self, name: str, architecture: str) -> str:
        """Returns the family's name of a tensor of BERT in one of the family's classes."""
        fused = tuple((part, theirs) for theirs, ours in self.fused for part in ours)
        return _rename(name, (*fused, *self._of_class(architecture), *self.tensors))

    def _of_class(self, architecture: str) -> Renaming:
        if architecture.endswith('ForQuestionAnswering'):
            return self.spans
        return self.classifier if architecture.endswith('ForSequenceClassification') else ()

    def bert_values(self, values: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Converts a config.json of the family to one of BERT.

        Raises:
          UserError: The padding id is not a number, or the activation differs from that of the head.
        """
        if self.name == 'bert':
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


def _as_bert(name: Any) -> Any:
    pattern = r'^(XLMRoberta|Roberta|Camembert|DistilBert|ModernBert)(?=For|Model)'
    return re.sub(pattern, 'Bert', name) if type(name) is str else name


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
