"""Makes pure functions of a model for the exports to StableHLO and ONNX."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping

import jax
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from bertjax.model.bert import BertForPreTraining
from bertjax.model.heads import BertForTask

Function = Callable[..., dict[str, jax.Array]]


def make_functions(
    model: BertForPreTraining | BertForTask,
    parts: Collection[str] = ('mlm', 'pooler', 'nsp'),
    embeddings: BertForTask | None = None,
) -> dict[str, Function]:
    """Returns the functions `encoder` and `mlm` of a pre-trained model, or `task` of a task's model.

    Args:
      model: The model with its config.
      parts: The parts of a pre-trained model, besides the encoder, that have weights. The functions return no outputs
        of other parts. Without the part 'mlm' there is no function `mlm`.
      embeddings: The module of the vectors of texts for a further function `embeddings`, in place of `task`.

    Returns:
      {name: function}. Each function takes the weights by path and the three int32 arrays of `data.features.INPUTS`,
      and returns the outputs by name.
    """

    def function(method: Function | None, model: BertForPreTraining | BertForTask = model) -> Function:
        # An export must run on any platform and with symbolic sizes.
        model = model.clone(config=dataclasses.replace(model.config, attention='dot_product'))

        def call(weights: Mapping[str, jax.Array], *inputs: jax.Array) -> dict[str, jax.Array]:
            tree = unflatten_dict({tuple(path.split('/')): x for path, x in weights.items()})
            with nn.logical_axis_rules(()):  # No array is sharded.
                return model.apply({'params': tree}, *inputs, method=method)

        return call

    vectors = {} if embeddings is None else {'embeddings': function(None, embeddings)}
    if isinstance(model, BertForPreTraining):
        pooled = model.config.nsp and 'pooler' in parts
        functions = {'encoder': function(functools.partial(_encoder, pooled=pooled))}
        if 'mlm' in parts:
            functions['mlm'] = function(functools.partial(_mlm, pairs=pooled and 'nsp' in parts))
        return functions | vectors
    return vectors or {'task': function(None)}


def dimensions(model: BertForPreTraining | BertForTask) -> str:
    """Returns the names of the input dimensions: 'b, s', or 'b, c, s' for a multiple-choice model."""
    return {2: 'b, s', 3: 'b, c, s'}[len(model.smallest_inputs[0])]


def describe_dimensions(model: BertForPreTraining | BertForTask) -> str:
    """Returns a description of the input dimensions for users of the export."""
    words = f'for any number b of sequences of any length s up to {model.config.max_positions:,}'
    return words + (', with c choices per example' if 'c' in dimensions(model) else '')


def example_input(model: BertForPreTraining | BertForTask) -> str:
    """Returns example input ids as Python source."""
    return '[[[2, 5, 3], [2, 6, 3]]]' if 'c' in dimensions(model) else '[[2, 5, 3]]'


def _encoder(bert: BertForPreTraining, *inputs: jax.Array, pooled: bool) -> dict[str, jax.Array]:
    hidden, _ = bert.encoder(*inputs)  # [B, S, D]
    return {'hidden': hidden, **({'pooled': bert.pooler(hidden[:, 0])} if pooled else {})}


def _mlm(bert: BertForPreTraining, *inputs: jax.Array, pairs: bool) -> dict[str, jax.Array]:
    hidden, _ = bert.encoder(*inputs)
    logits = bert.mlm(hidden, bert.encoder.token_embedding())[..., : bert.config.vocab_size]  # [B, S, V]
    return {'mlm_logits': logits, **({'nsp_logits': bert.nsp(bert.pooler(hidden[:, 0]))} if pairs else {})}
