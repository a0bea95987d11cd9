"""Fine-tuning on the CPU: bertjax compared with transformers' Trainer and PyTorch, in alternating epochs.

    python benchmarks/finetune.py --init=CHECKPOINT --data=GLUE

The script compares three trainings. Each runs in a process that waits while another process trains:

* bertjax, which packs rows, or pads them to a few lengths if that is estimated to be faster;
* Trainer as set up by examples/pytorch/text-classification/run_glue.py, with all rows padded to 128;
* Trainer with rows grouped by length and padded to the longest row of their batch.

Checkpoint, records, batch size, learning rate and number of threads are the same. The script prints rows per second,
the compile time, the final figures on dev, and the ratios, as medians over the epochs.

Needs the extra `bench`. CHECKPOINT is the directory of a BERT model, and GLUE is the output of GLUE's download script.
--rows=0 uses all of train. 2,048 rows of both tasks take half an hour on 2 cores.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import platform
import statistics
import tempfile
import time

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax
import torch
import transformers
from absl import app, flags
from ml_collections import ConfigDict
from peers.trainer import Peer

from bertjax.config.recipes import finetuning_config
from bertjax.cores import schedulable_cores
from bertjax.finetune.run import Finetuning
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.task_data import data_from_source
from bertjax.parallel.compile_cache import VARIABLE
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.partition import mesh_context

_INIT = flags.DEFINE_string('init', None, 'See config.init.', required=True)
_DATA = flags.DEFINE_string('data', None, 'The folder of GLUE, with RTE/ and SST-2/.', required=True)
_TASKS = flags.DEFINE_list('tasks', ['rte', 'sst2'], 'The tasks to run.')
_ROWS = flags.DEFINE_integer('rows', 2048, 'The number of training records, from the first; 0: all.')
_EPOCHS = flags.DEFINE_integer('epochs', 3, 'The number of epochs.')
_RATE = flags.DEFINE_float('learning_rate', 5e-5, 'See config.learning_rate.')

FOLDERS = {'rte': 'RTE', 'sst2': 'SST-2'}
OURS = 'bertjax'
THEIRS = {'Trainer, padded to 128': 'max_length', 'Trainer, group_by_length': 'group_by_length'}

Turns = multiprocessing.connection.Connection


def recipe(task: str, folder: str, rows: int, epochs: int, learning_rate: float) -> ConfigDict:
    """Returns the config of all three trainings; writes the first rows of the task to a subfolder of `folder`."""
    task_folder = pathlib.Path(folder) / FOLDERS[task]
    if not task_folder.exists():
        task_folder.mkdir()
        for name in ('train.tsv', 'dev.tsv'):
            lines = (pathlib.Path(_DATA.value) / FOLDERS[task] / name).read_text(encoding='utf-8').splitlines(True)
            task_folder.joinpath(name).write_text(''.join(lines[: rows + 1 if rows and name == 'train.tsv' else None]))
    config = finetuning_config('glue', task=task, long='truncate', stride=0)
    config.init, config.data, config.epochs, config.learning_rate = _INIT.value, str(task_folder), epochs, learning_rate
    return config


def ours(config: ConfigDict, folder: str, turns: Turns) -> None:
    """On each message, trains an epoch with bertjax and sends the seconds. One more message gets the figures on dev."""
    os.environ[VARIABLE] = ''  # no cache, because compilation is also measured
    data = data_from_source(finetuning_settings(config), pathlib.Path(folder))
    tuning = Finetuning(data, pathlib.Path(folder), make_mesh(config.mesh, claim_devices()))
    (phase,), epochs = tuning.phases(), int(config.epochs)
    start = time.perf_counter()
    step = phase.compile()
    step.prepare()
    rows = len(data.split('train').features)
    layout = tuning.describe().splitlines()[-1]
    turns.send({'compiling': time.perf_counter() - start, 'rows': rows, 'layout': layout})
    with mesh_context(tuning.setup.mesh):
        state = tuning.init_state()
    with contextlib.closing(phase.load(0)) as batches:
        for _ in range(epochs):
            turns.recv()
            start = time.perf_counter()
            for _ in range(tuning.resolved['steps'] // epochs):
                state, metrics = step(state, next(batches))
            jax.block_until_ready((state, metrics))
            turns.send(time.perf_counter() - start)
    turns.recv()
    turns.send(phase.evaluator.run(state.params)[0])


class InTurn(transformers.TrainerCallback):
    """Waits for a message before each epoch, and sends the seconds of the epoch."""

    def __init__(self, turns: Turns):
        self._turns = turns

    def on_epoch_begin(self, *_: object, **__: object) -> None:
        self._turns.recv()
        self._start = time.perf_counter()

    def on_epoch_end(self, *_: object, **__: object) -> None:
        self._turns.send(time.perf_counter() - self._start)


def theirs(config: ConfigDict, folder: str, turns: Turns, padding: str) -> None:
    """Does the same as `ours` with transformers' Trainer."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(schedulable_cores())  # like XLA; torch's default does not use hyper-threads
    data = data_from_source(finetuning_settings(config), pathlib.Path(folder))
    peer = Peer(config, data, data.split('train', training=True), padding=padding, callbacks=[InTurn(turns)])
    turns.send({'compiling': 0.0})
    peer.trainer.train()
    turns.recv()
    turns.send(peer.results()['splits']['dev'])


