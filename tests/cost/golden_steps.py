"""Computes the cost of a small train step, compiled for a TPU slice without any TPU.

    python tests/cost/golden_steps.py          # prints the figures and the versions of jax and libtpu
    python tests/cost/golden_steps.py --renew  # also writes them to tests/cost/golden_steps.json

The diff of the file shows intended improvements and unintended changes.
"""

import importlib.metadata
import json
import os
import pathlib
import sys
from typing import Any

FILE = pathlib.Path(__file__).with_suffix('.json')
TOPOLOGY = 'v5e:2x2'
# The TPU compiler is slow, so the model is small: two blocks, short rows, a small vocabulary. Two chips share the
# parameters, and the slice has two such pairs, so that the step has the collectives of both axes.
STEP = {
    'model.width': 128,
    'model.mlp_dim': 512,
    'model.num_heads': 2,
    'model.num_layers': 2,
    'model.dtype': 'bfloat16',
    'vocab.size': 1000,
    'phases': (),
    'seq_len': 64,
    'max_predictions': 10,
    'batch_size': 128,
    'mesh.fsdp': 2,
}


def versions() -> dict[str, str]:
    """Returns the versions of jax and libtpu, on which the figures depend; '' if a package is not installed."""
    result = {}
    for package in ('jax', 'libtpu'):
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = ''
    return result


def measure() -> dict[str, Any]:
    """Returns the FLOPs, bytes, cycles, collectives and temporary memory of a step on one chip."""
    from bertjax.config.files import find_recipe, load_recipe
    from bertjax.cost.memory_search import MemorySearch
    from bertjax.pretrain.settings import pretraining_settings

    config = load_recipe(find_recipe('pretrain_base'))
    config.update_from_flattened_dict(STEP)
    settings = pretraining_settings(config)
    (phase,) = settings.resolve_phases(settings.total_steps(None))
    result = MemorySearch(settings, TOPOLOGY).compile(phase)
    estimate = result['estimate']
    return {
        'compiled_flops': result['compiled_flops'],
        'accessed_bytes': result['accessed_bytes'],
        'cycles': round(estimate['compiler_s'] * estimate['clock_hz']),
        'temporary_bytes': result['temporary_bytes'],
        'collectives': result['collectives'],
    }


if __name__ == '__main__':
    os.environ['JAX_PLATFORMS'] = 'cpu'
    text = json.dumps({'versions': versions(), 'step': measure()}, indent=2) + '\n'
    if '--renew' in sys.argv:
        FILE.write_text(text, encoding='utf-8')
    print(text, end='')
