"""A model as pure functions of three arrays, in the form in which other programs get it: StableHLO and ONNX."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

import jax
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from bertjax.model.bert import BertForPreTraining
from bertjax.model.heads import TaskModel

Function = Callable[..., dict[str, jax.Array]]


def functions_of(
    model: BertForPreTraining | TaskModel, parts: Collection[str] = ('mlm', 'pooler', 'nsp')
) -> dict[str, Function]:
    """{name: (weights by path, three int32 arrays) -> outputs by name}: `encoder` and `mlm`, or `task`.

    Args:
      model: with its config.
      parts: beside the encoder, that a pre-trained model has weights of; outputs of other parts are left out, and
        without 'mlm' that function.
    """

    # What is exported runs on any platform, with sizes that are not known yet.
    model = model.clone(config=dataclasses.replace(model.config, attention='dot_product'))

    def function(method: Function | None) -> Function:
        def call(weights: Mapping[str, jax.Array], *inputs: jax.Array) -> dict[str, jax.Array]:
            tree = unflatten_dict({tuple(path.split('/')): x for path, x in weights.items()})
            with nn.logical_axis_rules(()):  # nothing is split
                return model.apply({'params': tree}, *inputs, method=method)

        return call

    if isinstance(model, BertForPreTraining):
        pooled = model.config.nsp and 'pooler' in parts
        found = {'encoder': function(functools.partial(_encoder, pooled=pooled))}
        if 'mlm' in parts:
            found['mlm'] = function(functools.partial(_mlm, pairs=pooled and 'nsp' in parts))
        return found
    return {'task': function(None)}


def dimensions(model: BertForPreTraining | TaskModel) -> str:
    """Names of the sizes of its inputs: 'b, s', of a model that chooses 'b, c, s'."""
    return {2: 'b, s', 3: 'b, c, s'}[len(model.smallest_inputs[0])]


def sizes(model: BertForPreTraining | TaskModel) -> str:
    """The same in words, for those who call it."""
    words = f'any number b of sequences, of any length s up to {model.config.max_positions:,}'
    return words + (', c choices of each' if 'c' in dimensions(model) else '')


def example(model: BertForPreTraining | TaskModel) -> str:
    """Ids that it takes, as Python writes them."""
    return '[[[2, 5, 3], [2, 6, 3]]]' if 'c' in dimensions(model) else '[[2, 5, 3]]'


def _encoder(bert: BertForPreTraining, *inputs: jax.Array, pooled: bool) -> dict[str, jax.Array]:
    hidden, _ = bert.encoder(*inputs)  # [B, S, D]
    return {'hidden': hidden, **({'pooled': bert.pooler(hidden[:, 0])} if pooled else {})}


def _mlm(bert: BertForPreTraining, *inputs: jax.Array, pairs: bool) -> dict[str, jax.Array]:
    hidden, _ = bert.encoder(*inputs)
    logits = bert.mlm(hidden, bert.encoder.token_embedding())[..., : bert.config.vocab_size]  # [B, S, V]
    return {'mlm_logits': logits, **({'nsp_logits': bert.nsp(bert.pooler(hidden[:, 0]))} if pairs else {})}