def compare(config: ConfigDict, folder: str) -> None:
    context = multiprocessing.get_context('spawn')
    turns: dict[str, Turns] = {}
    children = []
    for number, name in enumerate([OURS, *THEIRS]):
        turns[name], end = context.Pipe()
        target, more = (ours, ()) if name == OURS else (theirs, (THEIRS[name],))
        children.append(context.Process(target=target, args=(config, f'{folder}/{number}', end, *more), daemon=True))
        children[-1].start()
        end.close()  # so that `recv` raises if the child fails
    facts = {name: pipe.recv() for name, pipe in turns.items()}

    def turn(name: str) -> object:
        turns[name].send(None)
        return turns[name].recv()

    rounds = [{name: turn(name) for name in turns} for _ in range(int(config.epochs))]
    figures = {name: turn(name) for name in turns}
    for child in children:
        child.join()
    show(config, facts, rounds, figures)


def show(config: ConfigDict, facts: dict, rounds: list[dict[str, float]], figures: dict[str, dict]) -> None:
    rows, compiling = facts[OURS]['rows'], facts[OURS]['compiling']
    totals = {name: sum(seconds[name] for seconds in rounds) + facts[name]['compiling'] for name in figures}
    print(f'\n{FOLDERS[config.task.task]}: {rows:,} rows, {len(rounds)} epochs, batches of {config.batch_size}')
    print(f'bertjax: {facts[OURS]["layout"]}; compilation took {compiling:.1f} s')
    for name, dev_figures in figures.items():
        rate = rows / statistics.median(seconds[name] for seconds in rounds)
        dev = ', '.join(f'{metric} {value:.3f}' for metric, value in dev_figures.items())
        print(f'{name:>25}: {rate:7.1f} rows/s, {totals[name]:6.0f} s for all epochs; dev {dev}')
    for name in THEIRS:
        ratio = statistics.median(seconds[name] / seconds[OURS] for seconds in rounds)
        print(f'{ratio:.2f} times as fast as {name}; with compilation {totals[name] / totals[OURS]:.2f}')


def main(argv: list[str]) -> None:
    del argv
    cores = schedulable_cores()
    print(
        f'{platform.processor() or platform.machine()}, {cores} threads each, jax {jax.__version__}, '
        f'torch {torch.__version__}, transformers {transformers.__version__}'
    )
    for task in _TASKS.value:
        with tempfile.TemporaryDirectory() as folder:
            compare(recipe(task, folder, _ROWS.value, _EPOCHS.value, _RATE.value), folder)


if __name__ == '__main__':
    app.run(main)
