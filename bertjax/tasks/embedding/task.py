"""Embeddings: training from pairs, triplets, scored pairs or texts, evaluation by correlation or by retrieval."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import COUNT, integer, list_of, number, one_of, text
from bertjax.config.schema import check_fields
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, read_sentence_modules
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Objective
from bertjax.metrics.classification import VALUE_METRICS
from bertjax.metrics.retrieval import retrieval_figures
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.model.pooling import SENTENCE_POOL
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.features import group_features, text_features
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.embedding.head import EMBEDDING, LAYER_NUMBERS
from bertjax.tasks.embedding.losses import LOSSES, build_objective
from bertjax.tasks.embedding.ranking import Ranking, rank_documents, ranking_row, trec_lines
from bertjax.tasks.embedding.splits import EmbeddingSplits
from bertjax.tasks.options import option
from bertjax.tasks.reading.layout import Column, Record
from bertjax.tasks.reading.records import Row, select_columns
from bertjax.tasks.reading.splits import STEMS
from bertjax.tasks.reading.texts import Blank, Line
from bertjax.tasks.sentence.input import read_input
from bertjax.tasks.task import Outputs, Task
from bertjax.text.tokenizer import Tokenizer

_NAME = text(empty=False)
# {form of the training records: the loss with config.task.loss='auto'}.
_DEFAULT_LOSS = {form: next(name for name, loss in LOSSES.items() if form in loss.forms) for form in files.FORMS}


@dataclasses.dataclass
class EmbeddingTask(Task[TextExample | Query, float | Ranking]):
    """Trains vectors of texts; the cosine of related texts is high.

    The columns of a file decide its form: anchor and positive, with or without negatives; two texts with a score; or
    single texts, which SimCSE (arXiv 2104.08821) pairs with themselves under other dropout. A dev file of pairs is a
    search of each anchor's positive among all positives and negatives of the file. A folder of BEIR is searched whole,
    and so are the paragraphs of a file of SQuAD, by the questions that have an answer.

    Attributes:
      data: a folder with train.jsonl and dev.jsonl, or other usual names and formats, or those of SQuAD; a file; or a
        BEIR folder.
      seq_len: the maximum sequence length S in tokens, including [CLS] and [SEP].
      loss: the loss, see losses.py; 'auto' for 'cosent' with scored pairs, else 'info_nce'.
      scale: the factor of the cosines in 'info_nce' and 'cosent'.
      symmetric: whether 'info_nce' also searches the anchor of each positive.
      false_negative_margin: if > 0, 'info_nce' ignores texts that are more similar than the positive by this margin.
      matryoshka_dims: the widths at which the loss is computed, as in `(384,64)`; () for the full width.
      max_score: the divisor of scores, such as 5 for STS-B.
      pool: the pooling, named as in sentence-transformers; 'auto' for that of config.init if it has one, else 'mean'.
      layers: the hidden states that are pooled, the last or the mean of the last four.
      query_prompt: the prefix of anchors, queries, scored pairs and single texts; the prompt 'query' of the model.
      document_prompt: the prefix of positives, negatives and documents; the prompt 'document' of the model.
      normalize: whether the model's vectors have length 1; the losses use cosines in any case.
      anchor, positive, text_a, text_b, text: the column.
      negative: the column, which may be missing or have lists.
      label: the column of scores.
      train, dev, test: the file; '' for the usual names.
    """

    data: str
    seq_len: int
    loss: str = option('auto', one_of(('auto', *LOSSES)))
    scale: float = option(20.0, number(0, 1e4, above=True))
    symmetric: bool = False
    false_negative_margin: float = option(0.0, number(0, 2))
    matryoshka_dims: Sequence[int] = option((), list_of(integer(1, COUNT)))
    max_score: float = option(1.0, number(0, 1e9, above=True))
    pool: str = option('auto', one_of(('auto', *SENTENCE_POOL)), affects='model')
    layers: str = option('last', one_of(LAYER_NUMBERS), affects='model')
    query_prompt: str = ''
    document_prompt: str = ''
    normalize: bool = option(True, affects='reading')
    anchor: str = option('anchor', _NAME, affects='reading')
    positive: str = option('positive', _NAME, affects='reading')
    negative: str = option('negative', _NAME, affects='reading')
    text_a: str = option('text_a', _NAME, affects='reading')
    text_b: str = option('text_b', _NAME, affects='reading')
    label: str = option('score', _NAME, affects='reading')
    text: str = option('text', _NAME, affects='reading')
    train: str = option('', affects='reading')
    dev: str = option('', affects='reading')
    test: str = option('', affects='reading')

    head = EMBEDDING

    def __post_init__(self):
        check_fields(self, 'task')
        if self.seq_len < 4:
            raise UserError('config.seq_len', str(self.seq_len), 'at least 4', 'use 128')
        self.matryoshka_dims = tuple(self.matryoshka_dims)
        self.name = pathlib.PurePath(self.data).name or 'embeddings'
        self._form, self._pool = '', 'mean' if self.pool == 'auto' else self.pool

    @functools.cached_property
    def _splits(self) -> EmbeddingSplits:
        columns = {role: getattr(self, role) for role in files.ROLES}
        return EmbeddingSplits(self.data, {split: getattr(self, split) for split in STEMS}, columns)

    def splits(self) -> Sequence[str]:
        """See Task."""
        return self._splits.names()

    def sources(self) -> str:
        """See Task."""
        return self._splits.describe()

    def records(self, split: str) -> Sequence[TextExample | Query]:
        """See Task and splits.py."""
        return self._splits.records(split)

    @functools.cached_property
    def score(self) -> str:
        """See Task; the metric of the form of dev, or of test if there is no dev."""
        form = next(filter(None, map(self._splits.form_of, ('dev', 'test'))), 'pairs')
        return 'spearman' if form == 'scored' else 'ndcg_10'

    def parse(self, lines: Iterable[Line], where: str) -> Iterator[TextExample | Blank]:
        """See Task; the records are pairs of texts, whose similarity is predicted."""
        for row in read_input(lines, where, self._pair_columns):
            yield row if isinstance(row, Blank) else _pair(row)

    def from_rows(self, rows: Iterator[Record]) -> Iterator[TextExample]:
        """See Task."""
        return map(_pair, select_columns(rows, self._pair_columns))

    @property
    def _pair_columns(self) -> tuple[Column, ...]:
        return Column((self.text_a,)), Column((self.text_b,))

    @property
    def _loss(self) -> str:
        return _DEFAULT_LOSS[self._form or 'pairs'] if self.loss == 'auto' else self.loss

    @property
    def objective(self) -> Objective:
        """See Task."""
        options = {name: getattr(self, name) for name in LOSSES[self._loss].options}
        return build_objective(self._loss, self.matryoshka_dims, **options)

    def learn(self, records: Sequence[TextExample]) -> None:
        """Checks that the loss fits the form of the training records, and prints their number.

        Raises:
          UserError: The loss needs another form, an option has no effect, or a score is out of range.
        """
        self._form = records[0].form
        loss = LOSSES[self._loss]
        if self._form not in loss.forms:
            expected = 'one of ' + ', '.join(name for name, other in LOSSES.items() if self._form in other.forms)
            fix = "leave it at 'auto', or give other training records"
            raise UserError('config.task.loss', f'{self.loss!r} with records of the form {self._form}', expected, fix)
        for name, default in (('scale', 20.0), ('symmetric', False), ('false_negative_margin', 0.0)):
            if name not in loss.options and getattr(self, name) != default:
                found = f'{getattr(self, name)!r} with the loss {self._loss}, which does not use it'
                raise UserError(f'config.task.{name}', found, repr(default), 'leave it out')
        if self._loss == 'cosine':
            for record in records:
                if abs(record.score) > self.max_score:
                    fix = 'set config.task.max_score, for example to 5 for STS-B'
                    raise UserError(record.where, f'the score {record.score:g}', f'within ±{self.max_score:g}', fix)
        texts = sum(len(record.texts) for record in records)
        print(f'{len(records):,} records for training with the loss {self._loss}, {texts:,} texts')

    def learned_state(self) -> dict[str, Any]:
        """See Task."""
        return {'form': self._form, 'pool': self._pool}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See Task."""
        self._form, self._pool = state['form'], state['pool']

    def adopt(self, source: str) -> None:
        """See Task; a folder of sentence-transformers determines the pooling that `pool` leaves open."""
        modules = read_sentence_modules(source)
        if modules is None or self.pool != 'auto':
            return
        if modules.refusal:
            raise modules.refusal
        if modules.layers != LAYER_NUMBERS[self.layers] or modules.weights:
            expected = f'those of config.task.layers={self.layers}'
            fix = 'set config.task.layers, or name a pooling with config.task.pool'
            raise UserError('config.init', f'the layers {modules.layers} in {source}', expected, fix)
        for found, given in (('a prompt', modules.prompt), ('Dense layers', modules.dense)):
            if given:
                fix = 'name a pooling with config.task.pool, to train the encoder without them'
                raise UserError('config.init', f'{found} in {source}', 'a pooling of the encoder only', fix)
        self._pool = modules.pool
        if any(modules.prompts.values()) and not (self.query_prompt or self.document_prompt):
            print(f'{source} has the prompts {dict(modules.prompts)}: see config.task.query_prompt and document_prompt')

    def check_training(self, train: str) -> None:
        """See Task."""
        if train == 'head':
            fix = 'choose a part of the encoder'
            raise UserError('config.trainable', "'head'", "'all' or 'last_K', because a pooling has no parameters", fix)

    def features(self, records: Sequence[TextExample | Query], tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task; without `training`, there is a row for each text of `_texts`."""
        if not training:
            return text_features(self._prompted_texts(records), tokenizer, seq_len=self.seq_len)
        groups = [record.texts * 2 if record.form == 'texts' else record.texts for record in records]
        scores = None
        if records[0].form == 'scored':
            scores = np.array([record.score for record in records], np.float32) / np.float32(self.max_score)
        prompts = self.query_prompt, self.document_prompt if records[0].form == 'pairs' else self.query_prompt
        return group_features(groups, scores, tokenizer, seq_len=self.seq_len, prompts=prompts)

    def _prompted_texts(self, records: Sequence[TextExample | Query]) -> list[str]:
        """Returns the texts to embed with their prompts, in the order of `_texts`."""
        texts = _texts(records)
        queries = len(records) if isinstance(records[0], Query) else len(texts)
        return [(self.query_prompt if i < queries else self.document_prompt) + text for i, text in enumerate(texts)]

    def build_module(self, model_config: BertConfig) -> BertForTask:
        """See Task.

        Raises:
          UserError: A Matryoshka width is larger than the width of the encoder.
        """
        if max(self.matryoshka_dims, default=0) > model_config.width:
            expected = f'at most {model_config.width}, the width of the encoder'
            raise UserError('config.task.matryoshka_dims', str(self.matryoshka_dims), expected, 'correct the widths')
        return self.head.module(model_config, pool=self._pool, layers=self.layers)

    def huggingface(self) -> dict[str, Any]:
        """See Task; sentence-transformers pools several layers only if the encoder returns all of them."""
        return {} if self.layers == 'last' else {'output_hidden_states': True}

    def sentence_modules(self) -> SentenceModules:
        """See Task."""
        prompts = {'query': self.query_prompt, 'document': self.document_prompt}
        layers = LAYER_NUMBERS[self.layers]
        return SentenceModules(self.seq_len, prompts=prompts, layers=layers, pool=self._pool, normalize=self.normalize)

    def predictions(
        self, records: Sequence[TextExample | Query], features: Features, outputs: Outputs
    ) -> list[float | Ranking]:
        """Returns the cosine of the first two texts of each example, or the ranking of each query."""
        del features
        vectors = np.stack(outputs['embeddings'])
        vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        if isinstance(records[0], Query):
            return rank_documents(records, vectors[: len(records)], vectors[len(records) :])
        index = {text: i for i, text in enumerate(_texts(records))}
        first, second = zip(*((index[x.texts[0]], index[x.texts[:2][-1]]) for x in records), strict=True)
        return np.einsum('nd,nd->n', vectors[[*first]], vectors[[*second]], dtype=np.float64).tolist()

    def ensemble_predictions(
        self, records: Sequence[TextExample | Query], members: Sequence[tuple[Features, Outputs]]
    ) -> list[float | Ranking]:
        """See Task; the similarity is the mean of the members' cosines, the cosine of the concatenated unit vectors."""
        parts = [np.stack(outputs['embeddings']) for _, outputs in members]
        units = [x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in parts]
        return self.predictions(records, members[0][0], {'embeddings': list(np.concatenate(units, axis=-1))})

    def metrics(
        self, records: Sequence[TextExample | Query], predictions: Sequence[float | Ranking]
    ) -> dict[str, float | None]:
        """Returns the correlations of cosines and scores, or the figures of a search (metrics/retrieval.py)."""
        if isinstance(records[0], Query):
            rankings = [ranking.documents for ranking in predictions]
            return retrieval_figures(rankings, [query.relevant for query in records])
        scores = [example.score for example in records]
        known = None not in scores
        return {name: VALUE_METRICS[name](scores, predictions) if known else None for name in ('spearman', 'pearson')}

    def collapsed(self, records: Sequence[TextExample | Query], predictions: Sequence[float | Ranking]) -> bool:
        """Whether all pairs have nearly the same cosine, or all queries the same ranking."""
        if isinstance(records[0], Query):
            return len(records) > 1 and len({tuple(ranking.documents) for ranking in predictions}) == 1
        return len(records) > 1 and float(np.ptp(predictions)) < 1e-5

    def rows(
        self, records: Sequence[TextExample | Query], predictions: Sequence[float | Ranking]
    ) -> Iterator[dict[str, Any]]:
        """Yields `similarity` and, if known, `true`, the score; or `query`, `text` and its first `documents`."""
        for record, prediction in zip(records, predictions, strict=True):
            if isinstance(record, TextExample):
                yield {'similarity': prediction, **({} if record.score is None else {'true': record.score})}
                continue
            else:
                yield ranking_row(record, prediction)

    def official_files(
        self, split: str, records: Sequence[TextExample | Query], predictions: Sequence[float | Ranking]
    ) -> dict[str, str]:
        """Returns the run file of trec_eval for a search."""
        if not isinstance(records[0], Query):
            return {}
        lines = (trec_lines(query, ranking) for query, ranking in zip(records, predictions, strict=True))
        return {f'{split}.trec': ''.join(itertools.chain.from_iterable(lines))}


def _pair(row: Row) -> TextExample:
    if None in row.values:
        raise UserError(row.where, 'no text', 'two texts', 'correct or remove the record')
    return TextExample('scored', row.values, None, row.where, row.fields)


def _texts(records: Sequence[TextExample | Query]) -> list[str]:
    """Returns the texts to embed: of queries, then of their corpus; or the different texts of examples."""
    if isinstance(records[0], Query):
        return [query.text for query in records] + list(records[0].corpus.texts)
    return list(dict.fromkeys(text for record in records for text in record.texts))
