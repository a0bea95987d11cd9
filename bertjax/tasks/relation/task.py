"""The task of relation classification."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import numpy as np

from bertjax.config.ranges import list_of, one_of, text
from bertjax.convert.heads import SEQUENCE_CLASSIFICATION, Head
from bertjax.data.features import INPUTS, FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.losses import CLASSIFICATION, Objective
from bertjax.metrics.classification import relation_figures
from bertjax.model.dropout import Dropout
from bertjax.model.heads import BertForTask
from bertjax.model.lookup import gather_positions
from bertjax.tasks.pairs import add_special_tokens
from bertjax.tasks.reading.layout import Column, Record
from bertjax.tasks.reading.records import FORMATS, Row, read_records
from bertjax.tasks.reading.splits import SplitFiles
from bertjax.tasks.relation.features import MARKERS, STARTS, TYPED, describe_marks, encode_relations, role_marks
from bertjax.tasks.relation.files import Relation, parse_relation
from bertjax.tasks.sentence.task import Logits, TextTask
from bertjax.tasks.task import check_all_or_none, option
from bertjax.text.special import is_unused
from bertjax.text.tokenizer import Tokenizer


class BertForRelation(BertForTask):
    """Classifies the relation of two entities from the concatenated last hidden states of their opening marks."""

    smallest_inputs = (*BertForTask.smallest_inputs, (1, 2))

    def __call__(self, *inputs: jax.Array, dropout: Dropout | None = None) -> dict[str, jax.Array]:
        """Maps int32 input_ids, segment_ids and attention_mask [B, S], and starts [B, 2], to `logits`.

        `starts` has the positions of the first tokens of the two opening marks. The logits are float32 [B, outputs].
        """
        *tokens, starts = inputs
        hidden = self._hidden(*tokens, dropout)
        states = gather_positions(hidden, starts)  # [B, 2, D]
        return {'logits': self._project(states.reshape(len(states), -1), dropout)}  # [B, outputs]


ENTITY_STARTS = Head(BertForRelation)
RELATIONS = dataclasses.replace(CLASSIFICATION, inputs=(*INPUTS, STARTS))
POOLS = ('cls', 'starts')
_METRICS = ('micro_f1', 'precision', 'recall', 'macro_f1', 'accuracy')


@dataclasses.dataclass
class RelationTask(TextTask):
    """Assigns a label to a pair of entities in a sentence. For the formats of records, see files.py.

    Attributes:
      data: the folder with train.json, dev.json and test.json, or other usual names and formats.
      seq_len: the maximum sequence length S in tokens, including marks, [CLS] and [SEP].
      markers: the method of marking the entities.
      pool: the input of the head: 'cls' for the pooled [CLS], or 'starts' for the concatenated hidden states of the two
        opening marks (arXiv 1906.03158). transformers has no class for 'starts'.
      negative: the label for 'no relation', if the data have one. All metrics except accuracy ignore it.
      labels: the labels in the order of their indices; () collects and sorts the labels of the training file.
      text_a: the name of the field with the marked text.
      label: the name of the field with the relation; '' for `relation` or `label`.
      metric: the metric that selects the best run.
    """

    markers: str = option('entity', one_of(MARKERS), affects='model')
    pool: str = option('cls', one_of(POOLS), affects='model')
    negative: str = 'no_relation'
    labels: Sequence[str] = option((), list_of(text(empty=False)))
    text_a: str = option('text', text(empty=False), affects='reading')
    label: str = option('', affects='reading')
    metric: str = option('micro_f1', one_of(_METRICS), affects='model')

    default_name = 'relations'
    keep_tabs = True
    # These options of TextTask are fixed here. For example, the windows of long='windows' could separate the entities.
    long: ClassVar[str] = 'truncate'
    stride: ClassVar[int] = 0
    bilstm_units: ClassVar[int] = 0
    regression: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        self._files = SplitFiles(self.data, self._has_labels, ('.json', *FORMATS))
        self.text_columns = (Column((self.text_a,), required=False, key='config.task.text_a'),)
        self.measures = tuple(dict.fromkeys((self.metric, *_METRICS)))

    @property
    def head(self) -> Head:
        return ENTITY_STARTS if self.pool == 'starts' else SEQUENCE_CLASSIFICATION

    @property
    def objective(self) -> Objective:
        return RELATIONS if self.pool == 'starts' else super().objective

    def _read(self, split: str) -> Iterator[Relation]:
        names = (self.label,) if self.label else ('relation', 'label')
        for record in read_records(self._files.require(split)):
            name = next((name for name in names if record.fields.get(name) is not None), None)
            label = '' if name is None else record.fields[name]
            if not isinstance(label, str | int):
                raise UserError(record.where, f'{name} {label!r}', 'the name of a relation', 'correct the record')
            label = str(label).strip()
            if not label and split != 'test':
                raise UserError(record.where, 'no label', ' or '.join(names), 'correct or remove the record')
            yield self._parse(record, label or None, keep_fields=split != 'train')

    def _parse(self, record: Record, label: str | None, *, keep_fields: bool) -> Relation:
        relation = parse_relation(record, self.text_a, label, keep_fields=keep_fields)
        for name, entity in zip(('subj_type', 'obj_type'), relation.entities, strict=True):
            if self.markers in TYPED and not entity.type.replace('_', ' ').strip():
                expected = f'a row with the types of both entities for config.task.markers={self.markers}'
                fix = 'use a file of rows with types, or train with config.task.markers=entity'
                raise UserError(record.where, f'no {name}', expected, fix)
        return relation

    def records(self, split: str) -> Sequence[Relation]:
        records = list(self._read(split))
        check_all_or_none(records)
        return records

    def example(self, row: Row, label: str | None = None, index: str = '') -> Relation:
        """See TextTask; the row has a single text, with marks around its two entities, or the fields of TACRED."""
        if len(row.values) != 1:
            found, expected = 'a pair of texts', 'a text with the marks << a >> and [[ b ]]'
            raise UserError(row.where, found, expected, 'give a single text')
        fields = {self.text_a: row.values[0]} if row.fields is None else row.fields
        return self._parse(Record(row.where, fields), label, keep_fields=row.fields is not None)

    def learn(self, records: Sequence[Relation]) -> None:
        super().learn(records)
        self._check_negative()

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._check_negative()

    def _check_negative(self) -> None:
        """Raises a UserError unless `negative` is a label, the default or ''."""
        if self.negative not in ('', RelationTask.negative, *self.labels):
            expected = f"one of {', '.join(self.labels[:30])}{' …' if len(self.labels) > 30 else ''}, or ''"
            raise UserError('config.task.negative', repr(self.negative), expected, 'correct the label')

    def features(self, records: Sequence[Relation], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Builds a row `[CLS] … [SEP]` for each of N records, with the row array STARTS, int32 [N, 2].

        If every record has a label, there is also the row array `labels`, int32 [N], with the indices of the labels.
        """
        targets, builder, truncated = self._known_targets(records), FeatureBuilder(), 0
        sequences = encode_relations(records, tokenizer, self.seq_len, self.markers)
        for row, (tokens, starts, _, complete) in enumerate(sequences):
            truncated += not complete
            builder.add_sequence(add_special_tokens(tokens, tokenizer))
            values = {} if targets is None else {'labels': targets[row]}
            builder.add_row(row, **{STARTS: np.asarray(starts, np.int32) + 1}, **values)
        notes = [describe_marks(tokenizer, self.markers)] if training else []
        if truncated:
            longer = f'{truncated:,} of {len(records):,} records are longer than config.seq_len={self.seq_len}'
            notes.append(f'{longer} and lose words, the farthest from the entities first')
        return builder.build(notes=notes)

    def fixed_tokens(self, records: Sequence[Relation], features: Features, tokenizer: Tokenizer) -> np.ndarray:
        """See Task; the fixed tokens are the marks and types of the entities."""
        masks = (fixed for _, _, fixed, _ in encode_relations(records, tokenizer, self.seq_len, self.markers))
        return np.concatenate([np.concatenate([[False], fixed, [False]]) for fixed in masks])

    def card_facts(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """See Task; tokenizers of transformers split the name of an unused piece that is not added as a token."""
        facts = {'text': describe_marks(tokenizer, self.markers)}
        marks = [tokenizer.pieces[i] for mark in role_marks(tokenizer, self.markers) for i in mark]
        if any(map(is_unused, marks)):
            facts['before the first use'] = f'`tokenizer.add_tokens({marks}, special_tokens=True)`'
        return {'Input': facts}

    def metrics(self, records: Sequence[Relation], predictions: Logits) -> dict[str, float | None]:
        negative = self.labels.index(self.negative) if self.negative in self.labels else None
        values = relation_figures(self._confusion(records, predictions), negative)
        return {name: values[name] for name in self.measures}

    def rows(self, records: Sequence[Relation], predictions: Logits) -> Iterator[dict[str, Any]]:
        """Yields `subject` and `object`, the texts of the entities, with the keys of TextTask.rows, for each record."""
        for record, row in zip(records, super().rows(records, predictions), strict=True):
            yield {'subject': record.mention(0), 'object': record.mention(1), **row}

    def official_files(self, split: str, records: Sequence[Relation], predictions: Logits) -> dict[str, str]:
        """Returns a file with one predicted label per line, the input format of TACRED's scorer."""
        return {f'{split}.txt': ''.join(f'{self.labels[logits.argmax()]}\n' for logits in predictions)}
