"""Time to quality: the held-out loss of BERT-mini, pre-trained by bertjax and by transformers with PyTorch.

    OMP_WAIT_POLICY=passive python benchmarks/quality.py --corpus='texts/*.txt' --tokenizer=vocab.txt

For each seed, both libraries start from the same weights, and train on the same rows (text, pairs, masks) with the same
recipe: AdamW, linear warm-up and decay, clipping, and dropout with different random bits. They alternate in blocks of
steps, in one process. After equal numbers of examples, bertjax evaluates both models on the same held-out rows. The
script prints the losses, their standard deviation over the seeds, and examples per second. The times exclude making
rows, evaluation and compilation. The compile time is printed separately.

Figures are written to KEPT/SIZE-SEED.json during the run. --report prints them, even if a run was interrupted. A
finished seed is not repeated. An interrupted seed starts again. On a shared machine, compare the CPU times on one core:
run with `taskset -c 0` and --threads=1. Needs the extra `bench`.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import numpy as np
import torch
import transformers
from absl import app, flags
from ml_collections import ConfigDict
from quality_table import SIDES, loss_table, speed_lines
from sides import MODES, both

from bertjax.config.recipes import pretraining_config
from bertjax.cores import schedulable_cores
from bertjax.files.atomic import write_atomic
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import Pretraining
from bertjax.pretrain.settings import pretraining_settings
from bertjax.training.phase import Phase
from bertjax.training.vmapped_runs import VmappedRun

_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'See config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', '', "See config.tokenizer; '' trains a vocabulary of 4,096 pieces.")
_SIZE = flags.DEFINE_enum('size', 'mini', ['tiny', 'mini', 'small'], 'The size of the model.')
_MODE = flags.DEFINE_enum('mode', 'eager', MODES, 'The mode of transformers; bfloat16 is by autocast.')
_DTYPE = flags.DEFINE_enum('dtype', 'float32', ['float32', 'bfloat16'], 'The dtype of bertjax.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'The number of seeds, for weights, order of the text, masks and dropout.')
_STEPS = flags.DEFINE_integer('steps', 96, 'The number of steps of a run.')
_EVERY = flags.DEFINE_integer('eval_every', 24, 'The number of steps between evaluations; divides --steps.')
_BLOCK = flags.DEFINE_integer('block', 8, 'The number of steps of a block; divides --eval_every.')
_BATCH = flags.DEFINE_integer('batch_size', 16, 'The number of rows of 128 per step.')
_RATE = flags.DEFINE_float('learning_rate', 1e-3, 'The peak learning rate.')
_DROPOUT = flags.DEFINE_float('dropout', 0.1, 'The rate of dropout and attention dropout.')
_EVAL = flags.DEFINE_integer('eval_examples', 256, 'The number of held-out examples.')
_KEPT = flags.DEFINE_string('kept', 'out/quality', 'The folder of figures, tokens and plans.')
_REPORT = flags.DEFINE_bool('report', False, 'Print the figures in --kept, and run nothing.')
_THREADS = flags.DEFINE_integer(
    'threads', 0, 'The number of threads of PyTorch; 0: its default. XLA uses all cores of the process.'
)

VERSIONS = {name: importlib.metadata.version(name) for name in ('jax', 'flax', 'torch', 'transformers')}


def recipe() -> ConfigDict:
    """Returns the config of both trainings: configs/pretrain_mini.py, shorter and with dropout."""
    config = pretraining_config(_SIZE.value, corpus=_CORPUS.value, tokenizer=_TOKENIZER.value)
    config.update(batch_size=_BATCH.value, steps=_STEPS.value, learning_rate=_RATE.value, warmup_fraction=0.1)
    config.update(eval_examples=_EVAL.value)
    config.optimizer.update(name='adamw', b2=0.98)
    config.model.update(dropout=_DROPOUT.value, attention_dropout=_DROPOUT.value, dtype=_DTYPE.value, scan_layers=False)
    config.vocab.size = 4096
    return config


def facts(seed: int) -> dict[str, Any]:
    """Returns the settings that identify the figures of a seed."""
    flag = {name: flags.FLAGS[name].value for name in ('mode', 'threads', 'block', 'eval_every')}
    return {'seed': seed, 'config': json.loads(recipe().to_json()), 'cores': schedulable_cores(), **flag}


def path_of(seed: int) -> pathlib.Path:
    return pathlib.Path(_KEPT.value) / f'{_SIZE.value}-{seed}.json'


def read_figures(seed: int) -> dict[str, Any] | None:
    """Returns the figures of a seed; None if there are no figures with these settings."""
    figures = json.loads(path_of(seed).read_text(encoding='utf-8')) if path_of(seed).exists() else None
    return figures if figures and figures['run'] == facts(seed) else None


def read_finished(seed: int) -> dict[str, Any] | None:
    """Returns the figures of a seed; None if its run has not finished."""
    figures = read_figures(seed)
    return figures if figures and figures['points'][-1]['examples'] == _STEPS.value * _BATCH.value else None


def timed_block(side: Any, numbered_rows: Sequence[tuple[int, Mapping[str, np.ndarray]]]) -> tuple[float, float]:
    """Runs a step on each batch; returns the wall time and the CPU time in seconds."""
    start, used = time.perf_counter(), time.process_time()
    for first, rows in numbered_rows:
        side.step(first, rows)
    side.wait()
    return time.perf_counter() - start, time.process_time() - used


class Comparison:
    """The text, the examples and the compiled step, which all seeds share."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._run = Pretraining(pretraining_settings(recipe()), folder, make_mesh(recipe().mesh, claim_devices()))
        (self._phase,) = self._run.phases()
        start = time.perf_counter()
        self._phase.compile().prepare()
        self.compiling = time.perf_counter() - start

    def frequencies_alone(self) -> float:
        """Returns the held-out MLM loss of the piece frequencies in the training text, with 1 added to each count."""
        examples, count = self._run.heldout, min(_EVAL.value, self._run.heldout.cycle_length)
        train = self._run.examples.stores[0].split('train')
        ids = np.concatenate([piece for i in range(train.num_documents) for piece in train.document(i)])
        counts = 1 + np.bincount(ids, minlength=self._run.tokenizer.vocab_size)
        rows = examples.batch(np.arange(count))
        return float(-np.log(counts / counts.sum())[rows['masked_ids'][rows['masked_weights'] > 0]].mean())

    def _seeded(self, seed: int) -> Phase:
        config = recipe()
        config.seed = seed
        settings, phase = pretraining_settings(config), self._phase
        plans = self._folder / 'store' / 'plans'
        examples = StoreExamples(settings, self._run.examples.stores, self._run.tokenizer, plans)
        member = VmappedRun(examples.get(settings.first_shape, 'train', 0), _RATE.value, seed)
        return Phase(phase.settings, phase.setup, [member], phase.batches, evaluator=phase.evaluator)

    def train(self, seed: int) -> dict[str, Any]:
        """Trains both models from start to end; writes the figures after each evaluation."""
        phase, batch = self._seeded(seed), _BATCH.value
        examples, times = phase.members[0].examples, {name: [] for name in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            sides = both(
                phase, self._run.settings, self._run.tokenizer, pathlib.Path(folder), mode=_MODE.value, seed=seed
            )
            figures = {'run': facts(seed), 'date': datetime.date.today().isoformat(), 'versions': VERSIONS}
            figures |= {'points': [], 'times': times}

            def measure(step: int) -> None:
                params = {name: side.params(pathlib.Path(folder)) for name, side in sides.items()}
                values = {name: phase.evaluator.run(tree)[0] for name, tree in params.items()}
                figures['points'].append({'examples': step * batch, **values})
                write_atomic(path_of(seed), json.dumps(figures, indent=1) + '\n')
                print(f'seed {seed}, {step * batch:6,} examples: {_shown(values)}', flush=True)

            measure(0)
            for begin in range(0, _STEPS.value, _BLOCK.value):
                firsts = [step * batch for step in range(begin, begin + _BLOCK.value)]
                rows = [(first, examples.batch(first + np.arange(batch))) for first in firsts]
                # From block to block, the sides swap which of them trains first.
                for name in SIDES if begin // _BLOCK.value % 2 else SIDES[::-1]:
                    times[name].append(timed_block(sides[name], rows))
                if (begin + _BLOCK.value) % _EVERY.value == 0:
                    measure(begin + _BLOCK.value)
        return figures


def _shown(values: Mapping[str, Mapping[str, float]]) -> str:
    return ', '.join(f'{name} {each["loss"]:.3f} (MLM {each["mlm_loss"]:.3f})' for name, each in values.items())


def main(argv: list[str]) -> None:
    del argv
    if _STEPS.value % _EVERY.value or _EVERY.value % _BLOCK.value:
        raise app.UsageError('--eval_every must divide --steps, and --block must divide --eval_every')
    if _REPORT.value:
        results = [figures for seed in range(_SEEDS.value) if (figures := read_figures(seed))]
        if not any(result['times'][SIDES[0]] for result in results):
            raise app.UsageError(f'--kept={_KEPT.value}: found no figures with these settings')
        print_tables(results)
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if _THREADS.value:
        torch.set_num_threads(_THREADS.value)
    began = time.perf_counter()
    comparison = Comparison(pathlib.Path(_KEPT.value))
    results = [read_finished(seed) or comparison.train(seed) for seed in range(_SEEDS.value)]
    print_tables(results)
    last = [[result['points'][-1][name]['mlm_loss'] for result in results] for name in SIDES]
    means = ' and '.join(f'{statistics.fmean(each):.3f}' for each in last)
    print(f'MLM loss at the end {means}; the frequencies of the pieces alone give {comparison.frequencies_alone():.3f}')
    print(
        f'compilation took {comparison.compiling:.1f} s, once for all seeds; total {time.perf_counter() - began:.0f} s'
    )


def print_tables(results: Sequence[Mapping[str, Any]]) -> None:
    versions = ', '.join(f'{name} {version}' for name, version in results[0]['versions'].items())
    print(
        f'{platform.processor() or platform.machine()}, {results[0]["run"]["cores"]} cores, {versions}; {_SIZE.value}, '
        f'{_BATCH.value} rows of 128, {_DTYPE.value} compared with {_MODE.value}, dropout {_DROPOUT.value:g}'
    )
    print('held-out loss, MLM and NSP together, mean ± standard deviation over the seeds')
    print('\n'.join([*loss_table(results), *speed_lines(results, _BLOCK.value * _BATCH.value)]))


if __name__ == '__main__':
    app.run(main)
