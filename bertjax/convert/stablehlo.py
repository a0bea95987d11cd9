"""Exports a model by `jax.export` to functions that JAX programs can run without bertjax, for inputs of any size.

The weights are an argument of the functions, and are stored in one file that other programs can also read.
"""

import contextlib
import json
from collections.abc import Iterator

import jax
import numpy as np
import safetensors.numpy
from etils import epath
from jax import export

from bertjax.convert.content import ExportContent
from bertjax.convert.functions import describe_outputs, make_functions, symbolic_inputs, write_card
from bertjax.convert.trees import flat_paths
from bertjax.data.features import INPUTS
from bertjax.files.atomic import write_atomic

PLATFORMS = ('cpu', 'cuda', 'tpu')
FUNCTIONS, WEIGHTS = 'functions.json', 'weights.safetensors'


def export_stablehlo(content: ExportContent, directory: epath.PathLike) -> None:
    """Writes the weights, metadata, and a file for each function of `make_functions`, such as `encoder.jax_export`.

    The local directory appears atomically. Equal parameters give equal bytes.
    """
    model, params = content.module, jax.device_get(dict(content.params))
    weights = {path: np.asarray(x) for path, x in flat_paths(params).items()}
    abstract, facts = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in weights.items()}, {}
    with content.stage(directory) as path, _without_source_locations():
        for name, function in make_functions(model, params.keys(), content.embeddings).items():
            lowered = export.export(jax.jit(function), platforms=PLATFORMS)(abstract, *symbolic_inputs(model))
            write_atomic(path / f'{name}.jax_export', bytes(lowered.serialize()))
            facts[name] = {
                'inputs': [WEIGHTS, *INPUTS],
                'outputs': describe_outputs(jax.tree.unflatten(lowered.out_tree, lowered.out_avals)),
                'platforms': list(PLATFORMS),
                'longest': model.config.max_positions,
            }
        write_atomic(path / WEIGHTS, safetensors.numpy.save(weights))
        outputs = {name: values['outputs'] for name, values in facts.items()}
        write_card(path, 'jax_export', outputs, model, platforms=PLATFORMS, version=jax.__version__)
        (path / FUNCTIONS).write_text(json.dumps(facts, indent=2) + '\n')


@contextlib.contextmanager
def _without_source_locations() -> Iterator[None]:
    """Keeps the source locations and tracebacks of operations out of the exported files."""
    key = 'jax_traceback_in_locations_limit'
    previous = jax.config.values[key]
    jax.config.update(key, 0)
    try:
        yield
    finally:
        jax.config.update(key, previous)
