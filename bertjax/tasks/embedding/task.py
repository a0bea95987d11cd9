"""The embedding task: training on pairs, triplets, scored pairs or single texts."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.ranges import COUNT, integer, list_of, number, one_of, text
from bertjax.convert.huggingface.dense import DenseConfig
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, read_sentence_modules
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.losses import Objective
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.model.pooling import SENTENCE_POOL
from bertjax.tasks.embedding import files
from bertjax.tasks.embedding.base import Predictions, Records, TextPairTask, distinct_texts, make_rankings
from bertjax.tasks.embedding.features import encode_texts, group_features, target_scores, text_features
from bertjax.tasks.embedding.files import Query
from bertjax.tasks.embedding.head import EMBEDDING, LAYER_NUMBERS
from bertjax.tasks.embedding.losses import LOSSES, build_objective
from bertjax.tasks.embedding.search import search
from bertjax.tasks.exported import read_exported_task
from bertjax.tasks.task import Outputs, option
from bertjax.text.tokenizer import Tokenizer


@dataclasses.dataclass
class EmbeddingTask(TextPairTask):
    """Trains a model that maps texts to vectors. The vectors of related texts get a high cosine.

    The columns of a file determine the form of its records: an anchor and a positive, with or without negatives and a
    teacher's scores; two texts with a score; or a single text. A single text is paired with itself, and the two copies
    have different dropout masks (SimCSE, arXiv 2104.08821). A dev file of pairs is evaluated as a search: each anchor
    searches all positives and negatives. A query of a BEIR folder searches the whole corpus. An answerable question of
    a SQuAD file searches all paragraphs of the file.

    Attributes:
      data: a folder with train.jsonl and dev.jsonl, with files of other usual names and formats, or with SQuAD's files;
        a file; or a BEIR folder.
      loss: the loss; 'auto' chooses 'cosent' for scored pairs, 'margin_mse' for scores of a teacher, and
        'info_nce' for other records.
      scale: the factor of the cosines in 'info_nce', 'cosent' and 'margin_mse'.
      symmetric: whether 'info_nce' also ranks the anchors for each positive.
      false_negative_margin: if > 0, 'info_nce' ignores texts whose cosine exceeds the positive's by more than this
        margin.
      matryoshka_dims: the widths at which the loss is computed, as in `(384,64)`; () for the full width.
      pool: the pooling, named as in sentence-transformers; 'auto' for the pooling of config.init if known, else 'mean'.
      layers: the layers to pool: the last, or the mean of the last four.
      query_prompt: the prefix of anchors, queries, scored pairs and single texts, exported as 'query'.
      document_prompt: the prefix of positives, negatives and documents, exported as 'document'; '' means
        `query_prompt` if the training has no anchors.
      normalize: whether the model's vectors have length 1; the losses always use cosines.
      text: the column with a single text.
    """

    loss: str = option('auto', one_of(('auto', *LOSSES)))
    scale: float = option(20.0, number(0, 1e4, above=True))
    symmetric: bool = False
    false_negative_margin: float = option(0.0, number(0, 2))
    matryoshka_dims: Sequence[int] = option((), list_of(integer(1, COUNT)))
    pool: str = option('auto', one_of(('auto', *SENTENCE_POOL)), affects='model')
    layers: str = option('last', one_of(LAYER_NUMBERS), affects='model')
    query_prompt: str = ''
    document_prompt: str = ''
    normalize: bool = option(True, affects='reading')
    text: str = option('text', text(empty=False), affects='reading')

    method, results = 'encode', 'vectors of texts'
    head = EMBEDDING
    losses = LOSSES
    adopts = True
    min_seq_len, default_name = 4, 'embeddings'

    def __post_init__(self):
        super().__post_init__()
        self.matryoshka_dims = tuple(self.matryoshka_dims)
        self._pool = 'mean' if self.pool == 'auto' else self.pool
        self._dense: tuple[DenseConfig, ...] = ()
        self._truncate_dim = 0

    @property
    def objective(self) -> Objective:
        return build_objective(self._loss, self.matryoshka_dims, **self._loss_options)

    @property
    def _document_prompt(self) -> str:
        """The prefix of documents. In training without anchors, all texts had `query_prompt`."""
        has_anchors = (self._form or 'pairs') in files.GROUPS
        return self.document_prompt or ('' if has_anchors else self.query_prompt)

    def learned_state(self) -> dict[str, Any]:
        dense = {'dense': [*self._dense]} if self._dense else {}
        truncation = {'truncate_dim': self._truncate_dim} if self._truncate_dim else {}
        return {**super().learned_state(), 'pool': self._pool, **dense, **truncation}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._pool = state['pool']
        self._dense = tuple(DenseConfig(*values) for values in state.get('dense', ()))
        self._truncate_dim = state.get('truncate_dim', 0)

    def adopt(self, source: str) -> None:
        """See Task. With pool='auto', adopts the pooling, Dense modules and `truncate_dim` of an embedding model.

        As in sentence-transformers, `truncate_dim` shortens the vectors in the evaluation, but not in the losses.
        """
        modules = read_sentence_modules(source)
        if modules is None and (exported := read_exported_task(source, 'embed')):  # an Orbax export has only task.json
            modules = exported.sentence_modules()
        if modules is None or self.pool != 'auto':
            return
        if refusal := modules.refusal:
            fix = 'name a pooling with config.task.pool'
            raise UserError(refusal.where, refusal.found, refusal.expected, fix)
        if modules.layers != LAYER_NUMBERS[self.layers] or modules.weights:
            unequal, equal = (' with weights', ' without weights') if modules.weights else ('', '')
            found = f'the layers {modules.layers}{unequal} in {source}'
            expected = f'the layers of config.task.layers={self.layers}{equal}'
            fix = 'set config.task.layers, or name a pooling with config.task.pool'
            raise UserError('config.init', found, expected, fix)
        if modules.prompt:
            fix = 'name a pooling with config.task.pool, to train the encoder without a prompt'
            raise UserError('config.init', f'a prompt in {source}', 'a pooling without a prompt', fix)
        self._pool, self._dense, self._truncate_dim = modules.pool, modules.dense, modules.truncate_dim
        if any(modules.prompts.values()) and not (self.query_prompt or self.document_prompt):
            print(f'{source} has the prompts {dict(modules.prompts)}: see config.task.query_prompt and document_prompt')

    def check_training(self, train: str) -> None:
        if train == 'head':
            expected = "'all' or 'last_K', because the vectors come from the encoder"
            raise UserError('config.trainable', "'head'", expected, 'choose a part of the encoder')

    def check_encoder(self, model_config: BertConfig) -> None:
        """See Task. Without dropout, the two copies of a single text have equal vectors."""
        if self._form == 'texts' and not (model_config.dropout or model_config.attention_dropout):
            fix = 'set --config.model.dropout=0.1'
            raise UserError('config.model.dropout', '0 with single texts', 'dropout, which SimCSE needs', fix)

    def features(self, records: Records, tokenizer: Tokenizer, *, training: bool) -> Features:
        """See Task. Without `training`, there is a row for each text of `_texts`."""
        if not training:
            queries, documents = _texts(records)
            texts = [self.query_prompt + text for text in queries]
            texts += [self._document_prompt + text for text in documents]
            return text_features(*encode_texts(texts, tokenizer, self.seq_len))
        groups = [record.texts * 2 if record.form == 'texts' else record.texts for record in records]
        prompts = self.query_prompt, self.document_prompt if records[0].form in files.GROUPS else self.query_prompt
        texts = [prompts[i > 0] + text for group in groups for i, text in enumerate(group)]
        sequences, notes = encode_texts(texts, tokenizer, self.seq_len)
        return group_features(groups, target_scores(records, self.max_score), iter(sequences), notes)

    def build_module(self, model_config: BertConfig) -> BertForTask:
        width = self._dense[-1].width if self._dense else model_config.width
        if max(self.matryoshka_dims, default=0) > width:
            expected = f'at most {width}, the width of the vectors'
            raise UserError('config.task.matryoshka_dims', str(self.matryoshka_dims), expected, 'correct the widths')
        return self.head.module(model_config, pool=self._pool, layers=self.layers, dense=self._dense)

    def huggingface(self) -> dict[str, Any]:
        """See Task. sentence-transformers can pool several layers only if the encoder returns all hidden states."""
        return {} if self.layers == 'last' else {'output_hidden_states': True}

    def sentence_modules(self) -> SentenceModules:
        return SentenceModules(
            self.seq_len,
            pool=self._pool,
            dense=self._dense,
            normalize=self.normalize,
            truncate_dim=self._truncate_dim,
            layers=LAYER_NUMBERS[self.layers],
            prompts={'query': self.query_prompt, 'document': self._document_prompt},
        )

    def predictions(self, records: Records, features: Features, outputs: Outputs) -> Predictions:
        """Returns the cosine of the first two texts of each example, or the ranking of each query."""
        del features
        return self._compare(records, self._truncate(outputs))

    def ensemble_predictions(self, records: Records, members: Sequence[tuple[Features, Outputs]]) -> Predictions:
        """See Task. The unit vectors are concatenated, so a cosine is the mean of the members' cosines."""
        units = [_scale_to_unit(self._truncate(outputs)) for _, outputs in members]
        return self._compare(records, np.concatenate(units, axis=-1))

    def _compare(self, records: Records, vectors: np.ndarray) -> Predictions:
        vectors = _scale_to_unit(vectors)
        if isinstance(records[0], Query):
            return make_rankings(records, lambda count: search(*np.split(vectors, [len(records)]), count))
        queries, documents = _texts(records)
        first_index = {text: i for i, text in enumerate(queries)}
        second_index = {text: i for i, text in enumerate(documents, len(queries))} or first_index
        first, second = zip(*((first_index[x.texts[0]], second_index[x.texts[:2][-1]]) for x in records), strict=True)
        return np.einsum('nd,nd->n', vectors[[*first]], vectors[[*second]], dtype=np.float64).tolist()

    def _truncate(self, outputs: Outputs) -> np.ndarray:
        return np.stack(outputs['embeddings'])[:, : self._truncate_dim or None]


def _scale_to_unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _texts(records: Records) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the texts to embed with `query_prompt`, and the texts to embed with `document_prompt`.

    Scored pairs and single texts use only `query_prompt`. For other records, see `distinct_texts`.
    """
    if isinstance(records[0], Query) or records[0].form in files.GROUPS:
        return distinct_texts(records)
    return list(dict.fromkeys(text for record in records for text in record.texts)), ()
