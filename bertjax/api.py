"""A trained model in Python: `bert = bertjax.load(path)`.

    bert.encode(['a text', 'another'])           features, float32 [2, D]
    bert.fill('a [MASK] text'), bert.score('a text'), bert.next_sentence('a text', 'another'), bert.extend('a text')
    bert.classify('a text'), bert.answer(question, text), bert.tag('some words'), bert.choose(text, endings)
    bert.attention('a text')                     of every head: pieces, float32 [L, H, S, S]
    bert.apply(bert.params, bert.batch(texts))   a pure function, for jax.grad and loops of one's own

Every method takes one text or a list of them and answers with one result or a list. Long inputs are computed in batches
of similar length, each shape is compiled once, on all devices; a bar shows how far it is.
"""

import copy
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.data.buckets import pad_to
from bertjax.data.features import INPUTS
from bertjax.errors import UserError
from bertjax.experiment.loaded import LoadedModel, load_model
from bertjax.inference.apply import make_apply
from bertjax.inference.attention import Attention, attention
from bertjax.inference.description import description
from bertjax.inference.encode import Encoding, encode, sequences, spans
from bertjax.inference.fill import MaskedText, extend, fill_each, fill_jointly
from bertjax.inference.masked import follow_probabilities
from bertjax.inference.runner import Runner
from bertjax.inference.score import score_texts
from bertjax.inference.tasks import (
    answer_records,
    choice_records,
    question_records,
    sentence_records,
    tag_records,
    text_records,
)
from bertjax.model.config import BertConfig
from bertjax.tasks.exported import with_length
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer

Texts = str | Sequence[str]


def load(
    path: str | os.PathLike,
    *,
    step: int = 0,
    dtype: str = 'float32',
    dropout: float | None = None,
    batch_size: int = 64,
    max_length: int = 0,
) -> 'Bert':
    """Loads a trained model.

    Args:
      path: a workdir of bertjax, finished or not; a directory of Hugging Face, of google-research/bert or of our Orbax
        export; or org/name on the hub.
      step: of a workdir: which checkpoint; 0 for what was exported, else the newest.
      dtype: of computation: 'float32', or 'bfloat16', which TPUs and GPUs compute several times faster.
      dropout: what `apply` drops when it has `rngs`; None for what the model was trained with.
      batch_size: texts at a time.
      max_length: longer texts are cut to so many tokens; 0 for as many as the model has positions, and for the answers
        of a tuned model as many as it was tuned with.

    Raises:
      UserError: nothing there, or nothing that is a model of this kind: one line that says what to do.
    """
    model = load_model(path, step=step, dtype=dtype)
    if dropout is not None:
        config = dataclasses.replace(model.config, dropout=dropout, attention_dropout=dropout)
        model = dataclasses.replace(model, module=model.module.clone(config=config))
    return Bert(model, batch_size=batch_size, max_length=max_length)


