"""The pure functions of a model and the card that describes them, for the exports to StableHLO and ONNX."""

import dataclasses
from collections.abc import Callable, Collection, Mapping

import jax
import numpy as np
from etils import epath
from flax import linen as nn
from flax.traverse_util import unflatten_dict
from jax import export

from bertjax.convert.content import render
from bertjax.data.features import INPUTS
from bertjax.model.bert import BertForPreTraining
from bertjax.model.heads import BertForTask

Function = Callable[..., dict[str, jax.Array]]


def make_functions(
    model: BertForPreTraining | BertForTask,
    parts: Collection[str] = ('mlm', 'pooler', 'nsp'),
    embeddings: BertForTask | None = None,
) -> dict[str, Function]:
    """Returns the functions `encoder` and `mlm` of a pre-trained model, or the function `task` of a task's model.

    Each function takes {path: weight} and the int32 arrays of `data.features.INPUTS`, and returns {output name: array}.

    Args:
      model: The model with its config.
      parts: The parts of a pre-trained model, besides the encoder, that have weights. The functions return no outputs
        of other parts, and the function `mlm` exists only with the part 'mlm'.
      embeddings: A module that computes vectors of texts, for a function `embeddings`, which replaces `task`; or None.
    """
    pooled = 'pooler' in parts and model.config.nsp

    def encoder(bert: BertForPreTraining, *inputs: jax.Array) -> dict[str, jax.Array]:
        hidden, _ = bert.encoder(*inputs)  # [B, S, D]
        return {'hidden': hidden, **({'pooled': bert.pooler(hidden[:, 0])} if pooled else {})}

    def mlm(bert: BertForPreTraining, *inputs: jax.Array) -> dict[str, jax.Array]:
        hidden, _ = bert.encoder(*inputs)
        logits = bert.mlm(hidden, bert.encoder.token_embedding())[..., : bert.config.vocab_size]  # [B, S, V]
        pair = {'nsp_logits': bert.nsp(bert.pooler(hidden[:, 0]))} if pooled and 'nsp' in parts else {}
        return {'mlm_logits': logits, **pair}

    def function(method: Function | None, model: BertForPreTraining | BertForTask = model) -> Function:
        # The implementation 'dot_product' runs on any platform and with symbolic sizes.
        model = model.clone(config=dataclasses.replace(model.config, attention='dot_product'))

        def call(weights: Mapping[str, jax.Array], *inputs: jax.Array) -> dict[str, jax.Array]:
            tree = unflatten_dict({tuple(path.split('/')): x for path, x in weights.items()})
            with nn.logical_axis_rules(()):  # No array is sharded.
                return model.apply({'params': tree}, *inputs, method=method)

        return call

    vectors = {} if embeddings is None else {'embeddings': function(None, embeddings)}
    if isinstance(model, BertForPreTraining):
        return {'encoder': function(encoder), **({'mlm': function(mlm)} if 'mlm' in parts else {}), **vectors}
    return vectors or {'task': function(None)}


def symbolic_inputs(model: BertForPreTraining | BertForTask) -> list[jax.ShapeDtypeStruct]:
    """Returns abstract inputs of the functions: int32, any number of rows of any length up to `max_positions`."""
    shape = export.symbolic_shape(_dimensions(model), constraints=[f's <= {model.config.max_positions}'])
    return [jax.ShapeDtypeStruct(shape, np.int32)] * len(INPUTS)


def describe_outputs(outputs: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, str]:
    """Returns the dtype and the shape of each output, such as 'float32[b, s, 768]'."""
    return {name: f'{x.dtype}[{", ".join(map(str, x.shape))}]' for name, x in outputs.items()}


def write_card(
    folder: epath.Path,
    suffix: str,
    outputs: Mapping[str, Mapping[str, str]],
    model: BertForPreTraining | BertForTask,
    **values: object,
) -> None:
    """Writes the README.md of exported functions.

    `suffix` is the suffix of the function files, and `outputs` is {name of a function: result of `describe_outputs`}.
    `values` are further values for the template.
    """
    dimensions, longest = _dimensions(model), model.config.max_positions
    values = {'suffix': suffix, 'outputs': outputs, 'dimensions': dimensions, 'longest': longest, **values}
    (folder / 'README.md').write_text(render('functions.md.j2', **values))


def _dimensions(model: BertForPreTraining | BertForTask) -> str:
    """Returns the names of the input dimensions: 'b, s', or 'b, c, s' for a multiple-choice model."""
    return {2: 'b, s', 3: 'b, c, s'}[len(model.smallest_inputs[0])]
