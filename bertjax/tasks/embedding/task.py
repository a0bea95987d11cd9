"""The embedding task: trains on pairs, triplets, scored pairs or single texts; evaluates correlation or retrieval."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import COUNT, integer, list_of, number, one_of, text
from bertjax.config.schema import check_fields
from bertjax.convert.huggingface.dense import DenseConfig
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, read_sentence_modules
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Objective
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.model.pooling import SENTENCE_POOL
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.base import TextPairTask, check_scores
from bertjax.tasks.embedding.features import group_features, target_scores, text_features
from bertjax.tasks.embedding.files import Query, TextExample
from bertjax.tasks.embedding.head import EMBEDDING, LAYER_NUMBERS
from bertjax.tasks.embedding.losses import LOSSES, build_objective
from bertjax.tasks.embedding.ranking import Ranking, rank_documents
from bertjax.tasks.options import option
from bertjax.tasks.task import Outputs
from bertjax.text.tokenizer import Tokenizer

_NAME = text(empty=False)


@dataclasses.dataclass
class EmbeddingTask(TextPairTask):
    """Trains a model that maps texts to vectors, so that the vectors of related texts have a high cosine.

    The columns of a file determine the form of its records: an anchor and a positive, with or without negatives; two
    texts with a score; or a single text. SimCSE (arXiv 2104.08821) pairs a single text with itself, and the two copies
    have different dropout masks. A dev file of pairs is evaluated as a search: for each anchor, its positive is
    searched among all positives and negatives. For a BEIR folder, each query is searched in the whole corpus. For a
    SQuAD file, each question with an answer is searched among all paragraphs.

    Attributes:
      data: a folder with train.jsonl and dev.jsonl, with files of other usual names and formats, or with SQuAD's files;
        a file; or a BEIR folder.
      seq_len: the maximum sequence length S in tokens, including [CLS] and [SEP].
      loss: the loss, see losses.py; 'auto' chooses 'cosent' for scored pairs, 'margin_mse' for scores of a teacher, and
        'info_nce' for other records.
      scale: the factor of the cosines in 'info_nce', 'cosent' and 'margin_mse'.
      symmetric: whether 'info_nce' also searches the anchor for each positive.
      false_negative_margin: if > 0, 'info_nce' ignores texts whose cosine exceeds that of the positive by this margin.
      matryoshka_dims: the widths at which the loss is computed, as in `(384,64)`; () for the full width.
      max_score: the divisor of scores, such as 5 for STS-B.
      pool: the pooling, named as in sentence-transformers; 'auto' for the pooling of config.init if known, else 'mean'.
      layers: the hidden states that are pooled: of the last layer, or the mean of the last four layers.
      query_prompt: the prefix of anchors, queries, scored pairs and single texts; exported as the model's prompt
        'query'.
      document_prompt: the prefix of positives, negatives and documents; exported as the model's prompt 'document'.
      normalize: whether the model's vectors have length 1; the losses use cosines in any case.
      anchor, positive, text_a, text_b, text: the column with this text.
      negative: the column with one negative or a list of negatives; a file may lack it.
      label: the column with scores; in a file with anchors, it has lists of a teacher's scores.
      train, dev, test: the file of the split; '' for the usual names.
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
    losses = LOSSES

    def __post_init__(self):
        check_fields(self, 'task')
        if self.seq_len < 4:
            raise UserError('config.seq_len', str(self.seq_len), 'at least 4', 'use 128')
        self.matryoshka_dims = tuple(self.matryoshka_dims)
        self.name = pathlib.PurePath(self.data).name or 'embeddings'
        self._pool = 'mean' if self.pool == 'auto' else self.pool
        self._dense: tuple[DenseConfig, ...] = ()

    @property
    def objective(self) -> Objective:
        """See Task."""
        options = {name: getattr(self, name) for name in LOSSES[self._loss].options}
        return build_objective(self._loss, self.matryoshka_dims, **options)

    def learn(self, records: Sequence[TextExample]) -> None:
        """See TextPairTask.

        Raises:
          UserError: A score is out of range.
        """
        super().learn(records)
        if self._loss == 'cosine':
            check_scores(records, -1, 1, self.max_score)

    def learned_state(self) -> dict[str, Any]:
        """See Task."""
        dense = {'dense': [*self._dense]} if self._dense else {}
        return {**super().learned_state(), 'pool': self._pool, **dense}

    def restore(self, state: Mapping[str, Any]) -> None:
        """See Task."""
        super().restore(state)
        self._pool = state['pool']
        self._dense = tuple(DenseConfig(*values) for values in state.get('dense', ()))

    def adopt(self, source: str) -> None:
        """See Task; if `pool` is 'auto', a folder of sentence-transformers sets the pooling and the Dense modules."""
        modules = read_sentence_modules(source)
        if modules is None or self.pool != 'auto':
            return
        if modules.refusal:
            raise modules.refusal
        if modules.layers != LAYER_NUMBERS[self.layers] or modules.weights:
            expected = f'the layers of config.task.layers={self.layers}'
            fix = 'set config.task.layers, or name a pooling with config.task.pool'
            raise UserError('config.init', f'the layers {modules.layers} in {source}', expected, fix)
        if modules.prompt:
            fix = 'name a pooling with config.task.pool, to train the encoder without a prompt'
            raise UserError('config.init', f'a prompt in {source}', 'a pooling without a prompt', fix)
        self._pool, self._dense = modules.pool, modules.dense
        if any(modules.prompts.values()) and not (self.query_prompt or self.document_prompt):
            print(f'{source} has the prompts {dict(modules.prompts)}: see config.task.query_prompt and document_prompt')

    def check_training(self, train: str) -> None:
        """See Task."""
        if train == 'head':
            fix = 'choose a part of the encoder'
            raise UserError(
                'config.trainable', "'head'", "'all' or 'last_K', because the pooling has no parameters", fix
            )

    def features(self, records: Sequence[TextExample | Query], tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task; if not `training`, the rows are the texts of `_texts`."""
        if not training:
            return text_features(self._prompted_texts(records), tokenizer, seq_len=self.seq_len)
        groups = [record.texts * 2 if record.form == 'texts' else record.texts for record in records]
        prompts = self.query_prompt, self.document_prompt if records[0].form in files.GROUPS else self.query_prompt
        labels = target_scores(records, self.max_score)
        return group_features(groups, labels, tokenizer, seq_len=self.seq_len, prompts=prompts)

    def _prompted_texts(self, records: Sequence[TextExample | Query]) -> list[str]:
        """Returns the texts to embed with their prompts, in the order of `_texts`."""
        texts = _texts(records)
        queries = len(records) if isinstance(records[0], Query) else len(texts)
        return [(self.query_prompt if i < queries else self.document_prompt) + text for i, text in enumerate(texts)]

    def build_module(self, model_config: BertConfig) -> BertForTask:
        """See Task.

        Raises:
          UserError: A Matryoshka width is larger than the width of the vectors.
        """
        width = self._dense[-1].width if self._dense else model_config.width
        if max(self.matryoshka_dims, default=0) > width:
            expected = f'at most {width}, the width of the vectors'
            raise UserError('config.task.matryoshka_dims', str(self.matryoshka_dims), expected, 'correct the widths')
        return self.head.module(model_config, pool=self._pool, layers=self.layers, dense=self._dense)

    def huggingface(self) -> dict[str, Any]:
        """See Task; sentence-transformers can pool several layers only if the encoder returns all hidden states."""
        return {} if self.layers == 'last' else {'output_hidden_states': True}

    def sentence_modules(self) -> SentenceModules:
        """See Task."""
        prompts = {'query': self.query_prompt, 'document': self.document_prompt}
        layers = LAYER_NUMBERS[self.layers]
        options = {'pool': self._pool, 'dense': self._dense, 'normalize': self.normalize}
        return SentenceModules(self.seq_len, prompts=prompts, layers=layers, **options)

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
        """See Task; concatenates the members' unit vectors, so a cosine is the mean of the members' cosines."""
        parts = [np.stack(outputs['embeddings']) for _, outputs in members]
        units = [x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in parts]
        return self.predictions(records, members[0][0], {'embeddings': list(np.concatenate(units, axis=-1))})


def _texts(records: Sequence[TextExample | Query]) -> list[str]:
    """Returns the texts to embed: queries and then their corpus, or the texts of examples without duplicates."""
    if isinstance(records[0], Query):
        return [query.text for query in records] + list(records[0].corpus.texts)
    return list(dict.fromkeys(text for record in records for text in record.texts))
