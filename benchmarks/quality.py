"""Time to quality: BERT-mini pre-trained by bertjax and by transformers with PyTorch, in turn, to what held-out loss?

    OMP_WAIT_POLICY=passive python benchmarks/quality.py --corpus='texts/*.txt' --tokenizer=vocab.txt

For each seed both begin with the same weights and train on the same rows (text, pairs, masks) with the same recipe:
AdamW, linear warm-up and decay, clipping, dropout, of which each draws its own. They take turns, a block of steps
each, in one process; held-out losses are measured at equal numbers of examples, of both by our evaluation on the same
rows. Prints what each reaches, the spread of the seeds, and examples a second. Making rows, evaluating and compiling
are left out of the times; compiling is printed.

Figures are kept in KEPT/SIZE-SEED.json as they come, and --report prints them, of a run that was stopped, too. A
finished seed is not run again, a stopped one is begun anew.
Where others use the machine, time of the processor on one core is what can be compared: `taskset -c 0` before, and
--threads=1. Needs the extra `bench`.
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
from bertjax.files.atomic import write_atomic
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.examples import StoreExamples
from bertjax.pretrain.run import Pretraining
from bertjax.pretrain.settings import pretraining_settings
from bertjax.train.phase import Phase
from bertjax.train.vmapped_runs import VmappedRun

_CORPUS = flags.DEFINE_string('corpus', 'pydoc:', 'As config.corpus.')
_TOKENIZER = flags.DEFINE_string('tokenizer', '', "As config.tokenizer; '': one of 4,096 pieces is trained.")
_SIZE = flags.DEFINE_enum('size', 'mini', ['tiny', 'mini', 'small'], 'A named size.')
_MODE = flags.DEFINE_enum('mode', 'eager', MODES, "transformers'; bfloat16 by autocast.")
_DTYPE = flags.DEFINE_enum('dtype', 'float32', ['float32', 'bfloat16'], 'Of our computation.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'Runs of each; a seed is of weights, order of the text, masks and dropout.')
_STEPS = flags.DEFINE_integer('steps', 96, 'Of a run.')
_EVERY = flags.DEFINE_integer('eval_every', 24, 'Steps between evaluations; divides --steps.')
_BLOCK = flags.DEFINE_integer('block', 8, 'Steps of one before the other has its turn; divides --eval_every.')
_BATCH = flags.DEFINE_integer('batch_size', 16, 'Rows of 128 a step.')
_RATE = flags.DEFINE_float('learning_rate', 1e-3, 'The highest.')
_DROPOUT = flags.DEFINE_float('dropout', 0.1, 'Of both kinds.')
_EVAL = flags.DEFINE_integer('eval_examples', 256, 'Held-out examples.')
_KEPT = flags.DEFINE_string('kept', 'out/quality', 'Where figures, tokens and plans are kept.')
_REPORT = flags.DEFINE_bool('report', False, 'Print what is kept, and run nothing.')
_THREADS = flags.DEFINE_integer('threads', 0, 'Of PyTorch; 0: its own choice. XLA takes the cores of the process.')

VERSIONS = {name: importlib.metadata.version(name) for name in ('jax', 'flax', 'torch', 'transformers')}


def recipe() -> ConfigDict:
    """Of both: configs/pretrain_mini.py, shorter, and with dropout."""
    config = pretraining_config(_SIZE.value, corpus=_CORPUS.value, tokenizer=_TOKENIZER.value)
    config.update(batch_size=_BATCH.value, steps=_STEPS.value, learning_rate=_RATE.value, warmup_fraction=0.1)
    config.update(eval_examples=_EVAL.value)
    config.optimizer.update(name='adamw', b2=0.98)
    config.model.update(dropout=_DROPOUT.value, attention_dropout=_DROPOUT.value, dtype=_DTYPE.value, scan_layers=False)
    config.vocab.size = 4096
    return config


def facts(seed: int) -> dict[str, Any]:
    """What kept figures must be of."""
    flag = {name: flags.FLAGS[name].value for name in ('mode', 'threads', 'block', 'eval_every')}
    return {'seed': seed, 'config': json.loads(recipe().to_json()), 'cores': len(os.sched_getaffinity(0)), **flag}


def path_of(seed: int) -> pathlib.Path:
    """The file of a seed's figures."""
    return pathlib.Path(_KEPT.value) / f'{_SIZE.value}-{seed}.json'


def kept(seed: int) -> dict[str, Any] | None:
    """A seed's figures, where there are any of these settings."""
    found = json.loads(path_of(seed).read_text(encoding='utf-8')) if path_of(seed).exists() else None
    return found if found and found['run'] == facts(seed) else None


def finished(seed: int) -> dict[str, Any] | None:
    """A seed's figures, where all of them are there."""
    found = kept(seed)
    return found if found and found['points'][-1]['examples'] == _STEPS.value * _BATCH.value else None


def timed_block(side: Any, numbered_rows: Sequence[tuple[int, Mapping[str, np.ndarray]]]) -> tuple[float, float]:
    """Seconds that passed, and of the processor, for a step on each batch."""
    start, used = time.perf_counter(), time.process_time()
    for first, rows in numbered_rows:
        side.step(first, rows)
    side.wait()
    return time.perf_counter() - start, time.process_time() - used


