"""Saves checkpoints, or exports, in forks that are killed at file operations; looks at what each kill leaves.

    python tests/program/killed_saves.py first|next|export FOLDER STRIDE

A program of its own: a fork of a process in which JAX has begun would have its locks, and not its threads.
"""

import json
import os
import pathlib
import shutil
import sys

os.environ['JAX_PLATFORMS'] = 'cpu'

import numpy as np
import orbax.checkpoint as ocp
from killing import in_fork, killed_at_each

from bertjax.checkpoint import Checkpoints, Position
from bertjax.convert.orbax import export_orbax
from bertjax.model.config import BertConfig

CONFIG = {'steps': 4}


def state_at(step: int) -> dict[str, np.ndarray]:
    """Arrays that differ from step to step."""
    return {'kernel': np.full((3, 4), step, np.float32), 'count': np.asarray(step, np.int32)}


def save(folder: pathlib.Path, *steps: int) -> None:
    """What a training does: it looks for the newest checkpoint, and saves."""
    checkpoints = Checkpoints(folder / 'checkpoints', keep=1, log=lambda line: None)
    checkpoints.latest()
    for step in steps:
        checkpoints.save(state_at(step), Position(step, 0, 8 * step), CONFIG, None)
    checkpoints.close()


def check_saves(folder: pathlib.Path, *, least: int) -> None:
    """After a kill: the newest step is `least` or later, with its bits; and the same command goes on from there."""
    checkpoints = Checkpoints(folder / 'checkpoints', keep=1, log=lambda line: None)
    saved = checkpoints.latest()
    newest = saved.position.step if saved else 0
    assert newest >= least, f'step {newest} instead of {least}'
    if saved:
        restored = checkpoints.restore(newest, state_at(newest))
        assert all((restored[name] == x).all() for name, x in state_at(newest).items())
    checkpoints.close()
    save(folder, *(step for step in (2, 3) if step > newest))
    left = sorted(path.name for path in (folder / 'checkpoints').iterdir())
    # What the last save was to remove, the next one removes.
    assert left == ['3'] or (newest == 3 and left == ['2', '3']), left


def export(folder: pathlib.Path, value: int) -> None:
    """Parameters alone."""
    export_orbax({'kernel': np.full((3, 4), value, np.float32)}, BertConfig(vocab_size=8), folder / 'export')


def check_export(folder: pathlib.Path, *, least: int) -> None:
    """After a kill: the same command leaves the new export; before it, what is there is whole."""
    if (folder / 'export' / 'params').exists():
        with ocp.StandardCheckpointer() as checkpointer:
            assert checkpointer.restore(folder / 'export' / 'params')['kernel'][0, 0] in (1, 2)
    export(folder, 2)
    assert sorted(path.name for path in (folder / 'export').iterdir()) == ['checksum.json', 'model.json', 'params']
    with ocp.StandardCheckpointer() as checkpointer:
        assert checkpointer.restore(folder / 'export' / 'params')['kernel'][0, 0] == 2


def main(what: str, folder: pathlib.Path, stride: int) -> int:
    """How many kills; an assertion that fails ends it."""
    before, run = folder / 'before', folder / 'run'
    before.mkdir()
    begin = {'first': lambda: None, 'next': lambda: save(before, 1), 'export': lambda: export(before, 1)}[what]
    work = {'first': lambda: save(run, 2, 3), 'next': lambda: save(run, 2, 3), 'export': lambda: export(run, 2)}[what]
    check = check_export if what == 'export' else check_saves
    assert in_fork(begin) == 0
    shutil.copytree(before, run)
    kills = 0
    for number in killed_at_each(work, run, stride):
        assert in_fork(lambda: check(run, least=0 if what == 'first' else 1)) == 0, (
            f'after a kill at operation {number}'
        )
        shutil.rmtree(run)
        shutil.copytree(before, run)
        kills += 1
    return kills


if __name__ == '__main__':
    print(json.dumps(main(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]))))
