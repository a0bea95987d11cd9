"""Measures the peak host memory while one device reads and exports a checkpoint of another mesh.

    python tests/checkpoint/peaks.py write FOLDER   # saves a state on eight devices
    python tests/checkpoint/peaks.py read FOLDER    # prints peaks as fractions of the size of the read arrays

CPU devices share the memory of the host, so an array that exists on the host and on the device counts twice.
"""

import functools
import gc
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

MODEL = {'num_layers': 12, 'width': 384, 'mlp_dim': 1536, 'num_heads': 4, 'scan_layers': False}
PIECES = 2000


class NoTokenizer:
    """A tokenizer without pieces, so that almost only the parameters are exported."""

    vocab_size, pad_id, separators, family = PIECES, 0, 1, 'wordpiece'

    def save(self, directory: str) -> None:
        """Writes the file that an export adapts."""
        pathlib.Path(directory, 'tokenizer_config.json').write_text('{"model_input_names": []}')


def _resident(name: str) -> int:
    """Returns bytes: of VmRSS, the current memory, or of VmHWM, its peak since the last write to clear_refs."""
    status = pathlib.Path('/proc/self/status').read_text()
    return int(next(line for line in status.splitlines() if line.startswith(name)).split()[1]) * 1024


def peak(function: Callable[[], Any]) -> tuple[Any, int]:
    """Returns the result of `function` and the peak growth of the memory in bytes."""
    gc.collect()
    pathlib.Path('/proc/self/clear_refs').write_text('5')
    before = _resident('VmRSS')
    result = function()
    return result, _resident('VmHWM') - before


def main(command: str, folder: pathlib.Path) -> None:
    import jax
    import numpy as np

    from bertjax.checkpoint.checkpoints import Checkpoints
    from bertjax.checkpoint.position import Position
    from bertjax.config.recipes import pretraining_config
    from bertjax.convert.content import ExportContent
    from bertjax.convert.huggingface.save import export_huggingface
    from bertjax.parallel.mesh import make_mesh
    from bertjax.parallel.partition import mesh_context
    from bertjax.pretrain.run import build_pretraining_setup
    from bertjax.pretrain.settings import pretraining_settings

    config = pretraining_config('tiny')
    config.model.update(MODEL)
    config.mesh.preset = 'fsdp' if command == 'write' else 'data'
    settings = pretraining_settings(config)
    setup = build_pretraining_setup(settings, settings.model_config(PIECES), make_mesh(settings.mesh_axes))
    whole, params = (sum(x.size * 4 for x in jax.tree.leaves(tree)) for tree in (setup.state, setup.state.params))
    with mesh_context(setup.mesh):
        if command == 'write':
            checkpoints = Checkpoints(folder / 'checkpoints', keep=1)
            drawn = np.random.default_rng(0).standard_normal
            state = jax.tree.map(lambda a: jax.device_put(drawn(a.shape).astype(a.dtype), a.sharding), setup.state)
            checkpoints.save(state, Position(1, 0, 1), {}, None)
            checkpoints.close()
            return
        checkpoints = Checkpoints(folder / 'checkpoints', keep=1, read_only=True)
        saved = checkpoints.latest()
        read = lambda restore, of, template: lambda: jax.block_until_ready(restore(of, template))  # noqa: E731
        # The results stay referenced, because freed memory would be reused and would hide growth.
        state, of_state = peak(read(checkpoints.restore, 1, setup.state))
        own, of_params = peak(read(checkpoints.restore_params, saved, setup.state.params))
        export = functools.partial(export_huggingface, ExportContent(setup.module, own, NoTokenizer()), folder / 'hf')
        _, of_export = peak(export)
        del state
        checkpoints.close()
    print(json.dumps({'state': of_state / whole, 'parameters': of_params / params, 'export': of_export / params}))


if __name__ == '__main__':
    os.environ['JAX_PLATFORMS'] = 'cpu'
    if sys.argv[1] == 'write':
        os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
