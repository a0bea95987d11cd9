"""Saves checkpoints or exports in forks that are killed at file operations, and checks the files after each kill.

    python tests/program/killed_saves.py FOLDER first:STRIDE next:STRIDE export:STRIDE

This is a separate program because a fork of a process that uses JAX has the locks of JAX but not its threads.
"""

import json
import os
import pathlib
import shutil
import sys
import types

os.environ['JAX_PLATFORMS'] = 'cpu'

import numpy as np
import orbax.checkpoint as ocp
from killing import in_fork, kill_at_each

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.checkpoint.position import Position
from bertjax.convert.content import ExportContent
from bertjax.convert.orbax import export_orbax
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig

CONFIG = {'steps': 4}


def state_at(step: int) -> dict[str, np.ndarray]:
    """Returns arrays that differ from step to step."""
    return {'kernel': np.full((3, 4), step, np.float32), 'count': np.asarray(step, np.int32)}


def save(folder: pathlib.Path, *steps: int) -> None:
    """Looks for the newest checkpoint and saves others, as training does."""
    checkpoints = Checkpoints(folder / 'checkpoints', keep=1, log=lambda line: None)
    checkpoints.latest()
    for step in steps:
        checkpoints.save(state_at(step), Position(step, 0, 8 * step), CONFIG, None)
    checkpoints.close()


def check_saves(folder: pathlib.Path, *, least: int) -> None:
    """Checks after a kill that step `least` or a later one is restored exactly and that saving can continue."""
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
    # A checkpoint that a killed save did not remove is removed by the next save.
    assert left == ['3'] or (newest == 3 and left == ['2', '3']), left


def export(folder: pathlib.Path, value: int) -> None:
    """Exports parameters that have this value."""
    params, tokenizer = {'kernel': np.full((3, 4), value, np.float32)}, types.SimpleNamespace(save=lambda folder: None)
    module = BertForPreTraining(BertConfig(vocab_size=8))
    export_orbax(ExportContent(module, params, tokenizer), folder / 'export')


def check_export(folder: pathlib.Path, *, least: int) -> None:
    """Checks after a kill that an existing export is complete, and that the same export can be repeated."""
    if (folder / 'export' / 'params').exists():
        with ocp.StandardCheckpointer() as checkpointer:
            assert checkpointer.restore(folder / 'export' / 'params')['kernel'][0, 0] in (1, 2)
    export(folder, 2)
    assert sorted(path.name for path in (folder / 'export').iterdir()) == ['checksum.json', 'model.json', 'params']
    with ocp.StandardCheckpointer() as checkpointer:
        assert checkpointer.restore(folder / 'export' / 'params')['kernel'][0, 0] == 2


def main(what: str, folder: pathlib.Path, stride: int) -> int:
    """Kills at every `stride`-th operation, checks the files, and returns the number of kills."""
    before, run = folder / what / 'before', folder / what / 'run'
    before.mkdir(parents=True)
    prepare = {'first': lambda: None, 'next': lambda: save(before, 1), 'export': lambda: export(before, 1)}[what]
    work = {'first': lambda: save(run, 2, 3), 'next': lambda: save(run, 2, 3), 'export': lambda: export(run, 2)}[what]
    check = check_export if what == 'export' else check_saves
    assert in_fork(prepare) == 0
    shutil.copytree(before, run)
    kills = 0
    for number in kill_at_each(work, run, stride):
        assert in_fork(lambda: check(run, least=0 if what == 'first' else 1)) == 0, (
            f'after a kill at operation {number}'
        )
        shutil.rmtree(run)
        shutil.copytree(before, run)
        kills += 1
    return kills


if __name__ == '__main__':
    works = dict(argument.split(':') for argument in sys.argv[2:])
    print(json.dumps({what: main(what, pathlib.Path(sys.argv[1]), int(stride)) for what, stride in works.items()}))
