"""The task of SQuAD 1.1 and 2.0: extracts the span of a text that answers a question, or predicts no answer."""

import collections
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import MANY, integer, one_of
from bertjax.convert.heads import QUESTION_ANSWERING
from bertjax.data.features import FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.losses import SPANS
from bertjax.metrics.squad import Evaluation, evaluate_v1, overlap_f1
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.tasks.pairs import join_pair
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.squad.answers import SPANS_PER_BEST, Answers, AnswerSpan, best_spans, rank_answers
from bertjax.tasks.squad.files import SquadFiles
from bertjax.tasks.squad.questions import SquadQuestion, check_ids, parse_input, parse_input_rows
from bertjax.tasks.squad.windows import (
    answer_tokens,
    choose_windows,
    find_answer,
    format_list,
    list_misplaced_answers,
    window_bounds,
)
from bertjax.tasks.task import BILSTM_UNITS, Judgment, Outputs, Task, check_same_label, option
from bertjax.text.tokenizer import Tokenizer

VERSIONS = ('1.1', '2.0')
_NO_ANSWER = 'no answer'
_NBEST_FIELDS = ('text', 'probability', 'start_logit', 'end_logit')  # in nbest_predictions.json
_EXCERPT = 160  # characters of context before and after the start of an answer in the error report
# A model has collapsed if at least this fraction of its answers has the same start. The fraction is below 1, because
# the tuned threshold of a collapsed model still admits a few other answers.
_COLLAPSED = 0.98