class Comparison:
    """Text, examples and one compiled step for all seeds."""

    def __init__(self, folder: pathlib.Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._run = Pretraining(pretraining_settings(recipe()), folder, make_mesh(recipe().mesh, claim_devices()))
        (self._phase,) = self._run.phases()
        start = time.perf_counter()
        self._phase.compile().prepare()
        self.compiling = time.perf_counter() - start

    def frequencies_alone(self) -> float:
        """The MLM loss on what is held out, for the frequencies of the training text's pieces (each counted once
        more)."""
        examples, count = self._run.heldout, min(_EVAL.value, self._run.heldout.cycle_length)
        train = self._run.stores[0].store.split('train')
        ids = np.concatenate([piece for i in range(train.num_documents) for piece in train.document(i)])
        counts = 1 + np.bincount(ids, minlength=self._run.tokenizer.vocab_size)
        rows = examples.batch(np.arange(count))
        return float(-np.log(counts / counts.sum())[rows['masked_ids'][rows['masked_weights'] > 0]].mean())

    def _seeded(self, seed: int) -> Phase:
        config = recipe()
        config.seed = seed
        settings, phase = pretraining_settings(config), self._phase
        plans = self._folder / 'store' / 'plans'
        examples = StoreExamples(settings, self._run.stores, self._run.tokenizer, plans)
        member = VmappedRun(examples.get(settings.first_shape, 'train', 0), _RATE.value, seed)
        return Phase(phase.settings, phase.setup, [member], phase.batches, evaluator=phase.evaluator)

    def train(self, seed: int) -> dict[str, Any]:
        """Both, from beginning to end; what is found is kept on the way."""
        phase, batch = self._seeded(seed), _BATCH.value
        examples, times = phase.members[0].examples, {name: [] for name in SIDES}
        with tempfile.TemporaryDirectory() as folder:
            sides = both(
                phase, self._run.settings, self._run.tokenizer, pathlib.Path(folder), mode=_MODE.value, seed=seed
            )
            found = {'run': facts(seed), 'date': datetime.date.today().isoformat(), 'versions': VERSIONS}
            found |= {'points': [], 'times': times}

            def measure(step: int) -> None:
                values = {name: phase.evaluator.run(side.params(pathlib.Path(folder))) for name, side in sides.items()}
                found['points'].append({'examples': step * batch, **values})
                write_atomic(path_of(seed), json.dumps(found, indent=1) + '\n')
                print(f'seed {seed}, {step * batch:6,} examples: {_shown(values)}', flush=True)

            measure(0)
            for begin in range(0, _STEPS.value, _BLOCK.value):
                firsts = [step * batch for step in range(begin, begin + _BLOCK.value)]
                rows = [(first, examples.batch(first + np.arange(batch))) for first in firsts]
                # Who begins changes, too.
                for name in SIDES if begin // _BLOCK.value % 2 else SIDES[::-1]:
                    times[name].append(timed_block(sides[name], rows))
                if (begin + _BLOCK.value) % _EVERY.value == 0:
                    measure(begin + _BLOCK.value)
        return found


def _shown(values: Mapping[str, Mapping[str, float]]) -> str:
    return ', '.join(f'{name} {each["loss"]:.3f} (MLM {each["mlm_loss"]:.3f})' for name, each in values.items())


def main(argv: list[str]) -> None:
    """Trains what is not kept yet, and prints."""
    del argv
    if _STEPS.value % _EVERY.value or _EVERY.value % _BLOCK.value:
        raise app.UsageError('--eval_every must divide --steps, and --block --eval_every')
    if _REPORT.value:
        results = [found for seed in range(_SEEDS.value) if (found := kept(seed))]
        if not any(result['times'][SIDES[0]] for result in results):
            raise app.UsageError(f'--kept={_KEPT.value}: nothing of these settings is there')
        print_tables(results)
        return
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if _THREADS.value:
        torch.set_num_threads(_THREADS.value)
    began = time.perf_counter()
    comparison = Comparison(pathlib.Path(_KEPT.value))
    results = [finished(seed) or comparison.train(seed) for seed in range(_SEEDS.value)]
    print_tables(results)
    last = [[result['points'][-1][name]['mlm_loss'] for result in results] for name in SIDES]
    means = ' and '.join(f'{statistics.fmean(each):.3f}' for each in last)
    print(f'MLM loss at the end {means}; the frequencies of the pieces alone give {comparison.frequencies_alone():.3f}')
    print(f'compiling took {comparison.compiling:.1f} s once for all seeds; {time.perf_counter() - began:.0f} s in all')


def print_tables(results: Sequence[Mapping[str, Any]]) -> None:
    """What ran, losses, speed."""
    versions = ', '.join(f'{name} {version}' for name, version in results[0]['versions'].items())
    print(
        f'{platform.processor() or platform.machine()}, {results[0]["run"]["cores"]} cores, {versions}; {_SIZE.value}, '
        f'{_BATCH.value} rows of 128, {_DTYPE.value} beside {_MODE.value}, dropout {_DROPOUT.value:g}'
    )
    print('held-out loss, MLM and NSP together, mean ± standard deviation over the seeds')
    print('\n'.join([*loss_table(results), *speed_lines(results, _BLOCK.value * _BATCH.value)]))


if __name__ == '__main__':
    app.run(main)
