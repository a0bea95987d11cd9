"""Multiple choice: selects the correct ending of a text, for SWAG, CODAH and user-defined questions."""

import dataclasses
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import number, one_of
from bertjax.convert.heads import MULTIPLE_CHOICE
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.losses import CHOICES, CLASSIFICATION, Objective
from bertjax.metrics.softmax import softmax
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.tasks.baselines import ending_baselines
from bertjax.tasks.choice import files
from bertjax.tasks.choice.files import ChoiceQuestion
from bertjax.tasks.pairs import pair_features
from bertjax.tasks.reading.layout import Column, Record, TableLayout
from bertjax.tasks.reading.records import FORMATS, parse_records
from bertjax.tasks.reading.splits import STEMS, SplitFiles, check_split, describe_files
from bertjax.tasks.reading.texts import Blank, Line, peek_lines
from bertjax.tasks.sentence.input import detect_format
from bertjax.tasks.task import Judgment, Outputs, Task, check_all_or_none, check_same_label, option
from bertjax.text.hash_split import hash64, hash_threshold
from bertjax.text.tokenizer import Tokenizer

# The columns by which a table is recognized in an input without a suffix, as in parse_questions.
_TABLE_COLUMNS = (Column(('sent1', 'prompt')), Column(('ending0',)))
Questions, Choices = Sequence[ChoiceQuestion], Sequence[np.ndarray]


class _CodahFiles(SplitFiles):
    """The files of CODAH. The folder may have a single file, which is split."""

    _file_fix = 'give its folder'


