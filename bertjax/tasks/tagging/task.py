"""Tagging of words (named entities or other tags), from CoNLL column files or rows in JSON or Arrow."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import MANY, integer, list_of, one_of, text
from bertjax.config.schema import check_fields
from bertjax.convert.heads import TOKEN_CLASSIFICATION
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import TOKENS
from bertjax.metrics.entities import EntitySpan, score_entities, spans, split_tag, tag_accuracy, total_score
from bertjax.model.config import BertConfig
from bertjax.model.heads import LAYERS, BertForTask
from bertjax.tasks.options import BILSTM_UNITS, option
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.tagging import files
from bertjax.tasks.tagging.baseline import frequent_tags
from bertjax.tasks.tagging.blocks import DOCSTART
from bertjax.tasks.tagging.columns import ColumnOptions, Sentence, convert_to_file_scheme, file_tags, write_columns
from bertjax.tasks.tagging.features import tagging_features
from bertjax.tasks.tagging.predictions import Tags, gather_word_logits, make_certain_tags, predict_tags
from bertjax.tasks.tagging.report import tagging_report
from bertjax.tasks.tagging.rows import TagFields, parse_sentences
from bertjax.tasks.tagging.schemes import SCHEMES
from bertjax.tasks.task import Judgment, Outputs, Task, id2label
from bertjax.text.tokenizer import Tokenizer

_COLUMN = integer(-1000, 1000)  # the number of a column, from 0, or negative from the end


@dataclasses.dataclass
class TaggingTask(Task[Sentence, Tags]):
    """Assigns a tag to each word, and evaluates the entities that the tags mark.

    The first piece of a word carries its tag. Internally tags are in IOB2, in any scheme of the files. An I after O or
    after another type, which is invalid in IOB2, starts an entity, as in conlleval; `report` counts such predictions.
    Tags of other splits that do not occur in the training data can never be predicted; their number is printed.

    Attributes:
      data: the folder with train.txt, dev.txt and test.txt (or other names, see files.py:TaggedFiles); '' for
        CoNLL-2003 from tensorflow-datasets, which lacks document boundaries.
      seq_len: the maximum sequence length S in pieces, with [CLS] and [SEP].
      word_column, tag_column, comment, scheme: see ColumnOptions; with the scheme 'plain' the score is the accuracy.
      context: whether to fill rows with the surrounding sentences of the same document ("maximal document context" in
        section 5.3 of the BERT paper).
      stride: the distance between the starts of two windows of a long sentence, in pieces; 0 for half a window.
      words, tags, tag_names: the fields of JSON or Arrow files, see rows.py:TagFields.
      input_format: the format of a file for run=predict: 'columns', 'text' (one sentence per line, split by
        raw_text.py, with a blank line between documents), 'words' (the same, but only blanks separate words), 'jsonl',
        or 'auto', which detects any of these except 'words'.
      layers, bilstm_units, frozen: options of the head, see model/heads.py; the feature-based rows of the BERT paper
        have a frozen encoder.
    """

    data: str
    seq_len: int
    word_column: int = option(0, _COLUMN, 'the column of the words, from 0; -1 is the last', decides='reading')
    tag_column: int = option(-1, _COLUMN, 'the column of the tags', decides='reading')
    comment: str = option('', about="the prefix of comment lines; '': as in CoNLL-U", decides='reading')
    words: str = option('', about="JSON and Arrow: the field of the words; '': tokens or words", decides='reading')
    tags: str = option('', about="JSON and Arrow: the field of the tags; '': ner_tags, tags, ner, …", decides='reading')
    tag_names: Sequence[str] = option(
        (), list_of(text(empty=False)), 'names of tags that are numbers', decides='reading'
    )
    scheme: str = option('auto', one_of(SCHEMES), 'how tags mark entities; `plain`: each stands for itself')
    context: bool = False
    stride: int = option(0, integer(0, MANY))
    input_format: str = option('auto', one_of(files.INPUTS), decides='reading')
    layers: str = option('last', one_of(LAYERS), 'the layers that the head reads', decides='model')
    bilstm_units: int = option(0, BILSTM_UNITS, 'units of a BiLSTM before the head; 0: none', decides='model')
    frozen: bool = option(False, about='train the head alone', decides='model')

    head = TOKEN_CLASSIFICATION
    has_baselines = True
    objective = TOKENS

    def __post_init__(self):
        check_fields(self, 'task')
        self.columns = ColumnOptions(self.word_column, self.tag_column, self.comment, self.scheme)
        self._fields = TagFields(self.words, self.tags, tuple(self.tag_names))
        self._files = files.TaggedFiles(self.data, self.columns, self._fields)
        self.name = pathlib.PurePath(self.data).name or 'CoNLL-2003'
        self.score = 'accuracy' if self.plain else 'f1'
        self.labels: list[str] = []
        self._file_scheme = ''
        room = self.seq_len - 2
        if room < 1:
            raise UserError('config.seq_len', str(self.seq_len), 'at least 3', 'use 128')
        if self.stride > room:
            expected = f'0 to {room}, config.seq_len less [CLS] and [SEP]'
            raise UserError('config.task.stride', str(self.stride), expected, 'leave it 0 for half a window')

    @property
    def complete(self) -> bool:
        """See Task."""
        return bool(self.labels)

    @property
    def plain(self) -> bool:
        """Whether tags are independent and mark no entities."""
        return self.scheme == 'plain'

    def check_training(self, train: str) -> None:
        """See Task; with a frozen encoder only the head can be trained."""
        if self.frozen and train != 'head':
            raise UserError(
                'config.trainable',
                found=f'{train!r} with config.task.frozen',
                expected="'head', because the encoder is frozen",
                fix='set config.task.frozen=False',
            )

    def splits(self) -> Sequence[str]:
        """See Task."""
        return self._files.splits()

    def sources(self) -> str:
        """See Task."""
        return self._files.describe()

    def records(self, split: str) -> Sequence[Sentence]:
        """See Task."""
        return self._files.read(split)

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[Sentence | Blank]:
        """See Task; the format is `input_format`."""
        return files.read_input(lines, where, self.columns, self.input_format, self.labels, self._fields)

    def from_rows(self, rows: Iterator[Record]) -> Iterator[Sentence | Blank]:
        """See Task."""
        return parse_sentences(rows, self._fields, tagged=False)

    def learn(self, records: Sequence[Sentence]) -> None:
        """Collects the tags; every entity type gets both B and I."""
        counts = collections.Counter(tag for record in records for tag in record.tags)
        if self.plain:
            self.labels = sorted(counts)
        else:
            types = sorted({split_tag(tag)[1] for tag in counts if tag != 'O'})
            self.labels = ['O', *(f'{prefix}-{type}' if type else prefix for type in types for prefix in 'BI')]
            counts = collections.Counter(span.type for record in records for span in spans(record.tags))
        self._file_scheme = next((record.scheme for record in records if record.scheme), '')
        words = sum(len(record.words) for record in records)
        kinds = ', '.join(f'{name or "entities"} {count:,}' for name, count in counts.most_common(20))
        print(f'{len(records):,} sentences for training, {words:,} words: {kinds or "no entity"}')

    def learned_state(self) -> dict[str, Any]:
        """See Task."""
        return {'labels': self.labels, 'scheme': self._file_scheme}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See Task."""
        self.labels, self._file_scheme = list(state['labels']), state['scheme']

    def features(self, records: Sequence[Sentence], tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task and features.py."""
        notes = self._check_tags(records, training)
        if self.context and len({record.document for record in records}) == 1 and len(records) > 1:
            notes.append(
                f'{records[0].where}: no {DOCSTART} lines between documents: all sentences give context to others'
            )
        features = tagging_features(
            records,
            {label: i for i, label in enumerate(self.labels)},
            tokenizer,
            seq_len=self.seq_len,
            stride=self.stride or max(1, (self.seq_len - 2) // 2),
            context=self.context,
        )
        return dataclasses.replace(features, notes=tuple(notes))

    def _check_tags(self, records: Sequence[Sentence], training: bool) -> list[str]:
        """Returns notes about tags that are not labels.

        Raises:
          UserError: Training records have such tags.
        """
        unknown = self._count_unknown_tags(records)
        if unknown and training:
            tag, where = next((tag, record.where) for record in records for tag in record.tags or () if tag in unknown)
            known = ', '.join(self.labels[:20])
            raise UserError(where, f'the tag {tag!r}', known, 'train with the data of the checkpoint')
        return [_describe_unknown(unknown)] if unknown else []

    def _count_unknown_tags(self, records: Sequence[Sentence]) -> collections.Counter[str]:
        known = set(self.labels)
        return collections.Counter(tag for record in records for tag in record.tags or () if tag not in known)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        """See Task."""
        return self.head.module(
            model_config, len(self.labels), bilstm_units=self.bilstm_units, layers=self.layers, frozen=self.frozen
        )

    def predictions(self, records: Sequence[Sentence], features: Features, outputs: Outputs) -> list[Tags]:
        """See Task and predictions.py."""
        logits = gather_word_logits(records, features, outputs['token_logits'])
        return predict_tags(logits, self.labels, plain=self.plain)

    def ensemble_predictions(
        self, records: Sequence[Sentence], members: Sequence[tuple[Features, Outputs]]
    ) -> list[Tags]:
        """See Task; each model may have its own tokenizer, length and windows."""
        by_member = [gather_word_logits(records, features, outputs['token_logits']) for features, outputs in members]
        means = [np.mean(sentence_logits, axis=0) for sentence_logits in zip(*by_member, strict=True)]
        return predict_tags(means, self.labels, plain=self.plain)

    def metrics(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float | None]:
        """Returns f1, precision and recall of entities, micro-averaged as in conlleval, and the accuracy of tags in the
        scheme of the file."""
        gold, predicted = [record.tags for record in records], [prediction.tags for prediction in predictions]
        pairs = zip(records, predicted, strict=True)
        file_scheme_tags = [convert_to_file_scheme(record, tags, self._file_scheme) for record, tags in pairs]
        accuracy = {'accuracy': tag_accuracy(map(file_tags, records), file_scheme_tags)}
        if self.plain:
            return accuracy
        score = total_score(score_entities(gold, predicted))
        return {'f1': score.f1, 'precision': score.precision, 'recall': score.recall, **accuracy}

    def collapsed(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> bool:
        """Whether all words get the same tag."""
        return len({tag for prediction in predictions for tag in prediction.tags}) == 1

    def report(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> str:
        """Returns a table of entity types (or tags), and the number of repaired entities."""
        gold, predicted = [record.tags for record in records], [prediction.tags for prediction in predictions]
        repaired = sum(prediction.repaired for prediction in predictions)
        table = tagging_report(gold, predicted, plain=self.plain, repaired=repaired)
        unknown = self._count_unknown_tags(records)
        return f'{table}\n{_describe_unknown(unknown)}' if unknown else table

    def rows(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> Iterator[dict[str, Any]]:
        """Yields `words`, `tags`, `probabilities`, `entities` (words `start` to `end`, exclusive) and `true`, if known.

        A row of raw text also has the `offsets` of the words, and `start` and `end` of an entity are characters.
        """
        for record, prediction in zip(records, predictions, strict=True):
            row = {'words': record.words, 'tags': prediction.tags, 'probabilities': prediction.probabilities}
            if record.tags is not None:
                row['true'] = record.tags
            if record.text is not None:
                row['offsets'] = record.offsets
            if not self.plain:
                row['entities'] = [_entity(record, prediction, span) for span in spans(prediction.tags)]
            yield row

    def judgments(self, records: Sequence[Sentence], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        """See Task; a decision is the entity type of a span or, with the scheme 'plain', the tag of a word."""
        for record, row in zip(records, rows, strict=True):
            true, predicted = (self._spans_to_names(tags) for tags in (record.tags, row['tags']))
            places = sorted(true.keys() | predicted.keys())
            classes = [(true.get(place, ''), predicted.get(place, '')) for place in places]
            errors = [place for place in places if true.get(place) != predicted.get(place)]
            descriptions = [
                '; '.join(self._describe_spans(record, names, errors)) or '-' for names in (true, predicted)
            ]
            yield Judgment({'sentence': ' '.join(record.words)}, *descriptions, float(len(errors)), classes)

    def _spans_to_names(self, tags: Sequence[str]) -> dict[tuple[int, int], str]:
        """Returns {(first word, end): entity type or tag}."""
        if self.plain:
            return {(i, i + 1): tag for i, tag in enumerate(tags)}
        return {(span.start, span.end): span.type or 'entity' for span in spans(tags)}

    def _describe_spans(
        self, record: Sentence, names: Mapping[tuple[int, int], str], places: Sequence[tuple[int, int]]
    ):
        return [f'{" ".join(record.words[slice(*place)])} [{names[place]}]' for place in places if place in names]

    def baselines(self, train: Sequence[Sentence], records: Sequence[Sentence]) -> dict[str, list[Tags]]:
        """See Task and baseline.py."""
        answers = frequent_tags(train, records)
        return {
            name: [make_certain_tags(tags, plain=self.plain) for tags in answer] for name, answer in answers.items()
        }

    def official_files(self, split: str, records: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, str]:
        """Returns the columns of the input with a column of predicted tags, in the scheme of the input.

        conlleval reads the last two columns (with `-d '\\t'` if tabs separate columns), see columns.py:write_columns.
        """
        tags = [prediction.tags for prediction in predictions]
        return {f'{split}.txt': write_columns(records, tags, scheme=self._file_scheme)}

    def huggingface(self) -> dict[str, Any]:
        """See Task."""
        return id2label(self.labels)


def _entity(record: Sentence, prediction: Tags, span: EntitySpan) -> dict[str, Any]:
    """Returns the JSON object of an entity in `rows`; its score is the mean probability of its words."""
    type, first, end = span
    score = float(np.mean(prediction.probabilities[first:end]))
    if record.text is None:
        return {**span._asdict(), 'text': ' '.join(record.words[first:end]), 'score': score}
    start, stop = record.offsets[first][0], record.offsets[end - 1][1]
    return {'type': type, 'start': start, 'end': stop, 'text': record.text[start:stop], 'score': score}


def _describe_unknown(unknown: collections.Counter[str]) -> str:
    examples = ', '.join(f'{tag} {count:,}' for tag, count in unknown.most_common(10))
    return f'{unknown.total():,} words have tags that training did not ({examples}): none of them can be found'
