"""The task of tagging words, for example with named entities or parts of speech."""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.config.ranges import MANY, integer, list_of, one_of, text
from bertjax.convert.heads import TOKEN_CLASSIFICATION
from bertjax.data.features import FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.losses import TOKENS
from bertjax.metrics.entities import EntitySpan, score_entities, spans, split_tag, tag_accuracy, to_iob2, total_score
from bertjax.model.config import BertConfig
from bertjax.model.heads import LAYERS, BertForTask
from bertjax.tasks.baselines import tag_baselines
from bertjax.tasks.pairs import add_special_tokens
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.tagging import files
from bertjax.tasks.tagging.columns import (
    DOCSTART,
    Sentence,
    TagFormat,
    convert_to_file_scheme,
    file_tags,
    write_columns,
)
from bertjax.tasks.tagging.features import WORDS, windows, word_pieces
from bertjax.tasks.tagging.predictions import Tags, gather_word_logits, predict_tags
from bertjax.tasks.tagging.rows import parse_sentences
from bertjax.tasks.tagging.schemes import SCHEMES
from bertjax.tasks.task import BILSTM_UNITS, Judgment, Outputs, Task, check_same_label, option
from bertjax.text.tokenizer import Tokenizer

_COLUMN = integer(-1000, 1000)  # the allowed indices of columns; a negative index counts from the end


