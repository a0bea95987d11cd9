"""The task of reranking, with a cross-encoder."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.config.ranges import MANY, integer, one_of
from bertjax.convert.heads import Head
from bertjax.convert.huggingface.cross_encoder import (
    ACTIVATIONS,
    CLASSES,
    CROSS_ENCODER,
    CrossEncoder,
    cross_encoder_files,
    read_cross_encoder,
)
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Arrays, DistillLoss, Objective
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForMultipleChoice, BertForTask
from bertjax.remote.paths import user_path
from bertjax.tasks.embedding.base import NEGATIVES_FIX, Predictions, Records, TextPairTask, make_ranking
from bertjax.tasks.embedding.features import target_scores
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.embedding.losses import RowLoss, listwise_margin_mse, listwise_softmax, make_objective, mean_of
from bertjax.tasks.exported import read_exported_task
from bertjax.tasks.pairs import pair_features
from bertjax.tasks.reading.texts import read_lines
from bertjax.tasks.task import Outputs, id2label, option
from bertjax.text.tokenizer import Tokenizer


class BertForReranking(BertForMultipleChoice):
    """Scores pairs of a query and a text."""

    smallest_inputs = BertForTask.smallest_inputs


RERANKING = Head(
    BertForReranking,
    architecture='BertForSequenceClassification',
    pipeline='text-ranking',
    projection='classifier',
    pools_cls=True,
    sentence_class=CROSS_ENCODER,
)
_METRICS = ('ndcg_10', 'mrr_10')


# The logits of the losses are [B, M] for B lists of M texts, the positive first. The logits of B scored pairs, and of
# lists of a single text, are [B].
def _present(batch: Arrays) -> jax.Array:
    return batch['attention_mask'][..., 0] > 0  # [B] or [B, M]


def binary_cross_entropy(logits: jax.Array, batch: Arrays) -> jax.Array:
    """Computes the binary cross entropy [B] of logits [B]. The `labels` [B] are targets from 0 to 1."""
    return jax.nn.softplus(logits) - batch['labels'] * logits


def squared_error(logits: jax.Array, batch: Arrays) -> jax.Array:
    """Computes the squared error [B] of the logits against `labels`; for a list, the mean over its texts."""
    error = jnp.square(logits - batch['labels'].reshape(logits.shape))
    return error if error.ndim == 1 else mean_of(error, _present(batch))


def _list_loss(function: Any, logits: jax.Array, batch: Arrays) -> jax.Array:
    scores, present = (x.reshape(len(logits), -1) for x in (logits, _present(batch)))
    return function(scores, present, batch.get('labels'))


# For each form of records, the first loss that accepts this form is the default.
LOSSES = {
    'bce': RowLoss(binary_cross_entropy, ('scored',), score_range=(0, 1)),
    'margin_mse': RowLoss(functools.partial(_list_loss, listwise_margin_mse), ('distilled',), needs_negatives=True),
    'softmax': RowLoss(functools.partial(_list_loss, listwise_softmax), ('pairs', 'distilled'), needs_negatives=True),
    'mse': RowLoss(squared_error, ('scored', 'distilled')),
}


def _distill(student: Any, teacher: Any, batch: Arrays, temperature: float) -> jax.Array:
    """Computes the `squared_error` [B] against the teacher's logits. The temperature has no effect."""
    return squared_error(student['logits'], {**batch, 'labels': teacher['logits']})


