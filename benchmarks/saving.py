"""For how long a save keeps the training waiting, with a state of real size: beside one copy of it.

    python benchmarks/saving.py --size=large

Parameters and moments lie on one device and are saved as a run saves them, while updates follow each other: each
reads and writes all of the state, which it is given, as the end of a training step does. Prints the seconds of one copy
of the state, those for which `Checkpoints.save` kept its caller, what the updates until the checkpoint was whole took
beside an update alone, and the most memory beside the state. Takes up to three times the state.
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

from bertjax.checkpoint import Checkpoints, Position
from bertjax.config.recipes import pretraining_config
from bertjax.model.config import SIZES
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.run import build_pretraining_setup
from bertjax.pretrain.settings import pretraining_settings
from bertjax.train.state import TrainState

_SIZE = flags.DEFINE_enum('size', 'large', [name for name in SIZES if '_' not in name], 'A named size.')
_SAVES = flags.DEFINE_integer('saves', 2, 'How many.')
_FOLDER = flags.DEFINE_string('folder', None, 'Where they are written; the default is a temporary folder.')
_PIECES = 30522  # BERT's own vocabulary
_ALONE = 5  # updates without a save


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _copied(state: TrainState) -> float:
    """Seconds of a copy by numpy; all of its memory has to be had, as for a save."""
    began = time.perf_counter()
    kept = [np.array(x) for x in jax.tree.leaves(state)]
    elapsed = time.perf_counter() - began
    del kept
    return elapsed


def main(argv: Sequence[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)  # Orbax tells of each of its steps
    config = pretraining_config(_SIZE.value)
    settings, mesh = pretraining_settings(config), make_mesh(config.mesh, claim_devices()[:1])
    setup = build_pretraining_setup(settings, settings.model_config(_PIECES), mesh)
    with mesh_context(mesh):
        state: TrainState = jax.block_until_ready(setup.create(seed=0))
    size = sum(x.nbytes for x in jax.tree.leaves(state))
    update = jax.jit(lambda state: jax.tree.map(lambda x: (x * 0.999).astype(x.dtype), state), donate_argnums=0)

    def updated() -> float:
        nonlocal state
        began = time.perf_counter()
        state = jax.block_until_ready(update(state))
        return time.perf_counter() - began

    updated()  # compiles
    alone = statistics.median(updated() for _ in range(_ALONE))
    before = _peak()
    print(f'{platform.processor() or platform.machine()}, jax {jax.__version__}: {size / 1e9:.2f} GB of state')
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        checkpoints = Checkpoints(pathlib.Path(folder, 'checkpoints'), keep=1)
        for number in range(1, 1 + _SAVES.value):
            copy = _copied(state)
            began = time.perf_counter()
            checkpoints.save(state, Position(number, 0, number), {'model': {}}, None)
            kept = time.perf_counter() - began
            meanwhile = []
            writing = threading.Thread(target=checkpoints.wait)
            writing.start()
            while writing.is_alive():
                meanwhile.append(updated())
            whole = time.perf_counter() - began
            print(
                f'save {number}: one copy {copy:.2f} s, kept waiting {kept:.2f} s, whole after {whole:.1f} s; '
                f'{len(meanwhile)} updates meanwhile: {meanwhile[0]:.2f} s the first, {max(meanwhile):.2f} s the '
                f'longest, {statistics.median(meanwhile):.2f} s the median, {alone:.2f} s alone'
            )
        checkpoints.close()
    print(f'at most {(_peak() - before) / size:.2f} times the state beside it')


if __name__ == '__main__':
    app.run(main)
