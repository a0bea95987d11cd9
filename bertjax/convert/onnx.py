"""Exports a model to ONNX with jax2onnx and symbolic sizes, for onnxruntime and other programs without JAX."""

import contextlib
import dataclasses
import importlib.util
import logging
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.convert.content import ExportContent
from bertjax.convert.functions import Function, describe_outputs, make_functions, symbolic_inputs, write_card
from bertjax.convert.trees import flat_paths, stacked_shapes
from bertjax.data.features import INPUTS
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.model.stacking import unstack_layers

OPSET = 21  # onnxruntime 1.18 and later versions support this opset.
_MAX_WEIGHT_BYTES = 2**31 - 2**24  # A protocol buffer is smaller than 2 GiB, and the graph needs some space.
_KEY, _FIX = 'config.export_formats', 'remove onnx from config.export_formats'


def check_onnx(config: BertConfig, model: BertForTask | None = None) -> None:
    """Raises a UserError if a model cannot be exported to ONNX.

    This is the case if jax2onnx is not installed or cannot convert the model (a BiLSTM), or if the weights do not fit
    in one file. `config` is the config of the model, and `model` is None for a pre-trained model.
    """
    if importlib.util.find_spec('jax2onnx') is None:
        fix = "pip install 'bertjax[onnx]'"
        raise UserError(_KEY, 'onnx without an installed jax2onnx', 'the package jax2onnx', fix)
    if model is not None and model.bilstm_units:
        expected = '0, because jax2onnx cannot convert a BiLSTM'
        raise UserError('config.task.bilstm_units', f'{model.bilstm_units} with onnx in {_KEY}', expected, _FIX)
    size = 4 * sum(map(math.prod, stacked_shapes(model or BertForPreTraining(config)).values()))
    if size > _MAX_WEIGHT_BYTES:
        found, most = (f'{number / 2**30:.2f}' for number in (size, _MAX_WEIGHT_BYTES))
        raise UserError(_KEY, f'onnx for {found} GiB of weights', f'at most {most} GiB', _FIX)


def export_onnx(content: ExportContent, directory: epath.PathLike) -> None:
    """Writes a file for each function of `make_functions`, such as `encoder.onnx`, and a README.md.

    The model must have passed `check_onnx`. Weights and outputs are float32. `directory` is replaced atomically.
    Equal parameters give equal bytes.
    """
    params = jax.tree.map(lambda x: np.asarray(x, np.float32), dict(content.params))
    unstacked = unstack_layers(params) if content.config.scan_layers else params
    changes = {'scan_layers': False, 'remat': 'none', 'dtype': 'float32', 'param_dtype': 'float32'}
    config = dataclasses.replace(content.config, **changes)  # jax2onnx would convert a scan to a Loop
    model, embeddings, outputs = content.module.clone(config=config), content.embeddings, {}
    embeddings = None if embeddings is None else embeddings.clone(config=config)
    with content.stage(directory) as path, contextlib.ExitStack() as stack:
        # jax2onnx warns of plugins that it cannot import, onnx_ir of values without a type.
        for name in ('jax2onnx', 'onnx_ir'):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        for name, function in make_functions(model, unstacked.keys(), embeddings).items():
            graph, outputs[name] = _convert(name, function, flat_paths(unstacked), model)
            write_atomic(path / f'{name}.onnx', graph.SerializeToString(deterministic=True))
        write_card(path, 'onnx', outputs, model, opset=OPSET, inputs=list(INPUTS))


def _convert(
    name: str, function: Function, weights: Mapping[str, np.ndarray], model: BertForPreTraining | BertForTask
) -> tuple[Any, dict[str, str]]:
    """Returns an onnx.ModelProto and its outputs, {name: dtype and shape}."""
    import jax2onnx  # An optional dependency, whose import takes two seconds.

    def bound(*inputs: jax.Array) -> dict[str, jax.Array]:
        return function({path: jnp.asarray(x) for path, x in weights.items()}, *inputs)

    inputs = symbolic_inputs(model)
    outputs = dict(sorted(jax.eval_shape(bound, *inputs).items()))  # Sorted like the leaves of a pytree.
    graph = jax2onnx.to_onnx(
        bound, inputs, model_name=name, opset=OPSET, input_names=INPUTS, output_names=list(outputs)
    )
    _number_constants(graph.graph)
    for value, x in zip(graph.graph.output, outputs.values(), strict=True):
        for dimension, size in zip(value.type.tensor_type.shape.dim, x.shape, strict=True):
            if not isinstance(size, int):
                dimension.dim_param = str(size)  # Otherwise the size would have a generated name.
    return graph, describe_outputs(outputs)


def _number_constants(graph: Any) -> None:
    """Renames constants by their order of first use, because jax2onnx's names depend on earlier conversions."""
    constants = {tensor.name for tensor in graph.initializer}
    used = dict.fromkeys(name for node in graph.node for name in node.input if name in constants)
    names = {name: f'constant_{number}' for number, name in enumerate(used)}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for named in (*graph.initializer, *graph.value_info):
        named.name = names.get(named.name, named.name)
