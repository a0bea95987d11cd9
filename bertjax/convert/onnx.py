"""Exports a model to ONNX with jax2onnx and symbolic sizes, for onnxruntime and other programs without JAX."""

import contextlib
import dataclasses
import importlib.util
import logging
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from flax.traverse_util import unflatten_dict
from jax import export

from bertjax.convert.functions import Function, describe_dimensions, dimensions, example_input, make_functions
from bertjax.convert.trees import flat_paths, flat_stacked, stacked_shapes
from bertjax.data.features import INPUTS
from bertjax.errors import UserError
from bertjax.files.atomic import atomic_directory
from bertjax.files.disk import annotate_write_errors
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.model.stacking import unstack_layers
from bertjax.text.tokenizer import Tokenizer

OPSET = 21  # onnxruntime supports this opset since version 1.18.
_MAX_WEIGHT_BYTES = 2**31 - 2**24  # A protocol buffer is smaller than 2 GiB, and the graph needs some space.
_KEY, _FIX = 'config.export_formats', 'remove onnx from config.export_formats'
_README = 'README.md'
_CARD = """# A BERT as ONNX

{functions}

The inputs are int32 arrays [{dimensions}], {sizes}. `attention_mask` is 1 for tokens
and 0 for padding. The files use opset {opset} and contain the weights in float32. Install the runtime with
`pip install onnxruntime`:

```python
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession('{first}.onnx')
input_ids = np.array({example}, np.int32)
inputs = [input_ids, np.zeros_like(input_ids), np.ones_like(input_ids)]
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(names, dict(zip({inputs}, inputs)))))
```
"""


def check_onnx(config: BertConfig, model: BertForTask | None = None) -> None:
    """Checks that a model can be exported to ONNX. The check is cheap and runs before training starts.

    Args:
      config: The config of the encoder.
      model: The model of a task; None for a pre-trained model.

    Raises:
      UserError: jax2onnx is not installed, the model has a BiLSTM (jax2onnx cannot convert a loop from right to left),
        or the weights do not fit in one file.
    """
    if importlib.util.find_spec('jax2onnx') is None:
        raise UserError(
            _KEY, 'onnx without an installed jax2onnx', 'the package jax2onnx', "pip install 'bertjax[onnx]'"
        )
    if model is not None and model.bilstm_units:
        expected = '0, because jax2onnx cannot convert a BiLSTM'
        raise UserError('config.task.bilstm_units', f'{model.bilstm_units} with onnx in {_KEY}', expected, _FIX)
    size = 4 * sum(map(math.prod, stacked_shapes(model or BertForPreTraining(config)).values()))
    if size > _MAX_WEIGHT_BYTES:
        raise UserError(_KEY, f'onnx for {size / 2**30:.2f} GiB of weights', 'less than 2 GiB', _FIX)


def export_onnx(
    params: Mapping,
    model: BertForPreTraining | BertForTask,
    tokenizer: Tokenizer,
    directory: epath.PathLike,
    *,
    extra_files: Mapping[str, str] = MappingProxyType({}),
    embeddings: BertForTask | None = None,
) -> None:
    """Writes `encoder.onnx` and `mlm.onnx` of a pre-trained model, or `task.onnx` of a task's model.

    The files are in float32 for any dtype of the model. The directory appears atomically. Equal parameters give equal
    bytes.

    Args:
      params: The parameters, stacked or not as in the model's config; may be boxed. A pre-trained model may lack heads.
      model: The model, which must have passed `check_onnx`.
      tokenizer: The tokenizer, whose files are also written.
      directory: The local or remote directory.
      extra_files: Additional files, {name: text}.
      embeddings: The module of the vectors of texts, see `make_functions`.
    """
    stacked = unflatten_dict(flat_stacked(params, model.config), sep='/')
    weights = flat_paths(unstack_layers(stacked))
    changes = {'scan_layers': False, 'remat': 'none', 'dtype': 'float32', 'param_dtype': 'float32'}
    model = model.clone(config=dataclasses.replace(model.config, **changes))  # jax2onnx cannot convert a scan.
    embeddings = None if embeddings is None else embeddings.clone(config=model.config)
    with atomic_directory(directory) as staging, _quiet():
        tokenizer.save(staging)
        path = epath.Path(staging)
        outputs = {}
        parts = {path.partition('/')[0] for path in weights}
        for name, function in make_functions(model, parts, embeddings).items():
            graph, outputs[name] = _convert(name, function, weights, model)
            data = graph.SerializeToString(deterministic=True)
            with annotate_write_errors(path / f'{name}.onnx', len(data)):
                (path / f'{name}.onnx').write_bytes(data)
        for name, text in extra_files.items():
            (path / name).write_text(text)
        (path / _README).write_text(_card(outputs, model))


def _convert(
    name: str, function: Function, weights: Mapping[str, np.ndarray], model: BertForPreTraining | BertForTask
) -> tuple[Any, dict[str, str]]:
    """Returns an onnx.ModelProto and its outputs, {name: dtype and shape}."""
    import jax2onnx  # An optional dependency, whose import takes two seconds.

    def bound(*inputs: jax.Array) -> dict[str, jax.Array]:
        return function({path: jnp.asarray(x) for path, x in weights.items()}, *inputs)

    shape = export.symbolic_shape(dimensions(model), constraints=[f's <= {model.config.max_positions}'])
    inputs = [jax.ShapeDtypeStruct(shape, np.int32)] * len(INPUTS)
    outputs = dict(sorted(jax.eval_shape(bound, *inputs).items()))  # Sorted like the leaves of a pytree.
    graph = jax2onnx.to_onnx(
        bound, inputs, model_name=name, opset=OPSET, input_names=INPUTS, output_names=list(outputs)
    )
    _number_constants(graph.graph)
    for value, x in zip(graph.graph.output, outputs.values(), strict=True):
        for dimension, size in zip(value.type.tensor_type.shape.dim, x.shape, strict=True):
            if not isinstance(size, int):
                dimension.dim_param = str(size)  # Otherwise the size would have a generated name.
    return graph, {output: f'{x.dtype}[{", ".join(map(str, x.shape))}]' for output, x in outputs.items()}


def _number_constants(graph: Any) -> None:
    """Renames constants in the order of first use, because jax2onnx's names depend on earlier conversions."""
    constants = {tensor.name for tensor in graph.initializer}
    used = dict.fromkeys(name for node in graph.node for name in node.input if name in constants)
    names = {name: f'constant_{number}' for number, name in enumerate(used)}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for named in (*graph.initializer, *graph.value_info):
        named.name = names.get(named.name, named.name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences warnings about parts of jax2onnx that are not used, and about values without a declared type."""
    loggers = [logging.getLogger(name) for name in ('jax2onnx', 'onnx_ir')]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _card(outputs: Mapping[str, Mapping[str, str]], model: BertForPreTraining | BertForTask) -> str:
    lines = [
        f'* `{name}.onnx`: {", ".join(f"`{output}` {shape}" for output, shape in shapes.items())}'
        for name, shapes in outputs.items()
    ]
    return _CARD.format(
        functions='\n'.join(lines),
        dimensions=dimensions(model),
        sizes=describe_dimensions(model),
        opset=OPSET,
        first=next(iter(outputs)),
        example=example_input(model),
        inputs=list(INPUTS),
    )