@dataclasses.dataclass
class SquadTask(Task[SquadQuestion, Answers]):
    """Answers a question about a text with a span of the text.

    The score of SQuAD 1.1 is `f1`. The score of SQuAD 2.0, where a question may have no answer, is `best_f1`: the F1
    with the best threshold of the null odds for the evaluated split. Papers report this F1 for dev.

    `tune` selects the threshold with the best F1 on dev. The predictions and the metrics `exact`, `f1`, HasAns_ and
    NoAns_ use this threshold.

    Attributes:
      data: the folder of the files: SQuAD's JSON, or rows with one question each (JSON, Parquet, Arrow); '' for
        squad/v1.1 or squad/v2.0 of tensorflow-datasets.
      seq_len: the maximum length S of a row in pieces: the question, a window of the text, [CLS] and all [SEP].
      version: '1.1', where every question has an answer, or '2.0'.
      train_file, dev_file, test_file: the names of files in `data`, separated by commas; '' for train-v1.1.json and
        dev-v1.1.json (or 2.0), or other usual names if these do not exist. The test file may lack answers.
      stride: the distance between the starts of two windows of a long text, in pieces.
      max_query: the maximum number of pieces of a question; longer questions are truncated.
      n_best: the maximum number of answers to a question.
      max_answer: the maximum number of pieces in an answer.
      bilstm_units: the number of units in each direction of a two-layer BiLSTM before the head (table 5 of the BERT
        paper adds a BiLSTM to its left-to-right ablation); 0 for no BiLSTM.
    """

    data: str
    seq_len: int
    version: str = option('1.1', one_of(VERSIONS), named=True)
    train_file: str = option('', affects='reading')
    dev_file: str = option('', affects='reading')
    test_file: str = option('', affects='reading')
    stride: int = option(128, integer(1, MANY))
    max_query: int = option(64, integer(1, MANY))
    n_best: int = option(20, integer(1, 1000), affects='reading')
    max_answer: int = option(30, integer(1, MANY), affects='reading')
    bilstm_units: int = option(0, BILSTM_UNITS, affects='model')

    method, results = 'answer', 'answers to questions'
    head = QUESTION_ANSWERING
    objective = SPANS
    thresholds = ('best_exact_thresh', 'best_f1_thresh', 'null_threshold')

    def __post_init__(self):
        super().__post_init__()
        if self.max_query > self.seq_len - 4:
            found = f'{self.max_query} with config.seq_len={self.seq_len}'
            expected = f'at most {self.seq_len - 4}, to leave pieces for the text'
            raise UserError('config.task.max_query', found, expected, 'use seq_len=384 with max_query=64')
        self.name = f'SQuAD {self.version}'
        names = {'train': self.train_file, 'dev': self.dev_file, 'test': self.test_file}
        self._files = SquadFiles(self.data, self.version, names)
        self.score = 'best_f1' if self.nullable else 'f1'
        self.null_threshold = 0.0

    @property
    def nullable(self) -> bool:
        """Whether a question may have no answer."""
        return self.version == '2.0'

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[SquadQuestion | Blank]:
        """See Task; the format is SQuAD's JSON or JSON lines {"question": …, "context": …}. Answers are ignored."""
        return parse_input(lines, where)

    def from_rows(self, rows: Iterator[Record]) -> Iterator[SquadQuestion | Blank]:
        return check_ids(parse_input_rows(rows))

    def learn(self, records: Sequence[SquadQuestion]) -> None:
        """Prints the numbers of questions and texts, and the answers that differ from the text at `answer_start`."""
        contexts = len({record.context for record in records})
        without = sum(not record.answers for record in records)
        print(f'{len(records):,} questions on {contexts:,} texts for training, {without:,} without an answer')
        for notice in list_misplaced_answers(records):
            print(notice)

    def learned_state(self) -> dict[str, Any]:
        return {'null_threshold': self.null_threshold} if self.nullable else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.null_threshold = state.get('null_threshold', 0.0)

    def records(self, split: str) -> Sequence[SquadQuestion]:
        return self._files.records(split)

    def features(self, records: Sequence[SquadQuestion], tokenizer: Tokenizer, *, training: bool) -> Features:
        """Builds a row `[CLS] question [SEP] window [SEP]` for each question and window of its context.

        The row arrays `start` and `end`, int32, are the positions of the first and last piece of the first answer. Both
        are 0, the position of [CLS], if there is no answer or the window does not contain the complete answer.

        A question is unusable if its first answer is not in the context or has no piece. Training skips it; evaluation
        gives its rows weight 0. Notes list unusable and truncated questions, and those whose answer is in no window.

        If `training` is False, the pieces have two token arrays. `token_first`, int32, is the first character of the
        piece in the context, or -1 if `choose_windows` selects another window for the piece. `token_last`, int32, is
        the character after the piece. Both are -1 outside the context.

        Raises:
          UserError: No question can be used for training.
        """
        max_query = min(self.max_query, self.seq_len - 3 - tokenizer.separators)  # leaves a piece for the text
        contexts = list(dict.fromkeys(record.context for record in records))
        pieces = dict(zip(contexts, tokenizer.encode_with_offsets(contexts), strict=True))
        queries = tokenizer.encode([record.question for record in records])
        truncated = [record.id for record, query in zip(records, queries, strict=True) if len(query) > max_query]
        builder, unanswered, cut = FeatureBuilder(), [], []
        for number, (record, query) in enumerate(zip(records, queries, strict=True)):
            ids, first_characters, end_characters = pieces[record.context]
            query = query[:max_query]
            head = 1 + len(query) + tokenizer.separators
            span, weight = _first_answer(record), np.float32(1)
            answer = answer_tokens(first_characters, end_characters, *span) if span else None
            if span and answer is None:
                unanswered.append(record.id)
                weight = np.float32(0)
                if training:
                    continue
            starts, ends = window_bounds(len(ids), self.seq_len - head - 1, self.stride)
            if answer is not None and not ((starts <= answer[0]) & (answer[1] < ends)).any():
                cut.append(record.id)
            best = choose_windows(starts, ends, len(ids))
            for window, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
                token_arrays = {}
                if not training:
                    first_or_none = np.where(best[start:end] == window, first_characters[start:end], np.int32(-1))
                    token_arrays['token_first'] = np.pad(first_or_none, (head, 1), constant_values=-1)
                    token_arrays['token_last'] = np.pad(end_characters[start:end], (head, 1), constant_values=-1)
                builder.add_sequence(*join_pair(query, ids[start:end], tokenizer), **token_arrays)
                inside = answer is not None and start <= answer[0] and answer[1] < end
                target = (answer[0] - start + head, answer[1] - start + head) if inside else (0, 0)
                builder.add_row(number, start=np.int32(target[0]), end=np.int32(target[1]), weights=weight)
        if training and len(unanswered) == len(records):
            found = f'{len(unanswered):,} questions whose answers do not occur in their contexts'
            raise UserError('config.data', found, 'answers that are copied from their contexts', 'correct the data')
        effect = 'not used for training' if training else 'without effect on the loss'
        ids_by_title = {
            f'questions truncated to their first {max_query} pieces': truncated,
            f'questions {"trained as unanswerable" if training else "that may be missed"}, because no window has their '
            'whole first answer; a lower config.task.stride or a higher config.seq_len helps': cut,
            f'questions {effect}, because their answer is not in the text or has no piece': unanswered,
        }
        return builder.build(notes=[format_list(title, ids) for title, ids in ids_by_title.items() if ids])

    def build_module(self, model_config: BertConfig) -> BertForTask:
        return self.head.module(model_config, bilstm_units=self.bilstm_units)

    def predictions(self, records: Sequence[SquadQuestion], features: Features, outputs: Outputs) -> list[Answers]:
        """See Task; the features must have been built with training=False."""
        bounds = np.searchsorted(features.record, np.arange(len(records) + 1))
        count, predictions = SPANS_PER_BEST * self.n_best, []
        for record, begin, end in zip(records, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            spans: list[tuple[int, int, float, float]] = []
            null = None
            for row in range(begin, end):
                tokens = slice(features.offsets[row], features.offsets[row + 1])
                first, last = features.token['token_first'][tokens], features.token['token_last'][tokens]
                starts, ends = outputs['start_logits'][row], outputs['end_logits'][row]
                # A question has no answer if no window has an answer, so the window with the lowest null score decides.
                if null is None or starts[0] + ends[0] < null.score:
                    null = AnswerSpan('', None, None, float(starts[0]), float(ends[0]))
                a, b = best_spans(starts, ends, first, last, longest=self.max_answer, count=count)
                spans += zip(first[a].tolist(), last[b].tolist(), starts[a].tolist(), ends[b].tolist(), strict=True)
            predictions.append(rank_answers(record.context, spans, null, self.n_best, self.nullable))
        return predictions

    def tune(self, records: Sequence[SquadQuestion], predictions: Sequence[Answers]) -> None:
        """For SQuAD 2.0, sets the null threshold to the value with the best F1."""
        if self.nullable:
            self.null_threshold = _evaluate_best(records, predictions).best_threshold(_null_odds(predictions))

    def metrics(self, records: Sequence[SquadQuestion], predictions: Sequence[Answers]) -> dict[str, float | None]:
        """Returns `exact` and `f1`; for SQuAD 2.0 also `null_threshold` and the HasAns_, NoAns_ and best_ metrics.

        The best_ metrics are computed from the best non-empty answers and the null odds, the others from the predicted
        answers, as in the official script.
        """
        texts, answers = self._texts(predictions), [record.answers for record in records]
        if not self.nullable:
            return dict(evaluate_v1(answers, texts))
        best = _evaluate_best(records, predictions).best(_null_odds(predictions))
        return {**Evaluation(answers, texts).figures(), **best, 'null_threshold': self.null_threshold}

    def collapsed(self, records: Sequence[SquadQuestion], predictions: Sequence[Answers]) -> bool:
        """Whether nearly all answers have the same start (None for 'no answer'), although the true starts differ."""
        starts = collections.Counter(self._select_answer(prediction).start for prediction in predictions)
        same = starts.most_common(1)[0][1] >= _COLLAPSED * len(predictions)
        return same and len({_first_answer(record)[:1] for record in records}) > 1

    def report(self, records: Sequence[SquadQuestion], predictions: Sequence[Answers]) -> str:
        """Returns a table for SQuAD 2.0: how many questions with and without an answer were answered."""
        if not self.nullable:
            return ''
        pairs = zip(records, self._texts(predictions), strict=True)
        counts = collections.Counter((bool(record.answers), bool(text)) for record, text in pairs)
        lines = [f'{"":<16} {"answered":>9} {"not":>9}']
        for has_answer, name in ((True, 'has an answer'), (False, 'has none')):
            lines.append(f'{name:<16} {counts[has_answer, True]:>9,} {counts[has_answer, False]:>9,}')
        return '\n'.join([*lines, f'null threshold {self.null_threshold:.4f}\n'])

    def rows(self, records: Sequence[SquadQuestion], predictions: Sequence[Answers]) -> Iterator[dict[str, Any]]:
        """Yields an `inference.task_methods.Answer` per question, with the `true` answers of a labeled question."""
        for record, prediction in zip(records, predictions, strict=True):
            span = self._select_answer(prediction)
            row = {'id': record.id, 'question': record.question, 'answer': span.text}
            row |= {'start': span.start, 'end': span.end, 'probability': span.probability}
            row |= {'null_odds': prediction.null_odds} if self.nullable else {}
            yield row if record.answers is None else {**row, 'true': list(record.answers)}

    def judgments(self, records: Sequence[SquadQuestion], rows: Iterable[Mapping[str, Any]]) -> Iterator[Judgment]:
        """See Task; for SQuAD 2.0, the classes are 'an answer' and 'no answer'."""
        for record, row in zip(records, rows, strict=True):
            check_same_label(row, list(record.answers or ()), record.where)
            true, answer = record.answers or ('',), row['answer']
            f1 = max(overlap_f1(text, answer, empty_equal=True) for text in true)
            span = _first_answer(record)
            start = span[0] if span else row['start'] or 0
            excerpt = record.context[max(start - _EXCERPT, 0) : start + _EXCERPT]
            texts = {'question': record.question, 'text': f'… {excerpt} …'}
            error = (1 - f1) * (1 + row['probability']) if f1 < 1 else 0.0
            pair = tuple('an answer' if text else _NO_ANSWER for text in (true[0], answer))
            classes = [pair] if self.nullable else []
            expected = ' | '.join(dict.fromkeys(true)) or _NO_ANSWER
            yield Judgment(texts, expected, f'{answer or _NO_ANSWER} ({row["probability"]:.2f})', error, classes)

    def official_files(
        self, split: str, records: Sequence[SquadQuestion], predictions: Sequence[Answers]
    ) -> dict[str, str]:
        """Returns run_squad.py's files: predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
        nbest = [
            [{name: getattr(span, name) for name in _NBEST_FIELDS} for span in prediction.nbest]
            for prediction in predictions
        ]
        files = {'predictions.json': self._texts(predictions), 'nbest_predictions.json': nbest}
        if self.nullable:
            files['null_odds.json'] = _null_odds(predictions)
        ids = [record.id for record in records]
        by_id = {name: dict(zip(ids, values, strict=True)) for name, values in files.items()}
        return {name: json.dumps(content, indent=4) + '\n' for name, content in by_id.items()}

    def _select_answer(self, prediction: Answers) -> AnswerSpan:
        """Returns the best answer, or 'no answer' if the null odds exceed the threshold."""
        return prediction.null if self.nullable and prediction.null_odds > self.null_threshold else prediction.best

    def _texts(self, predictions: Sequence[Answers]) -> list[str]:
        return [self._select_answer(prediction).text for prediction in predictions]


def _first_answer(record: SquadQuestion) -> tuple[int, int] | tuple[()]:
    """Returns the first character and the end of the first answer in the context, see `find_answer`; () for none."""
    return find_answer(record.context, record.answers[0], record.starts[0])[1:] if record.answers else ()


def _evaluate_best(records: Sequence[SquadQuestion], predictions: Sequence[Answers]) -> Evaluation:
    """Evaluates the best non-empty answers, without a threshold."""
    return Evaluation([record.answers for record in records], [prediction.best.text for prediction in predictions])


def _null_odds(predictions: Sequence[Answers]) -> list[float]:
    return [prediction.null_odds for prediction in predictions]
