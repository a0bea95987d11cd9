"""The time for which a save blocks the training, compared with the time to copy the state once.

    python benchmarks/saving.py --size=large

Parameters and moments are on one device. `Checkpoints.save` saves them as in a run, while updates continue. Each update
reads and writes the whole donated state, like the end of a training step. The script prints the seconds of one copy of
the state, the seconds for which `Checkpoints.save` blocks, the seconds of the updates until the checkpoint is complete,
the seconds of an update without a save, and the peak memory in addition to the state. The script needs up to three
times the memory of the state.
"""

import pathlib
import platform
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import app, flags, logging

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.checkpoint.position import Position
from bertjax.config.recipes import pretraining_config
from bertjax.model.config import SIZES
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.state import TrainState

_SIZE = flags.DEFINE_enum('size', 'large', [name for name in SIZES if '_' not in name], 'The size of the model.')
_SAVES = flags.DEFINE_integer('saves', 2, 'The number of saves.')
_FOLDER = flags.DEFINE_string('folder', None, 'The folder of the checkpoints; default: a temporary folder.')
_PIECES = 30522  # BERT's own vocabulary
_ALONE = 5  # the number of updates without a save


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _copy_seconds(state: TrainState) -> float:
    """Returns the seconds of a copy by numpy. Like a save, the copy allocates all of its memory."""
    began = time.perf_counter()
    copies = [np.array(x) for x in jax.tree.leaves(state)]
    elapsed = time.perf_counter() - began
    del copies
    return elapsed


def main(argv: Sequence[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)  # Orbax logs each of its steps
    config = pretraining_config(_SIZE.value)
    settings, mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices()[:1])
    setup = build_pretraining_setup(settings, settings.model_config(_PIECES), mesh)
    with mesh_context(mesh):
        state: TrainState = jax.block_until_ready(setup.create(seed=0))
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    update = jax.jit(lambda state: jax.tree.map(lambda x: (x * 0.999).astype(x.dtype), state), donate_argnums=0)

    def update_seconds() -> float:
        nonlocal state
        began = time.perf_counter()
        state = jax.block_until_ready(update(state))
        return time.perf_counter() - began

    update_seconds()  # compiles
    alone = statistics.median(update_seconds() for _ in range(_ALONE))
    initial_peak = _peak()
    print(f'{platform.processor() or platform.machine()}, jax {jax.__version__}: {size / 1e9:.2f} GB of state')
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        checkpoints = Checkpoints(pathlib.Path(folder, 'checkpoints'), keep=1)
        for number in range(1, 1 + _SAVES.value):
            copy = _copy_seconds(state)
            began = time.perf_counter()
            checkpoints.save(state, Position(number, 0, number), {'model': {}}, None)
            blocked = time.perf_counter() - began
            meanwhile = []
            writing = threading.Thread(target=checkpoints.wait)
            writing.start()
            while writing.is_alive():
                meanwhile.append(update_seconds())
            complete = time.perf_counter() - began
            print(
                f'save {number}: one copy {copy:.2f} s, blocked {blocked:.2f} s, complete after {complete:.1f} s; '
                f'{len(meanwhile)} updates meanwhile: first {meanwhile[0]:.2f} s, longest {max(meanwhile):.2f} s, '
                f'median {statistics.median(meanwhile):.2f} s, without a save {alone:.2f} s'
            )
        checkpoints.close()
    print(f'peak memory beyond the state: {(_peak() - initial_peak) / size:.2f} times the state')


if __name__ == '__main__':
    app.run(main)