@dataclasses.dataclass
class RerankTask(TextPairTask):
    """Trains a cross-encoder, which scores pairs of a query and a text (arXiv 1901.04085).

    The columns of a file determine the form of its records: two texts with a score; or an anchor, a positive and
    negatives, with or without a teacher's scores. In dev, the positives and negatives of each anchor are ranked.

    Attributes:
      data: a folder with train.jsonl and dev.jsonl, or other usual names and formats; a file; or, for evaluation only,
        a BEIR folder.
      seq_len: the maximum length S in tokens of a query with a text, including [CLS] and two [SEP].
      loss: the loss; 'auto' for 'bce' with scored pairs, 'margin_mse' with a teacher's scores, else
        'softmax' over the texts of an anchor.
      activation: the function from logits to scores; 'auto' uses the function of config.init if it is a CrossEncoder,
        else 'sigmoid' with the loss 'bce', else 'identity'.
      candidates: for a BEIR folder, the folder `predictions` of a search; the best documents of each query are
        ranked again.
      candidate_count: the maximum number of candidates.
    """

    loss: str = option('auto', one_of(('auto', *LOSSES)))
    activation: str = option('auto', one_of(('auto', *ACTIVATIONS)), affects='reading')
    candidates: str = option('', affects='reading')
    candidate_count: int = option(100, integer(1, MANY), affects='reading')

    method, results = 'rerank', 'scores of pairs of texts'
    head = RERANKING
    losses = LOSSES
    same_rows = adopts = True
    pair_key = 'score'
    min_seq_len, default_name = 5, 'reranking'
    _learned_activation = ''

    @property
    def objective(self) -> Objective:
        distill_loss = DistillLoss(_distill, uses_temperature=False)
        return make_objective(self.losses[self._loss].rows, 'logits', distill_loss=distill_loss)

    @property
    def _activation(self) -> str:
        return (self._learned_activation or 'identity') if self.activation == 'auto' else self.activation

    def records(self, split: str) -> Records:
        records, is_beir = super().records(split), self._files.is_beir
        if not isinstance(records[0], Query):
            return records
        if is_beir != bool(self.candidates):
            expected, fix = "'', because the file has the texts to rank", 'leave it out'
            if is_beir:
                expected = 'a folder with the run of a search'
                fix = 'name WORKDIR/predictions/other_data, or WORKDIR/predictions, of configs/embed.py'
            raise UserError('config.task.candidates', repr(self.candidates), expected, fix)
        if is_beir:
            folder = user_path(self.candidates, 'config.task.candidates')
            return _with_candidates(records, folder / split / f'{split}.trec', self.candidate_count)
        for record in records:
            if len(record.candidates) <= len(record.relevant):
                found = f'no negative of the anchor {record.text[:40]!r}'
                raise UserError(f'{self.data}, {split}', found, 'a negative', NEGATIVES_FIX)
        return records

    def learn(self, records: Sequence[TextExample]) -> None:
        super().learn(records)
        self._learned_activation = self._learned_activation or ('sigmoid' if self._loss == 'bce' else 'identity')

    def learned_state(self) -> dict[str, Any]:
        return {**super().learned_state(), 'activation': self._activation}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._learned_activation = state['activation']

    def adopt(self, source: str) -> None:
        """See Task. With activation='auto', the activation of `source` is used if `source` is a reranker."""
        if cross_encoder := read_cross_encoder(source):
            self._learned_activation = cross_encoder.activation
        elif exported := read_exported_task(source, 'rerank'):  # an Orbax export has only task.json
            self._learned_activation = exported.learned_state()['activation']

    def features(self, records: Records, tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task. Without `training`, there is a row for each pair that `_pairs` returns."""
        groups = [(record.texts[0], record.texts[1:]) for record in records] if training else _pairs(records)
        labels = target_scores(records, self.max_score) if training else None
        return pair_features(groups, {} if labels is None else {'labels': labels}, tokenizer, self.seq_len)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        return self.head.module(model_config)

    def huggingface(self) -> dict[str, Any]:
        """See Task. Versions 4 and 5 of sentence-transformers read the activation only from config.json."""
        return id2label(['LABEL_0']) | {'sentence_transformers': {'activation_fn': CLASSES[self._activation]}}

    def model_files(self, model_config: BertConfig) -> Mapping[str, bytes]:
        return cross_encoder_files(CrossEncoder(self.seq_len, self._activation))

    def predictions(self, records: Records, features: Features, outputs: Outputs) -> Predictions:
        """Returns the score of each pair, or the ranking of the candidates of each query."""
        del features
        scores = ACTIVATIONS[self._activation](np.stack(outputs['logits']).astype(np.float64))
        if isinstance(records[0], TextExample):
            return scores.tolist()
        ends = np.cumsum([len(query.candidates) for query in records])
        pairs = zip(records, np.split(scores, ends[:-1]), strict=True)
        return [make_ranking(query, zip(query.candidates, part.tolist(), strict=True)) for query, part in pairs]

    def metrics(self, records: Records, predictions: Predictions) -> dict[str, float | None]:
        """Returns the metrics of the predicted scores of pairs, or nDCG@10 and MRR@10 of the rankings."""
        figures = super().metrics(records, predictions)
        return {name: figures[name] for name in _METRICS} if isinstance(records[0], Query) else figures


def _with_candidates(queries: Sequence[Query], path: epath.Path, count: int) -> list[Query]:
    """Returns the queries with new candidates: for each query, the `count` documents with the highest scores in a file.

    Each line of the file is `query Q0 document rank score name`. As in trec_eval, the ranks have no effect. Equal
    scores stay in the order of the lines. If a document has several lines, the first one counts. A query itself is left
    out.
    """
    index = {name: i for i, name in enumerate(queries[0].corpus.ids)}
    scores: dict[str, dict[int, float]] = {}  # {query: {document: score}}
    for number, line in read_lines(path):
        try:
            query, _, document, _, value, _ = line.split()
            document, score = index[document], float(value)
            if not math.isfinite(score):
                raise ValueError(value)
        except (ValueError, KeyError):
            expected = 'query, Q0, a document of the corpus, rank, score and a name'
            fix = 'give the run of a search of this corpus'
            raise UserError(f'{path}:{number}', repr(line[:60]), expected, fix) from None
        scores.setdefault(query, {}).setdefault(document, score)
    candidates = []
    for query in queries:
        of_query = scores.get(query.id, {})
        ranked = [i for i in sorted(of_query, key=of_query.get, reverse=True) if not query.excludes(i)]
        candidates.append(dataclasses.replace(query, candidates=tuple(ranked[:count])))
    return candidates


def _pairs(records: Records) -> list[tuple[str, Sequence[str]]]:
    """Returns the pairs to score: the pairs of examples, or each query with each of its candidates.

    Raises:
      UserError: A query has no candidates.
    """
    if isinstance(records[0], TextExample):
        return [(record.texts[0], record.texts[1:2]) for record in records]
    if query := next((query for query in records if not query.candidates), None):
        found = f'no document, except perhaps the query itself, for the query {query.id}'
        fix = 'search all queries with run=predict, or remove the query from qrels'
        raise UserError('config.task.candidates', found, 'a document for each query', fix)
    return [(query.text, [query.corpus.texts[i]]) for query in records for i in query.candidates]