class Bert:
    """A trained model; `load` makes it.

    Attributes:
      tokenizer: of the model.
      task: that it was tuned to, with its `labels`; None for a model that was only pre-trained.
      missing: paths of parameters that its files lacked, and that were drawn at random.
      apply: the model as a pure function (params, batch, rngs=None) -> outputs by name. `batch` is a dict of arrays as
        `batch` makes it. Without `rngs` there is no dropout; with rngs={'dropout': key} there is. Outputs of a model
        that was only pre-trained: `hidden` [B, S, D]; `pooled` [B, D] and `nsp_logits` [B, 2] where it has a pair head
        (class 0: B follows A); and, where the batch has `masked_positions` [B, P], `mlm_logits` [B, P, V]. Of a model
        for a task: those of its head (model/heads.py), `logits`, `token_logits`, or `start_logits` and `end_logits`.
    """

    def __init__(self, model: LoadedModel, *, batch_size: int = 64, max_length: int = 0):
        longest = model.config.max_positions
        if batch_size < 1:
            raise UserError('batch_size', str(batch_size), 'at least 1', 'for example 64')
        if not (max_length == 0 or 4 <= max_length <= longest):
            mend = 'leave it out for the longest'
            raise UserError('max_length', str(max_length), f'4 to {longest}, the positions of the model', mend)
        if max_length and model.task is not None:
            model = dataclasses.replace(model, task=with_length(model.task, max_length))
        self._model, self._max_length = model, max_length or longest
        self._runner = Runner(model, batch_size=batch_size)
        self.tokenizer: Tokenizer = model.tokenizer
        self.task: Task | None = model.task
        self.missing = model.missing
        self.apply = make_apply(model.module)

    @property
    def config(self) -> BertConfig:
        """Sizes of the encoder."""
        return self._model.config

    @property
    def params(self) -> Any:
        """The parameters: a tree of arrays on the devices, as `apply` takes it."""
        return self._model.params

    def with_params(self, params: Any) -> 'Bert':
        """The same model with other parameters, such as a training loop of one's own leaves: none is `missing`, and
        nothing is compiled anew.

        Raises:
          ValueError: parameters of another model.
        """
        shapes = [jax.tree.map(jnp.shape, tree) for tree in (params, self.params)]
        if shapes[0] != shapes[1]:
            raise ValueError('parameters of other names or shapes than those of this model')
        other = copy.copy(self)
        other._model, other.missing = dataclasses.replace(self._model, params=params, missing=()), ()
        other._runner = self._runner.with_model(other._model)
        return other

    def batch(self, texts: Texts, pairs: Texts | None = None) -> dict[str, np.ndarray]:
        """Texts, or pairs of them, as arrays for `apply`.

        Args:
          texts: one or several.
          pairs: their second texts.

        Returns:
          input_ids, segment_ids and attention_mask, int32 [B, S]: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]`; S is the
          shortest of a few padded lengths that holds all of them, so that a jitted function is compiled a few times.

        Raises:
          UserError: no text.
        """
        if not len(_several(texts)):
            raise UserError('texts', 'none', 'at least one', 'give a batch some rows')
        features = self._features(texts, pairs)
        longest = int(features.lengths.max())
        length = self._runner.lengths[int(pad_to(np.array([longest]), self._runner.lengths)[0])]
        batch = features.batch(np.arange(len(features)), length, self.tokenizer.pad_id)
        return {name: batch[name] for name in INPUTS}

    def encode(
        self,
        texts: Texts,
        pairs: Texts | None = None,
        *,
        layers: int | Sequence[int] = -1,
        pool: str | None = 'mean',
        combine: str = 'mean',
        weights: Sequence[float] = (),
        normalize: bool = False,
    ) -> np.ndarray | list[np.ndarray]:
        """Features of texts.

        Args:
          texts: one or several.
          pairs: their second texts, read together with them.
          layers: one or several numbers of hidden states: 0 the embeddings, 1 to L the blocks, -1 the last.
          pool: 'mean' over all tokens, 'cls', 'pooler' (tanh of a projection of [CLS]), or None: one vector a token.
          combine: of several layers: 'mean', 'sum', 'concat', or 'weighted' by `weights`.
          weights: one a layer.
          normalize: to length 1.

        Returns:
          float32 [D] of one text, [N, D] of several; without pooling [S, D] of one, of several a list of such arrays,
          S the tokens with [CLS] and [SEP] (`pieces` names them, `spans` says where they stand).

        Raises:
          UserError: a layer or a pooler that the model does not have.
        """
        chosen = (layers,) if isinstance(layers, int) else tuple(layers)
        encoding = Encoding(chosen, combine, tuple(weights), pool or 'none', normalize)
        rows = encode(self._runner, self._features(texts, pairs), encoding) if len(_several(texts)) else []
        if isinstance(texts, str):
            return rows[0]
        if pool is None:
            return rows
        return np.stack(rows) if rows else np.zeros((0, encoding.width(self.config)), np.float32)

    def pieces(self, texts: Texts, pairs: Texts | None = None) -> list[Any]:
        """The pieces that the model reads, special tokens among them: a list a text."""
        if not len(_several(texts)):
            return []
        features = self._features(texts, pairs)
        ids = np.split(features.tokens, features.offsets[1:-1])
        return _like(texts, [[self.tokenizer.pieces[i] for i in row] for row in ids])

    def spans(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Where each of the `pieces` stands in its text: for each text int32 [S, 2], the first character and the one
        behind the last; -1 of [CLS] and [SEP]. Those of a second text count in that."""
        if not len(_several(texts)):
            return []
        features = self._features(texts, pairs)
        places = spans(self.tokenizer, features, _several(texts), None if pairs is None else _several(pairs))
        return _like(texts, np.split(np.stack(places, axis=1), features.offsets[1:-1]))

    def fill(self, texts: Texts, *, top_k: int = 5, jointly: bool = False) -> Any:
        """What the model would write for masks, [MASK] or <mask>, in texts.

        Args:
          texts: one or several, each with at least one mask.
          top_k: fillings a mask.
          jointly: fill all masks of a text together, the one that the model is most sure of first, then look again.

        Returns:
          For each text a list of `{'token': …, 'probability': …, 'text': …}`, the most probable first; where it has
          several masks a list of such lists. Jointly `{'text': …, 'tokens': …, 'order': …, 'log_probability': …}`, see
          `inference.fill.fill_jointly`.

        Raises:
          UserError: a text without mask, or a model without a head for them.
        """
        self._model.require('mlm', 'filling')
        where = [f'texts[{i}]' for i in range(len(_several(texts)))]
        places = zip(_several(texts), where, strict=True)
        masked = [MaskedText(text, place, self.tokenizer, self._max_length) for text, place in places]
        if jointly:
            return _like(texts, fill_jointly(self._runner, masked))
        found = fill_each(self._runner, masked, top_k)
        return _like(texts, [masks[0] if len(masks) == 1 else masks for masks in found])

    def score(self, texts: Texts) -> Any:
        """Pseudo-log-likelihoods of texts: each piece masked in turn (Salazar et al. 2020, arXiv 1910.14659).

        Returns:
          For each `{'log_likelihood': …, 'tokens': …, 'words': …, 'perplexity': …}`, in nats, over the pieces without
          [CLS] and [SEP]; the perplexity is exp(-log_likelihood / tokens), None of a text without pieces.

        Raises:
          UserError: a model without a head for masked words.
        """
        self._model.require('mlm', 'scoring')
        return _like(texts, score_texts(self._runner, _several(texts), self._max_length))

    def next_sentence(self, first: Texts, second: Texts) -> Any:
        """The probability that a text follows another; of a model trained on their order, that they are in order.

        Returns:
          A number, of several pairs float64 [N].

        Raises:
          UserError: a model without a head for sentence pairs.
        """
        self._model.require('nsp', 'next_sentence')
        _check_count('second', _several(second), _several(first))
        if not len(_several(first)):
            return np.zeros(0)
        found = follow_probabilities(self._runner, _several(first), _several(second), self._max_length)
        return float(found[0]) if isinstance(first, str) else found

    def extend(
        self, texts: Texts, *, tokens: int = 20, temperature: float = 1.0, top_k: int = 50, seed: int = 0
    ) -> str | list[str]:
        """Texts continued by masks that are appended and filled from left to right: slow, and as weak as can be
        expected of a model that was never trained for it.

        Args:
          texts: one or several.
          tokens: pieces to append.
          temperature: of what is drawn from; 0 for always the most probable piece.
          top_k: drawn among so many.
          seed: the same seed continues the same text in the same way.

        Returns:
          For each the text with its continuation.

        Raises:
          UserError: more tokens than the model has positions, or one without a head for masked words.
        """
        self._model.require('mlm', 'continuing')
        chosen = {'tokens': tokens, 'temperature': temperature, 'top_k': top_k, 'seed': seed}
        return _like(texts, extend(self._runner, _several(texts), **chosen, max_length=self._max_length))

    def attention(self, texts: Texts, pairs: Texts | None = None) -> Attention | list[Attention]:
        """What each head of each layer attends to.

        Args:
          texts: one or several.
          pairs: their second texts, read together with them.

        Returns:
          For each `pieces`, S of them with [CLS] and [SEP], and `weights`, float32 [L, H, S, S]: the share that each
          position (the first S) has of each other, which add up to 1. With dtype='bfloat16' they are computed from
          rounded queries and keys.
        """
        found = attention(self._runner, self._features(texts, pairs)) if len(_several(texts)) else []
        return _like(texts, found)

    def classify(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Labels (or scores) of texts, or of pairs.

        Returns:
          For each `{'label': …, 'probabilities': {label: …}}`, or `{'score': …}` of a regression.

        Raises:
          UserError: a model that was not tuned to such a task.
        """
        seconds = None if pairs is None else _several(pairs)
        _check_count('pairs', seconds, _several(texts))
        return self._answers(texts, text_records(self.task, self._model.where, _several(texts), seconds))

    def answer(self, question: Texts, context: Texts) -> Any:
        """Answers to questions, each in the context beside it.

        Returns:
          For each `{'answer': …, 'start': …, 'end': …, 'probability': …}`, characters of the context.

        Raises:
          UserError: a model that was not tuned to SQuAD or the like.
        """
        _check_count('context', _several(context), _several(question))
        records = question_records(self.task, self._model.where, _several(question), _several(context))
        return self._answers(question, records)

    def tag(self, sentences: str | Sequence[str | Sequence[str]]) -> Any:
        """Tags of words; a sentence is a text to be split at blanks, or a list of words.

        Returns:
          For each `{'words': …, 'tags': …, 'entities': …}`.

        Raises:
          UserError: a model that was not tuned to tag.
        """
        records = sentence_records(self.task, self._model.where, _several(sentences))
        return _like(sentences, tag_records(self._runner, records))

    def choose(self, context: Texts, endings: Sequence[str] | Sequence[Sequence[str]]) -> Any:
        """The best ending of each context.

        Returns:
          For each `{'prediction': its number, 'ending': …, 'probabilities': of all endings, …}`.

        Raises:
          UserError: a model that was not tuned to choose, or fewer than two endings.
        """
        several = [endings] if isinstance(context, str) else endings
        _check_count('endings', several, _several(context))
        return self._answers(context, choice_records(self.task, self._model.where, _several(context), several))

    def _answers(self, asked: Any, records: Sequence[Any]) -> Any:
        return _like(asked, answer_records(self._runner, records))

    def _features(self, texts: Texts, pairs: Texts | None) -> Any:
        seconds = None if pairs is None else _several(pairs)
        _check_count('pairs', seconds, _several(texts))
        return sequences(self.tokenizer, _several(texts), seconds, self._max_length)

    def __repr__(self) -> str:
        return description(self._model)


def _check_count(name: str, beside: Sequence[Any] | None, texts: Sequence[Any]) -> None:
    if beside is not None and len(beside) != len(texts):
        raise UserError(name, f'{len(beside)} for {len(texts)}', 'as many as there are texts', 'give one for each')


def _several(texts: Any) -> Any:
    return [texts] if isinstance(texts, str) else texts


def _like(asked: Any, results: list[Any]) -> Any:
    return results[0] if isinstance(asked, str) else results