@dataclasses.dataclass
class TaggingTask(Task[Sentence, Tags]):
    """Assigns a tag to each word, and evaluates the entities that the tags mark.

    The data are CoNLL column files, or rows in JSON, Parquet or Arrow files. Entity tags are converted from the
    scheme of the files to IOB2.

    The tag of a word is predicted at its first piece. As in conlleval, a predicted I starts an entity if no B or I of
    the same type directly precedes it. Entity types and plain tags that the training data lack cannot be predicted. The
    number of words with such tags is printed.

    Attributes:
      data: the folder with train.txt, dev.txt and test.txt (or other names, see files.py:TaggedFiles); '' for
        CoNLL-2003 from tensorflow-datasets, which lacks document boundaries.
      seq_len: the maximum sequence length S in pieces, including [CLS] and [SEP].
      word_column, tag_column, comment, scheme: see TagFormat; with the scheme 'plain' the score is the accuracy.
      context: whether to fill rows with the surrounding sentences of the same document ("maximal document context" in
        section 5.3 of the BERT paper).
      stride: the distance between the starts of two windows of a long sentence, in pieces; 0 for half a window.
      words, tags, tag_names: the fields and tag names of JSON, Parquet or Arrow files, see TagFormat.
      input_format: the format of a file for run=predict: 'columns', 'text' (one sentence per line, split by
        files.py, with a blank line between documents), 'words' (the same, but only white space separates words),
        'jsonl', or 'auto', which detects each of these except 'words'.
      layers, bilstm_units, frozen: options of the head, see model/heads.py. The feature-based models of the BERT paper
        have a frozen encoder.
    """

    data: str
    seq_len: int
    word_column: int = option(0, _COLUMN, 'the column of the words, from 0; -1 is the last', affects='reading')
    tag_column: int = option(-1, _COLUMN, 'the column of the tags', affects='reading')
    comment: str = option('', about="the prefix of comments; '' detects those that start with #", affects='reading')
    words: str = option(
        '', about="the field of the words in JSON, Parquet or Arrow; '' for `tokens` or `words`", affects='reading'
    )
    tags: str = option('', about="the field of the tags in records; '' for `ner_tags`, `tags`, …", affects='reading')
    tag_names: Sequence[str] = option(
        (), list_of(text(empty=False)), 'the names of the tags 0, 1, …', affects='reading'
    )
    scheme: str = option('auto', one_of(SCHEMES), "the scheme of entity tags; 'plain' for tags of single words")
    context: bool = False
    stride: int = option(0, integer(0, MANY))
    input_format: str = option('auto', one_of(files.INPUTS), affects='reading')
    layers: str = option('last', one_of(LAYERS), 'the layers that are the input of the head', affects='model')
    bilstm_units: int = option(0, BILSTM_UNITS, 'units of a BiLSTM before the head; 0 for none', affects='model')
    frozen: bool = option(False, about='train only the head', affects='model')

    default_name = 'CoNLL-2003'
    method, results = 'tag', 'tags of words'
    head = TOKEN_CLASSIFICATION
    has_baselines = partial_files = True
    learned: ClassVar[Mapping[str, str]] = {'labels': 'labels', 'scheme': '_file_scheme'}
    min_seq_len = 3
    objective = TOKENS

    def __post_init__(self):
        super().__post_init__()
        fields = self.words, self.tags, tuple(self.tag_names)
        self.format = TagFormat(self.word_column, self.tag_column, self.comment, self.scheme, *fields)
        self._files = files.TaggedFiles(self.data, self.format)
        self.score = 'accuracy' if self.plain else 'f1'
        self.labels: list[str] = []
        self._file_scheme = ''
        max_pieces = self.seq_len - 2
        if self.stride > max_pieces:
            expected = f'0 to {max_pieces}, which is config.seq_len without [CLS] and [SEP]'
            raise UserError('config.task.stride', str(self.stride), expected, 'leave it at 0 for half a window')

    @property
    def complete(self) -> bool:
        return bool(self.labels)

    @property
    def plain(self) -> bool:
        """Whether tags are independent and do not mark entities."""
        return self.scheme == 'plain'

    def check_training(self, train: str) -> None:
        """See Task; if the encoder is `frozen`, only the head can be trained."""
        if self.frozen and train != 'head':
            found, expected = f'{train!r} with config.task.frozen', "'head', because the encoder is frozen"
            raise UserError('config.trainable', found, expected, 'set config.task.frozen=False')

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[Sentence | Blank]:
        """See Task; `input_format` is the format of the lines."""
        return files.read_input(lines, where, self.format, self.input_format, self.labels)

    def from_rows(self, rows: Iterator[Record]) -> Iterator[Sentence | Blank]:
        return parse_sentences(rows, self.format, tagged=False)

    @property
    def needs_neighbors(self) -> bool:
        return self.context

    def learn(self, records: Sequence[Sentence]) -> None:
        """Collects the tags, and prints the counts of entities or plain tags. Each entity type has a B and an I tag."""
        counts = collections.Counter(tag for record in records for tag in record.tags)
        if self.plain:
            self.labels = sorted(counts)
        else:
            types = sorted({split_tag(tag)[1] for tag in counts if tag != 'O'})
            self.labels = ['O', *(f'{prefix}-{type}' if type else prefix for type in types for prefix in 'BI')]
            counts = collections.Counter(span.type for record in records for span in spans(record.tags))
        if len(self.labels) < 2:
            found, fix = f'only the tag {self.labels[0]!r}', 'for files with named fields, check config.task.tags'
            raise UserError('config.task.tag_column', found, 'a column with two or more tags', fix)
        self._file_scheme = next((record.scheme for record in records if record.scheme), '')
        words = sum(len(record.words) for record in records)
        kinds = ', '.join(f'{name or "entities"} {count:,}' for name, count in counts.most_common(20))
        print(f'{len(records):,} sentences for training, {words:,} words: {kinds}')

    def records(self, split: str) -> Sequence[Sentence]:
        return self._files.records(split)

    def features(self, records: Sequence[Sentence], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Builds a row `[CLS] pieces [SEP]` for each window. The sentences of a document must be consecutive.

        The three token arrays are 0 except at the first piece of each word that the row tags. There,
        token_words, int32, is 1 + the index of the word in its record;
        token_labels, int32, is the index of the word's tag in `labels`, or 0 if `labels` lacks the tag;
        token_weights, float32, is 1 if `labels` has the tag, else 0.
        """
        unknown = self._count_unknown_tags(records)
        if unknown and training:
            tag, where = next((tag, record.where) for record in records for tag in record.tags or () if tag in unknown)
            known = ', '.join(self.labels[:20])
            raise UserError(where, f'the tag {tag!r}', f'one of {known}', 'use the training data of the checkpoint')
        notes = [_describe_unknown(unknown)] if unknown else []
        if self.context and len({record.document for record in records}) == 1 and len(records) > 1:
            notes.append(f'{records[0].where}: all sentences are one document; {DOCSTART} lines separate documents')
        numbers = {label: i for i, label in enumerate(self.labels)}
        max_pieces = self.seq_len - 2
        stride = self.stride or max(1, max_pieces // 2)
        builder = FeatureBuilder()
        for _, group in itertools.groupby(enumerate(records), key=lambda item: item[1].document):
            document = list(group)
            ids, first = word_pieces([word for _, record in document for word in record.words], tokenizer)
            bounds = np.cumsum([0, *(len(record.words) for _, record in document)]).tolist()
            for (i, record), sentence in zip(document, itertools.pairwise(bounds), strict=True):
                labels = np.array([numbers.get(tag, -1) for tag in record.tags or [''] * len(record.words)])
                visible = (0, bounds[-1]) if self.context else sentence
                for start, stop, words in windows(first, sentence, visible, max_pieces=max_pieces, stride=stride):
                    tokens = add_special_tokens(ids[start:stop], tokenizer)
                    positions, numbers_in_record = first[words] - start + 1, words - sentence[0]
                    token = {name: np.zeros(len(tokens), np.int32) for name in ('token_labels', WORDS)}
                    token['token_weights'] = np.zeros(len(tokens), np.float32)
                    token['token_labels'][positions] = np.maximum(labels[numbers_in_record], 0)
                    token['token_weights'][positions] = labels[numbers_in_record] >= 0
                    token[WORDS][positions] = numbers_in_record + 1
                    builder.add_sequence(tokens, **token)
                    builder.add_row(i)
        return builder.build(notes=notes)

    def _count_unknown_tags(self, records: Sequence[Sentence]) -> collections.Counter[str]:
        known = set(self.labels)
        return collections.Counter(tag for record in records for tag in record.tags or () if tag not in known)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        return self.head.module(
            model_config, len(self.labels), bilstm_units=self.bilstm_units, layers=self.layers, frozen=self.frozen
        )

    def predictions(self, records: Sequence[Sentence], features: Features, outputs: Outputs) -> list[Tags]:
        logits = gather_word_logits(records, features, outputs['token_logits'])
        return predict_tags(logits, self.labels, plain=self.plain)

    def ensemble_predictions(
        self, records: Sequence[Sentence], members: Sequence[tuple[Features, Outputs]]
    ) -> list[Tags]:
        """See Task; the models may differ in their tokenizer, sequence length and windows."""
        by_member = [gather_word_logits(records, features, outputs['token_logits']) for features, outputs in members]
        means = [np.mean(sentence_logits, axis=0) for sentence_logits in zip(*by_member, strict=True)]
        return predict_tags(means, self.labels, plain=self.plain)

    def metrics(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, float | None]:
        """Returns f1, precision and recall of entities, as in conlleval, and the accuracy of tags in the file's scheme.

        The accuracy is the only metric of plain tags. With an explicit `scheme`, it is the accuracy in this scheme.
        """
        gold, predicted = [record.tags for record in records], [prediction.tags for prediction in predictions]
        pairs = zip(records, predicted, strict=True)
        file_scheme_tags = [convert_to_file_scheme(record, tags, self._file_scheme) for record, tags in pairs]
        true = map(file_tags, records)
        if self.scheme != 'auto':  # the file may have another scheme
            true = (convert_to_file_scheme(record, record.tags, self._file_scheme) for record in records)
        accuracy = {'accuracy': tag_accuracy(true, file_scheme_tags)}
        if self.plain:
            return accuracy
        score = total_score(score_entities(gold, predicted))
        return {name: float(getattr(score, name)) for name in ('f1', 'precision', 'recall')} | accuracy

    def collapsed(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> bool:
        """Whether all words have the same predicted tag, although their true tags differ."""
        predicted, true = ({tag for sentence in part for tag in sentence.tags} for part in (predictions, records))
        return len(predicted) == 1 < len(true)

    def report(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> str:
        """Returns a table of scores by entity type or tag, and a note on unknown tags."""
        gold, predicted = [record.tags for record in records], [prediction.tags for prediction in predictions]
        scores = {(name or '(no type)'): score for name, score in score_entities(gold, predicted, self.plain).items()}
        order = sorted(scores, key=lambda name: (-scores[name].true, -scores[name].predicted, name))
        rows = [(name, scores[name]) for name in order] + [('all', total_score(scores))]
        width = max(len(name) for name, _ in rows)
        lines = [f'{"tag" if self.plain else "entity":{width}}  precision  recall      f1    gold    pred   right']
        for name, score in rows:
            figures = f'{score.precision:9.4f}{score.recall:8.4f}{score.f1:8.4f}'
            lines.append(f'{name:{width}}  {figures}{score.true:8,}{score.predicted:8,}{score.right:8,}')
        if unknown := self._count_unknown_tags(records):
            lines.append(_describe_unknown(unknown))
        return '\n'.join(lines)

    def rows(self, records: Sequence[Sentence], predictions: Sequence[Tags]) -> Iterator[dict[str, Any]]:
        """Yields an `inference.task_methods.TaggedWords` per sentence. A labeled sentence has its tags as `true`."""
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
        """See Task; the classes are the entity types, or plain tags."""
        for record, row in zip(records, rows, strict=True):
            check_same_label(row, list(record.tags), record.where)
            true, predicted = (self._spans_to_names(tags) for tags in (record.tags, row['tags']))
            bounds = sorted(true.keys() | predicted.keys())
            classes = [(true.get(bound, ''), predicted.get(bound, '')) for bound in bounds]
            errors = [bound for bound in bounds if true.get(bound) != predicted.get(bound)]
            words = {bound: ' '.join(record.words[slice(*bound)]) for bound in errors}
            descriptions = [
                '; '.join(f'{words[bound]} [{names[bound]}]' for bound in errors if bound in names) or '-'
                for names in (true, predicted)
            ]
            yield Judgment({'sentence': ' '.join(record.words)}, *descriptions, float(len(errors)), classes)

    def _spans_to_names(self, tags: Sequence[str]) -> dict[tuple[int, int], str]:
        """Returns {(first word, end): entity type or tag}."""
        return {(span.start, span.end): span.type or 'entity' for span in spans(tags, self.plain)}

    def baselines(self, train: Sequence[Sentence], records: Sequence[Sentence]) -> dict[str, list[Tags]]:
        convert = (lambda tags: tags) if self.plain else to_iob2
        return {
            name: [Tags(tuple(convert(tags)), (1.0,) * len(tags)) for tags in record_tags]
            for name, record_tags in tag_baselines(train, records).items()
        }

    def official_files(self, split: str, records: Sequence[Sentence], predictions: Sequence[Tags]) -> dict[str, str]:
        """Returns a column file, see columns.py:write_columns. If tabs separate columns, conlleval needs `-d '\\t'`."""
        tags = [prediction.tags for prediction in predictions]
        return {f'{split}.txt': write_columns(records, tags, scheme=self._file_scheme)}


def _entity(record: Sentence, prediction: Tags, span: EntitySpan) -> dict[str, Any]:
    """Returns the JSON object of an entity in `rows`. The score is the mean probability of the tags of its words."""
    type, first, end = span
    score = float(np.mean(prediction.probabilities[first:end]))
    if record.text is None:
        return {**span._asdict(), 'text': ' '.join(record.words[first:end]), 'score': score}
    start, stop = record.offsets[first][0], record.offsets[end - 1][1]
    return {'type': type, 'start': start, 'end': stop, 'text': record.text[start:stop], 'score': score}


def _describe_unknown(unknown: collections.Counter[str]) -> str:
    examples = ', '.join(f'{tag} {count:,}' for tag, count in unknown.most_common(10))
    found = f'{unknown.total():,} words have tags that do not occur in the training data ({examples})'
    return f'{found}, so their predictions cannot be correct'