@dataclasses.dataclass
class MultipleChoiceTask(Task[ChoiceQuestion, np.ndarray]):
    """Scores `[CLS] context [SEP] start ending [SEP]` for each ending (BERT paper, section 4.4) and selects the best.

    `truncate_longest_first` shortens sequences that are too long. The number of truncated sequences is printed.

    Attributes:
      data: the folder of the files.
      seq_len: the maximum sequence length S in pieces, including [CLS] and all [SEP].
      layout: the layout of the files: 'swag' for SWAG's columns in train.csv, val.csv and test.csv (without public
        labels); 'codah' for train.tsv, dev.tsv and test.tsv, or for a single .tsv file that is split;
        'jsonl' for rows with a list of endings in JSON (train.jsonl …), Parquet or Arrow files.
      dev_share, test_share: the fractions of dev and test if a single file is split by a hash of the context.
    """

    data: str
    seq_len: int
    layout: str = option('swag', one_of(files.LAYOUTS), affects='reading', named=True)
    dev_share: float = option(0.1, number(0, 1, above=True, below=True))
    test_share: float = option(0.1, number(0, 1, above=True, below=True))

    default_name = 'multiple choice'
    method, results = 'choose', 'the best of several endings'
    head = MULTIPLE_CHOICE
    has_baselines = True
    same_rows = True
    score = 'accuracy'
    min_seq_len = 5

    def __post_init__(self):
        super().__post_init__()
        if self.dev_share + self.test_share >= 1:
            found, expected = f'{self.test_share} with dev_share={self.dev_share}', 'a sum below 1'
            raise UserError('config.task.test_share', found, expected, 'leave both at 0.1')
        fix = 'give --config.data=DIR; tensorflow-datasets does not have these datasets'
        files_class = _CodahFiles if self.layout == 'codah' else SplitFiles
        self._files = files_class(self.data, self._has_labels, files.LAYOUTS[self.layout], fix)
        self._mixed = False
        self.name = {'swag': 'SWAG', 'codah': 'CODAH'}.get(self.layout, self.name)

    @property
    def objective(self) -> Objective:
        return CHOICES if self._mixed else CLASSIFICATION

    def splits(self) -> Sequence[str]:
        return tuple(STEMS) if self._one_file else super().splits()

    @property
    def _one_file(self) -> bool:
        """Whether one .tsv file provides all splits, as in the layout 'codah' without files of splits."""
        return self.layout == 'codah' and not any(map(self._files.find, STEMS))

    def sources(self) -> str:
        if self._one_file:
            shares = f'split by a hash of the prompt: dev {self.dev_share:g}, test {self.test_share:g}'
            paths = describe_files(sorted(self._files.folder.glob('*.tsv')))
            return f'{paths}: {shares}; config.task.dev_share and config.task.test_share set these shares'
        return super().sources()

    def records(self, split: str) -> Questions:
        check_split(split)
        if self._one_file:
            return self._split_single_file(split)
        paths = self._files.require(split)
        questions = files.read_questions(paths, self.layout, labels_required=split != 'test')
        check_all_or_none(questions)
        return questions

    def _split_single_file(self, split: str) -> Questions:
        """Returns the questions of the single file that belong to a split.

        The split of a question depends only on its context, lower-cased and with single spaces. The first 8 bytes of
        the SHA-256 hash of the context, scaled to [0, 1), select the split.
        """
        tables = sorted(self._files.folder.glob('*.tsv'))
        if len(tables) != 1:
            found = ' and '.join(path.name for path in tables) or 'no .tsv'
            raise UserError(self.data, found, 'one .tsv, or train.tsv, dev.tsv and test.tsv', 'correct config.data')
        test, dev = hash_threshold(self.test_share), hash_threshold(self.test_share + self.dev_share)
        selected = []
        for question in files.read_questions(tables, 'codah'):
            number = hash64(hashlib.sha256(' '.join(question.context.lower().split()).encode()).digest())
            if split == ('test' if number < test else 'dev' if number < dev else 'train'):
                selected.append(question)
        if not selected:
            fix = 'add questions, or change config.task.dev_share and config.task.test_share'
            raise UserError(str(tables[0]), f'no question for {split}', 'at least one', fix)
        return selected

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[ChoiceQuestion | Blank]:
        """See Task. The lines are a table, JSON objects or a JSON list, see `parse_questions`. Labels are ignored."""
        lines, first_lines = peek_lines(lines)
        first_line = ''.join(first_lines)
        format = FORMATS.get(bare_suffix(where)) or detect_format(first_line, _TABLE_COLUMNS)
        if format == 'lines':
            if first_line and not first_line.lstrip().startswith(('{', '[')):
                expected = 'JSON, or a table with the columns sent1 (or prompt), ending0, ending1 …'
                raise UserError(where, f'the first line {first_line[:40]!r}', expected, 'put the column names first')
            format = 'jsonl'
        return self.from_rows(parse_records(lines, where, format, TableLayout(skip_blank_lines=True)))

    def from_rows(self, rows: Iterator[Record]) -> Iterator[ChoiceQuestion | Blank]:
        return files.parse_questions(rows, labels_required=False, prediction=True)

    def learn(self, records: Questions) -> None:
        """Prints statistics. If the number of endings varies, the loss masks missing endings.

        The head scores each ending separately, so its size does not depend on the number of endings.
        """
        endings = Counter(len(record.endings) for record in records)
        self._mixed = len(endings) > 1
        labels = Counter(record.label for record in records)
        counts = ', '.join(f'{labels[i]:,}' for i in range(max(endings, default=0)))
        print(f'{len(records):,} questions for training; questions by the index of the correct ending: {counts}')
        if self._mixed:
            print(', '.join(f'{count:,} questions with {n} endings' for n, count in sorted(endings.items())))

    def features(self, records: Questions, tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task. Each row has C sequences, where C is the largest number of endings of a record.

        Empty sequences pad the row of a record with fewer endings. The row array `labels` is int32. The row of an
        unlabeled record has weight 0.
        """
        groups = [
            (record.context, [f'{record.start} {ending}'.strip() for ending in record.endings]) for record in records
        ]
        labels = np.int32([record.label or 0 for record in records])
        known = np.float32([record.label is not None for record in records])
        return pair_features(groups, {'labels': labels, 'weights': known}, tokenizer, self.seq_len)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        return self.head.module(model_config)

    def predictions(self, records: Questions, features: Features, outputs: Outputs) -> Choices:
        """Returns the logits of each record's endings, float64 [C]."""
        pairs = zip(records, outputs['logits'], strict=True)
        return [np.asarray(logits[: len(record.endings)], np.float64) for record, logits in pairs]

    def metrics(self, records: Questions, predictions: Choices) -> dict[str, float | None]:
        """Returns the accuracy."""
        right = _is_right(records, predictions)
        return {'accuracy': sum(right) / len(right) if right else None}

    def collapsed(self, records: Questions, predictions: Choices) -> bool:
        """Whether all selected endings have the same index, although the indices of the correct endings differ."""
        selected = {int(logits.argmax()) for logits in predictions}
        return len(selected) == 1 < len({record.label for record in records})

    def report(self, records: Questions, predictions: Choices) -> str:
        """Returns the accuracy by group, by index of the correct ending and by number of endings, if these vary."""
        right = _is_right(records, predictions)
        groups = {
            'group': [record.group for record in records],
            'correct ending': [str(record.label) for record in records],
            'endings': [str(len(record.endings)) for record in records],
        }
        return '\n\n'.join(_table(title, names, right) for title, names in groups.items() if len(set(names)) > 1)

    def rows(self, records: Questions, predictions: Choices) -> Iterator[dict[str, Any]]:
        """Yields an object for each question: `prompt`, `start`, `endings`, `prediction`, `ending`, `probabilities`.

        `prediction` and `ending` are the index and the text of the selected ending. The object of a labeled question
        also has `true`, the index of the correct ending.
        """
        for record, logits in zip(records, predictions, strict=True):
            row = {'prompt': record.context, 'start': record.start, 'endings': record.endings}
            row |= {'prediction': int(logits.argmax()), 'ending': record.endings[logits.argmax()]}
            row['probabilities'] = softmax(logits).tolist()
            yield row if record.label is None else {**row, 'true': record.label}

    def judgments(self, records: Questions, rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        for record, row in zip(records, rows, strict=True):
            check_same_label(row, record.label, record.where)
            ending, probabilities = row['prediction'], row['probabilities']
            error = 1 + probabilities[ending] - probabilities[record.label] if ending != record.label else 0.0
            texts = {'prompt': f'{record.context} {record.start}'.strip()}
            predicted = f'{record.endings[ending]} ({probabilities[ending]:.2f})'
            yield Judgment(texts, record.endings[record.label], predicted, error)

    def baselines(self, train: Questions, records: Questions) -> dict[str, Choices]:
        return ending_baselines(train, records)

    def official_files(self, split: str, records: Questions, predictions: Choices) -> dict[str, str]:
        """Returns a CSV file for the leaderboard of SWAG, or {} for other layouts.

        The columns are the row index, whose header is empty, and `pred`, as in rowanz/swagaf:csv_predict.py.
        """
        if self.layout != 'swag':
            return {}
        lines = [f'{i},{logits.argmax()}' for i, logits in enumerate(predictions)]
        return {f'{split}_predictions.csv': '\n'.join([',pred', *lines]) + '\n'}


def _is_right(records: Questions, predictions: Choices) -> list[bool]:
    return [record.label == int(logits.argmax()) for record, logits in zip(records, predictions, strict=True)]


def _table(title: str, names: Sequence[str], right: Sequence[bool]) -> str:
    total, correct = Counter(names), Counter(itertools.compress(names, right))
    width = max(len(title), *map(len, total))
    lines = [f'{title:{width}}  accuracy   right      of']
    lines += [f'{name:{width}}{correct[name] / n:10.4f}{correct[name]:8,}{n:8,}' for name, n in sorted(total.items())]
    return '\n'.join(lines)
