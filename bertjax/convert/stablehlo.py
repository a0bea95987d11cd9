"""Exports a model with `jax.export` and symbolic sizes as functions that JAX programs run without bertjax.

The weights are an argument of the functions, and are stored in one file that other programs can also read.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from etils import epath
from flax import linen as nn
from jax import export

from bertjax.convert.functions import describe_dimensions, dimensions, example_input, make_functions
from bertjax.convert.trees import flat_paths
from bertjax.data.features import INPUTS
from bertjax.files.atomic import atomic_directory
from bertjax.files.disk import annotate_write_errors
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig
from bertjax.model.heads import BertForTask
from bertjax.text.tokenizer import Tokenizer

PLATFORMS = ('cpu', 'cuda', 'tpu')
FUNCTIONS, WEIGHTS = 'functions.json', 'weights.safetensors'
_CARD = """# A BERT as StableHLO

{functions}

The inputs are int32 arrays [{dimensions}], {sizes}. `attention_mask` is 1 for tokens
and 0 for padding. The functions were lowered for {platforms} with jax {version}. JAX guarantees that later
versions can read them for at least half a year. Install the packages with
`pip install jax flatbuffers safetensors`:

```python
import numpy as np, safetensors.numpy
from jax import export

weights = safetensors.numpy.load_file('weights.safetensors')
with open('{first}.jax_export', 'rb') as file:
    function = export.deserialize(bytearray(file.read()))
input_ids = np.array({example}, np.int32)
outputs = function.call(weights, input_ids, np.zeros_like(input_ids), np.ones_like(input_ids))
```
"""


def export_stablehlo(
    params: Mapping,
    model: BertForPreTraining | BertForTask,
    tokenizer: Tokenizer,
    directory: epath.PathLike,
    *,
    extra_files: Mapping[str, str] = MappingProxyType({}),
    embeddings: BertForTask | None = None,
) -> None:
    """Writes the serialized functions `encoder` and `mlm` of a pre-trained model, or `task` of a task's model.

    The directory appears atomically. Equal parameters give equal bytes.

    Args:
      params: The parameters, stacked or not as in the model's config; may be boxed. A pre-trained model may lack heads.
      model: The model with its config.
      tokenizer: The tokenizer, whose files are also written.
      directory: The local or remote directory.
      extra_files: Additional files, {name: text}.
      embeddings: The module of the vectors of texts, see `make_functions`.
    """
    weights = {path: np.asarray(x) for path, x in flat_paths(nn.unbox(jax.device_get(dict(params)))).items()}
    functions = make_functions(model, {path.partition('/')[0] for path in weights}, embeddings)
    lowered = {name: _lower(function, weights, model) for name, function in functions.items()}
    facts = {name: _facts(function, model.config) for name, function in lowered.items()}
    with atomic_directory(directory) as staging:
        tokenizer.save(staging)
        path = epath.Path(staging)
        data = {f'{name}.jax_export': bytes(function.serialize()) for name, function in lowered.items()}
        data[WEIGHTS] = safetensors.numpy.save(weights)
        for name, content in data.items():
            with annotate_write_errors(path / name, len(content)):
                (path / name).write_bytes(content)
        for name, text in extra_files.items():
            (path / name).write_text(text)
        (path / 'README.md').write_text(_card(facts, model))
        (path / FUNCTIONS).write_text(json.dumps(facts, indent=2) + '\n')


def _lower(
    function: Callable, weights: Mapping[str, np.ndarray], model: BertForPreTraining | BertForTask
) -> export.Exported:
    shape = export.symbolic_shape(dimensions(model), constraints=[f's <= {model.config.max_positions}'])
    inputs = [jax.ShapeDtypeStruct(shape, np.int32)] * len(INPUTS)
    shapes = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in weights.items()}
    with _without_source_locations():
        return export.export(jax.jit(function), platforms=PLATFORMS)(shapes, *inputs)


@contextlib.contextmanager
def _without_source_locations() -> Iterator[None]:
    """Omits source locations and tracebacks, which JAX records for each operation, from the exported file."""
    key = 'jax_traceback_in_locations_limit'
    previous = jax.config.values[key]
    jax.config.update(key, 0)
    try:
        yield
    finally:
        jax.config.update(key, previous)


def _facts(function: export.Exported, config: BertConfig) -> dict[str, Any]:
    outputs = jax.tree.unflatten(function.out_tree, function.out_avals)
    return {
        'inputs': [WEIGHTS, *INPUTS],
        'outputs': {name: f'{x.dtype}[{", ".join(map(str, x.shape))}]' for name, x in outputs.items()},
        'platforms': list(function.platforms),
        'longest': config.max_positions,
    }


def _card(functions: Mapping[str, Any], model: BertForPreTraining | BertForTask) -> str:
    lines = [
        f'* `{name}.jax_export`: {", ".join(f"`{output}` {shape}" for output, shape in facts["outputs"].items())}'
        for name, facts in functions.items()
    ]
    return _CARD.format(
        functions='\n'.join(lines),
        dimensions=dimensions(model),
        sizes=describe_dimensions(model),
        platforms=', '.join(PLATFORMS),
        version=jax.__version__,
        first=next(iter(functions)),
        example=example_input(model),
    )
