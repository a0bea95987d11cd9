"""The base class of the tasks that compare texts: embeddings, rerankers and late interaction."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bertjax.config.ranges import number, text
from bertjax.errors import UserError
from bertjax.metrics.classification import VALUE_METRICS
from bertjax.metrics.retrieval import CUTOFFS, retrieval_figures
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.embedding.losses import RowLoss
from bertjax.tasks.embedding.splits import EmbeddingSplits
from bertjax.tasks.reading.layout import Column, Record
from bertjax.tasks.reading.records import Row, select_columns
from bertjax.tasks.reading.splits import STEMS
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.sentence.input import read_input
from bertjax.tasks.task import Task, option


@dataclasses.dataclass(frozen=True)
class Ranking:
    """The best documents of a query, best first: their indices in the corpus, and their scores."""

    documents: Sequence[int]
    scores: Sequence[float]


Records = Sequence[TextExample | Query]
Predictions = list[float | Ranking]
_NAME = text(empty=False)
NEGATIVES_FIX = (
    'name their column in config.task.negative, '
    'or find negatives with configs/mine_negatives.py, and give its result as config.data'
)
_SHOWN = 10  # the maximum number of documents in a query's row of predictions


@dataclasses.dataclass
class TextPairTask(Task[TextExample | Query, float | Ranking]):
    """The options and the methods of all tasks that compare texts.

    A prediction is the similarity of a pair, or a query's ranking of documents. A subclass declares the field `loss`
    again, with its own choices, and a field for each option of its losses.

    Attributes:
      data: a folder with train.jsonl and dev.jsonl, or other usual names and formats; a file; or a BEIR folder.
      seq_len: the maximum sequence length S in tokens, including [CLS] and [SEP].
      loss: the loss; 'auto' chooses it by the form of the training records.
      max_score: the divisor of scores, such as 5 for STS-B.
      anchor, positive, text_a, text_b: the column with this text.
      negative: the column with one negative or a list, or several columns such as negative_1; a file may lack it.
      label: the column with scores; in a file with anchors, it has lists of a teacher's scores.
      train, dev, test: the file of the split, relative to `data` or to its folder; '' for the usual names in a folder.
      losses: {name: loss}. 'auto' chooses the first loss that accepts the form of the training records.
      pair_key: the key of the predicted similarity of a pair in a row of predictions.
    """

    data: str
    seq_len: int
    loss: str = 'auto'
    max_score: float = option(1.0, number(0, 1e9, above=True))
    anchor: str = option('anchor', _NAME, affects='reading')
    positive: str = option('positive', _NAME, affects='reading')
    negative: str = option(files.OPTIONAL_COLUMNS['negative'], _NAME, affects='reading')
    text_a: str = option('text_a', _NAME, affects='reading')
    text_b: str = option('text_b', _NAME, affects='reading')
    label: str = option(files.OPTIONAL_COLUMNS['label'], _NAME, affects='reading')
    train: str = option('', affects='reading')
    dev: str = option('', affects='reading')
    test: str = option('', affects='reading')

    losses: ClassVar[Mapping[str, RowLoss]]
    pair_key: ClassVar[str] = 'similarity'
    learned: ClassVar[Mapping[str, str]] = {'form': '_form'}
    _form = ''  # the form of the training records, a key of files.FORMS

    @functools.cached_property
    def _files(self) -> EmbeddingSplits:
        return EmbeddingSplits(self.data, {split: getattr(self, split) for split in STEMS}, self._columns)

    @property
    def _columns(self) -> dict[str, str]:
        return {role: getattr(self, role, role) for role in files.ROLES}

    def records(self, split: str) -> Records:
        return self._files.records(split)

    @functools.cached_property
    def score(self) -> str:
        """See Task. The form of the dev records determines the metric; without dev, the form of the test records."""
        form = next(filter(None, map(self._files.form_of, ('dev', 'test'))), 'pairs')
        return 'spearman' if form == 'scored' else 'ndcg_10'

    def has_score(self, records: Records) -> bool:
        """See Task; a correlation needs two or more different scores."""
        return self.score != 'spearman' or len({record.score for record in records}) > 1

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[TextExample | Blank]:
        """See Task. A record is a pair of texts, and the prediction is their similarity."""
        for row in read_input(lines, where, self._pair_columns):
            yield row if isinstance(row, Blank) else _pair(row)

    def from_rows(self, rows: Iterator[Record]) -> Iterator[TextExample]:
        return map(_pair, select_columns(rows, self._pair_columns))

    @property
    def _pair_columns(self) -> tuple[Column, ...]:
        return tuple(Column((getattr(self, name),), key=f'config.task.{name}') for name in ('text_a', 'text_b'))

    @property
    def _loss_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.losses[self._loss].options}

    @property
    def _loss(self) -> str:
        form = self._form or 'pairs'
        by_default = next(name for name, loss in self.losses.items() if form in loss.forms)
        return by_default if self.loss == 'auto' else self.loss

    def learn(self, records: Sequence[TextExample]) -> None:
        """Checks that the loss fits the form of the training records, and prints their number.

        Raises:
          UserError: The loss does not accept these records or scores, or does not use an option that is set.
        """
        self._form = records[0].form
        usable = [name for name, loss in self.losses.items() if self._form in loss.forms]
        if not usable:
            forms = {form for loss in self.losses.values() for form in loss.forms}
            found, expected = f'records of the form {self._form}', files.describe_forms(forms, self._columns)
            raise UserError(records[0].where, found, f'the columns {expected}', 'train with records of another form')
        if self.loss != 'auto' and self.loss not in usable:
            found = f'{self.loss!r} with records of the form {self._form}'
            fix = "leave it at 'auto', or give training records that the loss accepts"
            raise UserError('config.task.loss', found, 'one of ' + ', '.join(usable), fix)
        loss, options = self.losses[self._loss], {name for loss in self.losses.values() for name in loss.options}
        for field in dataclasses.fields(self):
            if field.name in options - {*loss.options} and getattr(self, field.name) != field.default:
                found = f'{getattr(self, field.name)!r} with the loss {self._loss}, which does not use it'
                raise UserError(f'config.task.{field.name}', found, repr(field.default), 'leave it out')
        # The loss of an anchor without negatives is 0.
        alone = sum(len(record.texts) < 3 for record in records) if loss.needs_negatives else 0
        if alone == len(records):
            where = records[0].where or self.data
            raise UserError(where, 'only anchors without negatives', 'negatives', NEGATIVES_FIX)
        if alone:
            print(f'{alone:,} of {len(records):,} anchors have no negatives; their loss is 0')
        if loss.score_range:
            low, high = (bound * self.max_score for bound in loss.score_range)
            if outside := next((record for record in records if not low <= record.score <= high), None):
                fix = 'set config.task.max_score, for example to 5 for STS-B'
                raise UserError(outside.where, f'the score {outside.score:g}', f'{low:g} to {high:g}', fix)
        texts = sum(len(record.texts) for record in records)
        print(f'{len(records):,} records for training with the loss {self._loss}, {texts:,} texts')

    def metrics(self, records: Records, predictions: Predictions) -> dict[str, float | None]:
        """Returns the correlations of predictions with scores, or the metrics of a search (metrics/retrieval.py)."""
        if isinstance(records[0], Query):
            rankings = [ranking.documents for ranking in predictions]
            return retrieval_figures(rankings, [query.relevant for query in records])
        scores = [example.score for example in records]
        known = None not in scores
        return {name: VALUE_METRICS[name](scores, predictions) if known else None for name in ('spearman', 'pearson')}

    def collapsed(self, records: Records, predictions: Predictions) -> bool:
        """Whether all pairs have nearly the same prediction, or all queries the same ranking."""
        if isinstance(records[0], Query):
            return len(records) > 1 and len({tuple(ranking.documents) for ranking in predictions}) == 1
        return len(records) > 1 and float(np.ptp(predictions)) < 1e-5

    def rows(self, records: Records, predictions: Predictions) -> Iterator[dict[str, Any]]:
        """Yields a row per record: a query's best documents, or a pair's similarity (`pair_key`) and score (`true`)."""
        for record, prediction in zip(records, predictions, strict=True):
            if isinstance(record, TextExample):
                yield {self.pair_key: prediction, **({} if record.score is None else {'true': record.score})}
                continue
            found = itertools.islice(zip(prediction.documents, prediction.scores, strict=True), _SHOWN)
            ids, relevant = record.corpus.ids, record.relevant
            documents = [{'id': ids[i], 'score': score, 'relevance': relevant.get(i, 0)} for i, score in found]
            yield {'query': record.id, 'text': record.text, 'documents': documents}

    def official_files(self, split: str, records: Records, predictions: Predictions) -> dict[str, str]:
        """Returns a run file for trec_eval if the records are queries."""
        if not isinstance(records[0], Query):
            return {}
        lines = [
            f'{query.id} Q0 {query.corpus.ids[i]} {rank} {score!r} bertjax\n'
            for query, ranking in zip(records, predictions, strict=True)
            for rank, (i, score) in enumerate(zip(ranking.documents, ranking.scores, strict=True), 1)
        ]
        return {f'{split}.trec': ''.join(lines)}


def make_rankings(queries: Sequence[Query], search: Callable[[int], tuple[np.ndarray, np.ndarray]]) -> list[Ranking]:
    """Returns the best documents of each of Q queries, without the query itself (see `Query.excludes`).

    `search` takes K, and returns the indices and scores of the K best documents of each query, [Q, K], best first.
    """
    count, rankings = max(CUTOFFS.values()), []
    for query, *found in zip(queries, *search(count + 1), strict=True):
        pairs = zip(*(x.tolist() for x in found), strict=True)
        rankings.append(make_ranking(query, [(i, score) for i, score in pairs if not query.excludes(i)][:count]))
    return rankings


def make_ranking(query: Query, scores: Iterable[tuple[int, float]]) -> Ranking:
    """Ranks pairs of a document and its score. Equal scores are in descending order of the ids, as in trec_eval."""
    ids = query.corpus.ids
    ranked = sorted(scores, key=lambda pair: (pair[1], ids[pair[0]]), reverse=True)
    return Ranking([i for i, _ in ranked], [score for _, score in ranked])


def distinct_texts(records: Records) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the texts of the queries and of the corpus, or the distinct first and second texts of examples."""
    if isinstance(records[0], Query):
        return [query.text for query in records], records[0].corpus.texts
    first, second = (list(dict.fromkeys(record.texts[i] for record in records)) for i in (0, 1))
    return first, second


def _pair(row: Row) -> TextExample:
    if None in row.values:
        raise UserError(row.where, 'no text', 'two texts', 'correct or remove the record')
    return TextExample('scored', row.values, None, row.where, row.fields)
