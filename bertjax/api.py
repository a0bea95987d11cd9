"""A trained model in Python: `bert = bertjax.load(path)`.

    bert.encode(['a text', 'another'])           features, float32 [2, width]
    bert.search('a query', texts, top_k=5), bert.similarity(texts, texts), bert.rerank('a query', texts)
    bert.fill('a [MASK] text'), bert.score('a text'), bert.next_sentence('a text', 'another'), bert.extend('a text')
    bert.classify('a text'), bert.answer(question, text), bert.tag('some words'), bert.choose(text, endings)
    bert.attention('a text')                     pieces, and attention weights, float32 [layers, heads, pieces, pieces]
    bert.save(path, format='hf')                 files for transformers, Orbax, google-research/bert, StableHLO or ONNX
    bert.apply(bert.params, bert.batch(texts))   a pure function, for jax.grad and custom training loops

Most methods take one text or a list of texts, and return one result or a list. Texts of similar length share a batch.
Each batch uses all devices, and each batch shape is compiled once. A progress bar appears after two seconds.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.config.inference import TextKeys
from bertjax.config.ranges import format_value
from bertjax.config.schema import keys_of
from bertjax.convert.hub import pull
from bertjax.convert.trees import flat_paths
from bertjax.data.features import INPUTS, Features
from bertjax.data.length_buckets import find_buckets
from bertjax.errors import UserError
from bertjax.files.disk import explain_os_error
from bertjax.inference.arguments import Texts, as_pair_lists, as_text_list, check_count, check_value
from bertjax.inference.encode import build_sequences
from bertjax.inference.masked_methods import MaskedMethods
from bertjax.inference.runner import Runner
from bertjax.inference.search_methods import SearchMethods
from bertjax.inference.task_methods import TaskMethods, choice_records, text_records
from bertjax.inference.vector_files import load_vectors
from bertjax.loading.load_model import LoadedModel, load_model
from bertjax.loading.save_model import save_model
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.model.row_packing import BatchLayout
from bertjax.parallel.partition import replicated
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.exported import with_seq_len
from bertjax.tasks.reranking.task import RerankTask
from bertjax.tasks.sentence.task import TextTask
from bertjax.tasks.task import Task
from bertjax.terminal import filter_log
from bertjax.text.tokenizer import Tokenizer

__all__ = ['Bert', 'load', 'load_vectors']


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
      path: A bertjax workdir, finished or not; a directory in the format of Hugging Face, google-research/bert or our
        Orbax export; or a model on the hub, 'org/name'.
      step: The step of a checkpoint in a workdir. 0 loads the export. If there is no export, 0 loads the newest
        checkpoint, or the best one if the run has config.use_checkpoint='best'.
      dtype: The dtype of computation: 'float32', or 'bfloat16', which is several times faster on TPUs and GPUs.
      dropout: The rate of dropout and of attention dropout in `apply` with `rngs`. None keeps the model's own rates.
      batch_size: The maximum batch size.
      max_length: The length in tokens to which texts are truncated. For the methods of a task, 0 means the sequence
        length of the fine-tuning. For other methods, 0 means the limit of a sentence-transformers model, or else the
        model's number of positions.

    Raises:
      UserError: The model does not exist or is not supported, or an argument is invalid.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        fix = "for example bertjax.load('out/tiny')"
        raise UserError('path', format_value(path), 'a path, or a name on the hub', fix)
    arguments = {'step': step, 'dtype': dtype, 'batch_size': batch_size, 'max_length': max_length}
    keys, fix = keys_of(TextKeys), 'leave it out for the default'
    step, dtype, batch_size, max_length = (
        check_value(name, x, keys[name].allowed, fix) for name, x in arguments.items()
    )
    if dropout is not None:
        dropout = check_value('dropout', dropout, keys_of(BertConfig)['dropout'].allowed, fix)
    pull.cache_clear()  # the model may have a new revision on the hub
    try:
        with filter_log():
            model = load_model(path, step=step, dtype=dtype)
    except UserError as error:
        if error.where != 'config.step':
            raise
        raise UserError('step', error.found, error.expected, error.fix) from None
    except OSError as error:
        raise explain_os_error(error, os.fspath(path)) or error from None
    if dropout is not None:
        config = dataclasses.replace(model.config, dropout=dropout, attention_dropout=dropout)
        model = dataclasses.replace(model, module=model.module.clone(config=config))
    return Bert(model, batch_size=batch_size, max_length=max_length)


class Bert(SearchMethods, MaskedMethods, TaskMethods):
    """A trained model, made by `load`.

    Attributes:
      tokenizer: The tokenizer of the model.
      task: The task that the model was fine-tuned on, with its `labels`; None for a model that was only pre-trained.
      missing: The paths of parameters that the model's files lack. They were initialized at random.
      apply: The model as a pure function (params, batch, rngs=None) -> {output name: array}. `batch` is a dict of
        arrays from the method `batch`; in your own arrays, padding must follow the tokens of a row. Dropout is active
        only with rngs={'dropout': key}. A model that was only pre-trained returns `hidden` [B, S, D] for B sequences of
        length S. A model with a pair head also returns `pooled` [B, D] and `nsp_logits` [B, 2] (index 0: the second
        text follows). If the batch has `masked_positions` [B, P], the model also returns `mlm_logits` [B, P, V]. A
        pre-trained model also reads the arrays of packed and causal rows (data/batch.py); for packed rows of up to E
        sequences, `pooled` is [B, E, D] and `nsp_logits` [B, E, 2]. A model for a task returns the outputs of its head:
        for example `logits`, the pair `start_logits` and `end_logits`, or `embeddings`, which are not normalized.
    """

    def __init__(self, model: LoadedModel, *, batch_size: int = 64, max_length: int = 0):
        self._init_arguments = {'batch_size': batch_size, 'max_length': max_length}
        runner = Runner(model, **self._init_arguments)
        if max_length and model.task is not None:
            model = dataclasses.replace(model, task=with_seq_len(model.task, max_length))
        self._model, self._runner = model, runner.with_model(model)
        self.tokenizer: Tokenizer = model.tokenizer
        self.task: Task | None = model.task
        self.missing = model.missing
        self.apply = make_apply(model.module)

    @property
    def config(self) -> BertConfig:
        """The configuration of the encoder."""
        return self._model.config

    @property
    def params(self) -> Any:
        """The parameters for `apply`: a pytree of arrays on the devices."""
        return self._model.params

    def with_params(self, params: Any) -> 'Bert':
        """Returns a copy of the model with other parameters, for example from a custom training loop.

        The parameters are placed on all devices of the model. The attribute `missing` of the copy lists the missing
        parameters that `params` leaves unchanged. A head with any of these counts as untrained. The copy shares the
        compiled functions of this model.

        Raises:
          UserError: `params` has other paths or shapes than this model's parameters, or a leaf that is not an array of
            floats.
        """
        params = _match_params(params, self.params)
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        old, new = flat_paths(self.params), flat_paths(params)
        # Weight decay changes the weights of an untrained head, but only training changes biases of 0.
        other.missing = tuple(path for path in self.missing if np.array_equal(old[path], new[path]))
        other._model = dataclasses.replace(
            self._model,
            params=jax.device_put(params, replicated(self._model.mesh)),
            missing=other.missing,
            origin=self._model.origin.with_changed_params(),
        )
        other._runner = self._runner.with_model(other._model)
        return other

    def save(self, path: str | os.PathLike, *, format: str = 'hf') -> None:
        """Writes the model, its tokenizer, and its task with the labels to a new folder, atomically.

        Modules with `missing` parameters are not written.

        Args:
          path: The path of a local folder that does not exist or is empty.
          format: 'hf', 'orbax', 'google', 'stablehlo' or 'onnx'. `load` reads back the first three bit for bit, and
            does not read the last two.

        Raises:
          UserError: The path is in use, or the format cannot represent the model.
        """
        with filter_log():
            save_model(self._model, path, format)

    def batch(self, texts: Texts, pairs: Texts | Sequence[Sequence[str]] | None = None) -> dict[str, np.ndarray]:
        """Converts texts or text pairs to arrays for `apply`.

        The rows of a model that classifies or reranks texts are those of `classify` or `rerank`, so longer texts are
        truncated as there. The rows of taggers and models like SQuAD's are not those of `tag` and `answer`.

        Args:
          texts: One text or several. Texts for a relation model have the marks << a >> and [[ b ]].
          pairs: The second text of each pair. For a multiple-choice model, the endings of each text.

        Returns:
          A dict of `input_ids`, `segment_ids` and `attention_mask`, int32 [B, S], for `[CLS] A [SEP]` or
          `[CLS] A [SEP] B [SEP]`. For a multiple-choice model the shape is [B, C, S], where C is the largest number of
          endings. S is the smallest padded length that fits all texts. There are only a few padded lengths, so a jitted
          function is compiled only a few times.

        Raises:
          UserError: There are no texts, a multiple-choice model gets no endings, a classification model gets pairs but
            was trained on single texts, or the reverse, a text has several windows, or the model needs further inputs.
        """
        if not as_text_list(texts):
            raise UserError('texts', 'no texts', 'at least one text', 'pass a text')
        if self.task is not None and (further := [name for name in self.task.objective.inputs if name not in INPUTS]):
            found = f'a model that also reads {", ".join(further)}'
            expected = f'a model that reads only {", ".join(INPUTS)}'
            raise UserError(self._model.where, found, expected, 'train it with its recipe, or give another model')
        if isinstance(self.task, MultipleChoiceTask):
            features = self._choices(self.task, texts, pairs)
        elif isinstance(self.task, TextTask):
            records = text_records(self._model, texts, pairs)
            features = self.task.features(records, self.tokenizer, training=False)
            if len(features) > len(records):  # each row of the batch stands for one text
                windows = np.bincount(features.record)
                i, expected = windows.argmax(), f'a text that fits into one window of {self.task.seq_len} tokens'
                raise UserError(f'texts[{i}]', f'a text of {windows[i]} windows', expected, 'split it, or use classify')
        else:
            limit = self.task.seq_len if isinstance(self.task, RerankTask) else self._runner.max_length
            features = build_sequences(self.tokenizer, *as_pair_lists(texts, pairs), limit)
        longest = features.lengths.max(keepdims=True)
        length = self._runner.lengths[int(find_buckets(longest, self._runner.lengths)[0])]
        batch = features.batch(np.arange(len(features)), length, self.tokenizer.pad_id)
        return {name: batch[name] for name in INPUTS}

    def _choices(self, task: MultipleChoiceTask, texts: Texts, endings: Any) -> Features:
        if endings is None:
            fix = 'call bert.batch(text, [ending, …])'
            raise UserError('pairs', f'none for a model of {task.name}', 'the endings of each text', fix)
        endings = [endings] if isinstance(texts, str) else endings
        check_count('pairs', endings, as_text_list(texts))
        records = choice_records(self._model, as_text_list(texts), endings)
        return task.features(records, self.tokenizer, training=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Supports pickle and copy.

        A pickle stores the parameters as NumPy arrays, and no compiled functions. Unpickling puts the parameters on the
        devices of the new process.
        """
        return functools.partial(type(self), **self._init_arguments), (self._model,)

    def __repr__(self) -> str:
        return self._model.describe()


