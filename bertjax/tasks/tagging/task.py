"""Tagging of words: named entities, or any tags, from CoNLL column files, or rows in JSON or Arrow."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import MANY, each, one_of, text, whole
from bertjax.config.schema import check_fields
from bertjax.convert.heads import TOKEN_CLASSIFICATION
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import TOKENS
from bertjax.metrics.entities import EntitySpan, score_entities, spans, split_tag, tag_accuracy, total_score
from bertjax.model.config import BertConfig
from bertjax.model.heads import LAYERS, TaskModel
from bertjax.tasks.options import BILSTM_UNITS, option
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.tagging import files
from bertjax.tasks.tagging.baseline import frequent_tags
from bertjax.tasks.tagging.blocks import DOCSTART
from bertjax.tasks.tagging.columns import ColumnOptions, Sentence, file_tags, in_file_scheme, write_columns
from bertjax.tasks.tagging.features import tagging_features
from bertjax.tasks.tagging.predictions import Tags, certain_tags, logits_of_words, tags_of_words
from bertjax.tasks.tagging.report import tagging_report
from bertjax.tasks.tagging.rows import TagFields, sentences_of
from bertjax.tasks.tagging.schemes import SCHEMES
from bertjax.tasks.task import Judgment, Outputs, Task, id2label
from bertjax.text.tokenizer import Tokenizer

_COLUMN = whole(-1000, 1000)  # from 0, or from the end


@dataclasses.dataclass
class TaggingTask(Task[Sentence, Tags]):
    """A tag for each word, evaluated by the entities that the tags mark.

    The first piece of a word carries its tag. Internally tags are IOB2, whatever the files have. An I after O or after
    another type, which is invalid in IOB2, is read as the beginning of an entity, as conlleval does; `report` counts
    such predictions. Tags of other splits that do not occur in the training data are counted, printed, and always
    predicted wrong.

    Attributes:
      data: folder with train.txt, dev.txt and test.txt (or as in files.py:TaggedFiles); '' for CoNLL-2003 from
        tensorflow-datasets, which lacks the boundaries of documents.
      seq_len: S, pieces of a row with [CLS] and [SEP].
      word_column, tag_column, comment, scheme: see ColumnOptions; with the scheme 'plain' the score is the accuracy.
      context: fill the rows with the surrounding sentences of the same document (the paper's "maximal document
        context", section 5.3).
      stride: pieces from one window of a long sentence to the next; 0 for half a window.
      words, tags, tag_names: of files of JSON or Arrow, see rows.py:TagFields.
      input_format: of a file for run=predict: 'columns', 'text' (one sentence per line, split as raw_text.py does, a
        blank line between documents), 'words' (the same, but only blanks separate words), 'jsonl', or 'auto' to detect
        which of the others but 'words' it is.
      layers, bilstm_units, frozen: of the head, see model/heads.py; the paper's feature-based rows are frozen.
    """

    data: str
    seq_len: int
    word_column: int = option(0, _COLUMN, 'the column of the words, from 0; -1 is the last', decides='reading')
    tag_column: int = option(-1, _COLUMN, 'the column of the tags', decides='reading')
    comment: str = option('', about="the prefix of comment lines; '': as in CoNLL-U", decides='reading')
    words: str = option('', about="JSON and Arrow: the field of the words; '': tokens or words", decides='reading')
    tags: str = option('', about="JSON and Arrow: the field of the tags; '': ner_tags, tags, ner, …", decides='reading')
    tag_names: Sequence[str] = option((), each(text(empty=False)), 'names of tags that are numbers', decides='reading')
    scheme: str = option('auto', one_of(SCHEMES), 'how tags mark entities; `plain`: each stands for itself')
    context: bool = False
    stride: int = option(0, whole(0, MANY))
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
        """Whether each tag stands for itself, so that tags mark no entities."""
        return self.scheme == 'plain'

    def check_training(self, train: str) -> None:
        """See Task: a frozen encoder leaves nothing but the head to train."""
        if self.frozen and train != 'head':
            found = f'{train!r} with config.task.frozen'
            raise UserError('config.train', found, "'head', for the encoder is frozen", 'set config.task.frozen=False')

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
        return sentences_of(rows, self._fields, tagged=False)

    def learn(self, records: Sequence[Sentence]) -> None:
        """Collects the tags; of every entity type both B and I."""
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

    def learned(self) -> dict[str, Any]:
        """See Task."""
        return {'labels': self.labels, 'scheme': self._file_scheme}

    def restore(self, learned: Mapping[str, Any]) -> None:
        """See Task."""
        self.labels, self._file_scheme = list(learned['labels']), learned['scheme']

    def features(self, records: Sequence[Sentence], tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task and features.py."""
        notes = self._strange_tags(records, training)
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

    def _strange_tags(self, records: Sequence[Sentence], training: bool) -> list[str]:
        """Notes about tags that are not among the labels.

        Raises:
          UserError: training records have such tags.
        """
        strange = self._strange(records)
        if strange and training:
            tag, where = next((t, record.where) for record in records for t in record.tags or () if t in strange)
            known = ', '.join(self.labels[:20])
            raise UserError(where, f'the tag {tag!r}', known, 'train with the data of the checkpoint')
        return [_strangers(strange)] if strange else []

    def _strange(self, records: Sequence[Sentence]) -> collections.Counter[str]:
        known = set(self.labels)
        return collections.Counter(tag for record in records for tag in record.tags or () if tag not in known)

    def model(self, config: BertConfig) -> TaskModel:
        """See Task."""
        return self.head.module(
            config, len(self.labels), bilstm_units=self.bilstm_units, layers=self.layers, frozen=self.frozen
        )

    def predictions(self, records: Sequence[Sentence], features: Features, outputs: Outputs) -> list[Tags]:
        """See Task and predictions.py."""
        logits = logits_of_words(records, features, outputs['token_logits'])
        return tags_of_words(logits, self.labels, plain=self.plain)

    def merged(self, records: Sequence[Sentence], members: Sequence[tuple[Features, Outputs]]) -> list[Tags]:
        """See Task; each model may have its own tokenizer, length and windows."""
        each = [logits_of_words(records, features, outputs['token_logits']) for features, outputs in members]
        means = [np.mean(of_sentence, axis=0) for of_sentence in zip(*each, strict=True)]
        return tags_of_words(means, self.labels, plain=self.plain)

    def metrics(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float | None]:
        """f1, precision and recall of entities, micro-averaged as in conlleval; accuracy of tags as in the file."""
        gold, guessed = [record.tags for record in records], [prediction.tags for prediction in predictions]
        pairs = zip(records, guessed, strict=True)
        written = [in_file_scheme(record, tags, self._file_scheme) for record, tags in pairs]
        accuracy = {'accuracy': tag_accuracy(map(file_tags, records), written)}
        if self.plain:
            return accuracy
        score = total_score(score_entities(gold, guessed))
        return {'f1': score.f1, 'precision': score.precision, 'recall': score.recall, **accuracy}

    def collapsed(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> bool:
        """Whether all words get the same tag."""
        return len({tag for prediction in predictions for tag in prediction.tags}) == 1

    def report(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> str:
        """A table of entity types (or tags), and the number of repaired entities."""
        gold, guessed = [record.tags for record in records], [prediction.tags for prediction in predictions]
        repaired = sum(prediction.repaired for prediction in predictions)
        table = tagging_report(gold, guessed, plain=self.plain, repaired=repaired)
        strange = self._strange(records)
        return f'{table}\n{_strangers(strange)}' if strange else table

    def rows(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> Iterator[dict[str, Any]]:
        """words, tags, their probabilities and entities (words `start` up to, not including, `end`); of raw text the
        offsets of the words, and `start` and `end` are characters; the tags that are `true` where known."""
        for record, prediction in zip(records, predictions, strict=True):
            row = {'words': record.words, 'tags': prediction.tags, 'probabilities': prediction.probabilities}
            if record.tags is not None:
                row['true'] = record.tags
            if record.text is not None:
                row['offsets'] = record.offsets
            if not self.plain:
                row['entities'] = [_entity(record, prediction, span) for span in spans(prediction.tags)]
            yield row

    def reviewed(self, records: Sequence[Sentence], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        """See Task; the classes are entity types, each span a decision, or with the scheme 'plain' tags, each word."""
        for record, row in zip(records, rows, strict=True):
            true, predicted = (self._marked(tags) for tags in (record.tags, row['tags']))
            places = sorted(true.keys() | predicted.keys())
            classes = [(true.get(place, ''), predicted.get(place, '')) for place in places]
            missed = [place for place in places if true.get(place) != predicted.get(place)]
            named = ['; '.join(self._named(record, marked, missed)) or '-' for marked in (true, predicted)]
            yield Judgment({'sentence': ' '.join(record.words)}, *named, float(len(missed)), classes)

    def _marked(self, tags: Sequence[str]) -> dict[tuple[int, int], str]:
        """{(first word, the one after the last): what it is}."""
        if self.plain:
            return {(i, i + 1): tag for i, tag in enumerate(tags)}
        return {(span.start, span.end): span.type or 'entity' for span in spans(tags)}

    def _named(self, record: Sentence, marked: Mapping[tuple[int, int], str], places: Sequence[tuple[int, int]]):
        return [f'{" ".join(record.words[slice(*p)])} [{marked[p]}]' for p in places if p in marked]

    def baselines(self, train: Sequence[Sentence], records: Sequence[Sentence]) -> dict[str, list[Tags]]:
        """See Task and baseline.py."""
        found = frequent_tags(train, records)
        return {name: [certain_tags(tags, plain=self.plain) for tags in of_all] for name, of_all in found.items()}

    def official_files(self, split: str, records: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, str]:
        """The input's columns and one with the predicted tags, in the input's scheme; the last two are what conlleval
        reads (with `-d '\\t'` if columns are separated by tabs), see columns.py:write_columns."""
        tags = [prediction.tags for prediction in predictions]
        return {f'{split}.txt': write_columns(records, tags, scheme=self._file_scheme)}

    def huggingface(self) -> dict[str, Any]:
        """See Task."""
        return id2label(self.labels)


def _entity(record: Sentence, prediction: Tags, span: EntitySpan) -> dict[str, Any]:
    """What `rows` says of an entity; its score is the mean of its words' probabilities."""
    type, first, end = span
    score = float(np.mean(prediction.probabilities[first:end]))
    if record.text is None:
        return {**span._asdict(), 'text': ' '.join(record.words[first:end]), 'score': score}
    start, stop = record.offsets[first][0], record.offsets[end - 1][1]
    return {'type': type, 'start': start, 'end': stop, 'text': record.text[start:stop], 'score': score}


def _strangers(strange: collections.Counter[str]) -> str:
    shown = ', '.join(f'{tag} {count:,}' for tag, count in strange.most_common(10))
    return f'{strange.total():,} words have tags that training did not ({shown}): none of them can be found'
