"""A trained model in Python: `bert = bertjax.load(path)`.

    bert.encode(['a text', 'another'])           features, float32 [2, D]
    bert.fill('a [MASK] text'), bert.score('a text'), bert.next_sentence('a text', 'another'), bert.extend('a text')
    bert.classify('a text'), bert.answer(question, text), bert.tag('some words'), bert.choose(text, endings)
    bert.attention('a text')                     of every head: pieces, float32 [L, H, S, S]
    bert.save(path, format='hf')                 a folder for transformers, Orbax, google-research/bert, StableHLO, ONNX
    bert.apply(bert.params, bert.batch(texts))   a pure function, for jax.grad and loops of one's own

Every method takes one text or a list of them and answers with one result or a list. Long inputs are computed in batches
of similar length, each shape is compiled once, on all devices; a bar shows how far it is.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config.ranges import format_value
from bertjax.config.schema import keys_of
from bertjax.config.using import TextKeys
from bertjax.data.features import INPUTS, Features
from bertjax.data.length_buckets import find_buckets
from bertjax.errors import UserError
from bertjax.files.disk import refused
from bertjax.inference.apply import make_apply
from bertjax.inference.arguments import Texts, check_count, check_value, check_values, like, plain, several
from bertjax.inference.attention import Attention, attention
from bertjax.inference.description import description
from bertjax.inference.encode import chosen_encoding, encode, sequences, spans
from bertjax.inference.masked_methods import MaskedMethods
from bertjax.inference.runner import Runner
from bertjax.inference.task_methods import TaskMethods
from bertjax.inference.tasks import choice_records
from bertjax.loading.load_model import LoadedModel, load_model
from bertjax.loading.save_model import save_model
from bertjax.model.config import BertConfig
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.exported import with_length
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import Tokenizer


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
      max_length: longer texts are cut to so many tokens; 0 for as many as the model has positions (or its folder of
        sentence-transformers says), and for the answers of a tuned model as many as it was tuned with.

    Raises:
      UserError: nothing there, or nothing that is a model of this kind: one line that says what to do.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise UserError(
            'path', format_value(path), 'a path, or a name on the hub', "for example bertjax.load('out/tiny')"
        )
    given = {'step': step, 'dtype': dtype, 'batch_size': batch_size, 'max_length': max_length}
    keys, usual = keys_of(TextKeys), 'leave it out for the usual'
    step, dtype, batch_size, max_length = (check_value(name, x, keys[name].allowed, usual) for name, x in given.items())
    if dropout is not None:
        dropout = check_value('dropout', dropout, keys_of(BertConfig)['dropout'].allowed, usual)
    try:
        model = load_model(path, step=step, dtype=dtype)
    except OSError as error:
        raise refused(error, os.fspath(path)) or error from None
    if dropout is not None:
        config = dataclasses.replace(model.config, dropout=dropout, attention_dropout=dropout)
        model = dataclasses.replace(model, module=model.module.clone(config=config))
    return Bert(model, batch_size=batch_size, max_length=max_length)


class Bert(MaskedMethods, TaskMethods):
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
        if not (max_length == 0 or 4 <= max_length <= longest):
            fix = 'leave it out for the longest'
            raise UserError('max_length', str(max_length), f'4 to {longest}, the positions of the model', fix)
        if max_length and model.task is not None:
            model = dataclasses.replace(model, task=with_length(model.task, max_length))
        self._model, self._max_length = model, max_length or model.max_length
        self._made_with = {'batch_size': batch_size, 'max_length': max_length}
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
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        origin = self._model.origin.of_other_parameters()
        other._model, other.missing = dataclasses.replace(self._model, params=params, missing=(), origin=origin), ()
        other._runner = self._runner.with_model(other._model)
        return other

    def save(self, path: str | os.PathLike, *, format: str = 'hf') -> None:
        """Writes the model with its tokenizer, and what its task learned, to a new folder, which appears whole or not
        at all. Parameters that are `missing` are left out.

        Args:
          path: of the folder, on this machine; it must not be there yet, or be empty.
          format: 'hf', 'orbax' or 'google', which `load` reads again, to the bit; 'stablehlo' or 'onnx'.

        Raises:
          UserError: something is there, or the format cannot hold the model.
        """
        save_model(self._model, path, format)

    def batch(self, texts: Texts, pairs: Texts | Sequence[Sequence[str]] | None = None) -> dict[str, np.ndarray]:
        """Texts, or pairs of them, as arrays for `apply`.

        Args:
          texts: one or several.
          pairs: their second texts; of a model that chooses, the endings of each.

        Returns:
          input_ids, segment_ids and attention_mask, int32 [B, S]: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]`; of a
          model that chooses [B, C, S], C the most endings of any text. S is the shortest of a few padded lengths that
          holds all of them, so that a jitted function is compiled a few times.

        Raises:
          UserError: no text, or a model that chooses and no endings.
        """
        if not several(texts):
            raise UserError('texts', 'none', 'at least one', 'give a batch some rows')
        if isinstance(self.task, MultipleChoiceTask):
            features = self._choices(self.task, texts, pairs)
        else:
            features = self._features(texts, pairs)
        longest = int(features.lengths.max())
        length = self._runner.lengths[int(find_buckets(np.array([longest]), self._runner.lengths)[0])]
        batch = features.batch(np.arange(len(features)), length, self.tokenizer.pad_id)
        return {name: batch[name] for name in INPUTS}

    @overload
    def encode(
        self,
        texts: str,
        pairs: str | None = ...,
        *,
        layers: int | Sequence[int] = ...,
        pool: str | None = ...,
        combine: str = ...,
        weights: Sequence[float] = ...,
        normalize: bool | None = ...,
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = ...,
        *,
        layers: int | Sequence[int] = ...,
        pool: str = ...,
        combine: str = ...,
        weights: Sequence[float] = ...,
        normalize: bool | None = ...,
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = ...,
        *,
        layers: int | Sequence[int] = ...,
        pool: None,
        combine: str = ...,
        weights: Sequence[float] = ...,
        normalize: bool | None = ...,
    ) -> list[np.ndarray]: ...

    def encode(
        self,
        texts: Texts,
        pairs: Texts | None = None,
        *,
        layers: int | Sequence[int] = -1,
        pool: str | None = 'auto',
        combine: str = 'mean',
        weights: Sequence[float] = (),
        normalize: bool | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Features of texts.

        Args:
          texts: one or several.
          pairs: their second texts, read together with them.
          layers: one or several numbers of hidden states: 0 the embeddings, 1 to L the blocks, -1 the last.
          pool: 'mean' over all tokens, 'cls', 'max', 'mean_sqrt_len_tokens', 'weightedmean', 'lasttoken', 'pooler'
            (tanh of a projection of [CLS]), or None: one vector a token. 'auto': what
            `SentenceTransformer(path).encode` computes, where the path is a folder of sentence-transformers, with its
            prompt, Dense layers and normalization; else 'mean'.
          combine: of several layers: 'mean', 'sum', 'concat', or 'weighted' by `weights`.
          weights: one a layer.
          normalize: to length 1; None: where 'auto' finds that in the folder.

        Returns:
          float32 [D] of one text, [N, D] of several; without pooling [S, D] of one, of several a list of such arrays,
          S the tokens with [CLS] and [SEP] (`pieces` names them, `spans` says where they stand).

        Raises:
          UserError: a layer or a pooler that the model does not have.
        """
        layers = plain(layers)
        asked = {'layers': layers if isinstance(layers, tuple) else (layers,), 'combine': combine, 'weights': weights}
        asked |= {'pool': 'none' if pool is None else pool, 'normalize': normalize}
        values = check_values('extract', **{name: (name, value) for name, value in asked.items()})
        encoding, firsts = chosen_encoding(self._model, **values), several(texts)
        rows = encode(self._runner, self._features(encoding.prompted(firsts), pairs), encoding) if firsts else []
        if isinstance(texts, str):
            return rows[0]
        if encoding.pool == 'none':
            return rows
        return np.stack(rows) if rows else np.zeros((0, encoding.width(self.config)), np.float32)

    @overload
    def pieces(self, texts: str, pairs: str | None = ...) -> list[str]: ...

    @overload
    def pieces(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[list[str]]: ...

    def pieces(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """The pieces that the model reads, special tokens among them: a list a text."""
        if not several(texts):
            return []
        features = self._features(texts, pairs)
        ids = np.split(features.tokens, features.offsets[1:-1])
        return like(texts, [[self.tokenizer.pieces[i] for i in row] for row in ids])

    @overload
    def spans(self, texts: str, pairs: str | None = ...) -> np.ndarray: ...

    @overload
    def spans(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[np.ndarray]: ...

    def spans(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """Where each of the `pieces` stands in its text: for each text int32 [S, 2], the first character and the one
        behind the last; -1 of [CLS] and [SEP]. Those of a second text count in that."""
        if not several(texts):
            return []
        features = self._features(texts, pairs)
        places = spans(self.tokenizer, features, several(texts), None if pairs is None else several(pairs, 'pairs'))
        return like(texts, np.split(np.stack(places, axis=1), features.offsets[1:-1]))

    @overload
    def attention(self, texts: str, pairs: str | None = ...) -> Attention: ...

    @overload
    def attention(self, texts: Sequence[str], pairs: Sequence[str] | None = ...) -> list[Attention]: ...

    def attention(self, texts: Texts, pairs: Texts | None = None) -> Any:
        """What each head of each layer attends to.

        Args:
          texts: one or several.
          pairs: their second texts, read together with them.

        Returns:
          For each `pieces`, S of them with [CLS] and [SEP], and `weights`, float32 [L, H, S, S]: the share that each
          position (the first S) has of each other, which add up to 1. With dtype='bfloat16' they are computed from
          rounded queries and keys.
        """
        found = attention(self._runner, self._features(texts, pairs)) if several(texts) else []
        return like(texts, found)

    def _features(self, texts: Texts, pairs: Texts | None) -> Features:
        firsts, seconds = several(texts), None if pairs is None else several(pairs, 'pairs')
        check_count('pairs', seconds, firsts)
        return sequences(self.tokenizer, firsts, seconds, self._max_length)

    def _choices(self, task: MultipleChoiceTask, texts: Texts, endings: Any) -> Features:
        if endings is None:
            found = f'none for a model of {task.name}'
            raise UserError('pairs', found, 'the endings of each text', 'bert.batch(text, [ending, …])')
        each = [endings] if isinstance(texts, str) else endings
        check_count('pairs', each, several(texts))
        records = choice_records(task, self._model.where, several(texts), each)
        return task.features(records, self.tokenizer, training=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and copy: the parameters as numpy's arrays. Whoever unpickles it has them on devices of its own,
        and compiles anew."""
        return functools.partial(type(self), **self._made_with), (self._model,)

    def __repr__(self) -> str:
        return description(self._model)