def _match_params(params: Any, like: Any) -> Any:
    """Returns the leaves of `params` as a tree like `like`. Raises a UserError for the first path that differs."""
    name = functools.partial(jax.tree_util.keystr, simple=True, separator='/')
    new, old = ({name(path): x for path, x in jax.tree.flatten_with_path(tree)[0]} for tree in (params, like))

    def describe(leaves: dict[str, Any], path: str) -> str:
        if path not in leaves:
            return 'nothing'
        x = leaves[path]
        if not isinstance(x, np.ndarray | jax.Array):
            return f'a {type(x).__name__}'
        return f'{"float" if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype} {list(x.shape)}'

    for path in {**old, **new}:
        found, expected = describe(new, path), describe(old, path)
        if found != expected:
            raise UserError(f'params, {path}', found, expected, 'pass a tree with the structure of bert.params')
    return jax.tree.unflatten(jax.tree.structure(like), [new[path] for path in old])


def make_apply(module: nn.Module) -> Callable[..., dict[str, jax.Array]]:
    """Makes the function (params, batch, rngs=None) -> {output name: array}; see `Bert.apply`."""
    is_task_model = not isinstance(module, BertForPreTraining)

    def apply(
        params: Any, batch: Mapping[str, jax.Array], rngs: Mapping[str, jax.Array] | None = None
    ) -> dict[str, jax.Array]:
        inputs = [batch[name] for name in INPUTS]
        variables = {'params': params}
        dropout = Dropout.from_key(rngs['dropout'], len(inputs[0])) if rngs else None
        if is_task_model:
            if unread := {'sequence_ids', 'causal'} & batch.keys():
                raise ValueError(f'a model for a task does not read {sorted(unread)}')
            return module.apply(variables, *inputs, dropout=dropout)
        return module.apply(variables, inputs, batch, dropout, method=_pretraining_outputs)

    return apply


def _pretraining_outputs(
    bert: BertForPreTraining, inputs: list[jax.Array], batch: Mapping[str, jax.Array], dropout: Dropout | None
) -> dict[str, jax.Array]:
    layout, causal = None, batch.get('causal')
    if 'sequence_ids' in batch:
        layout = BatchLayout(batch['sequence_ids'], batch['position_ids'], batch['cls_positions'])
    hidden, _ = bert.encoder(*inputs, dropout=dropout, layout=layout, causal=causal)  # [B, S, D]
    outputs = {'hidden': hidden}
    if bert.config.nsp:
        outputs['pooled'] = bert.pool(hidden, layout)
        outputs['nsp_logits'] = bert.nsp(outputs['pooled'])
    if 'masked_positions' in batch:
        logits = bert.predict_tokens(hidden, batch['masked_positions'], causal)
        outputs['mlm_logits'] = logits[..., : bert.config.vocab_size]
    return outputs
