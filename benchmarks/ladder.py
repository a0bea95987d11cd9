"""The ladder from BERT's recipe to that of configs/budget.py: one change at a time, in equal processor time.

    python benchmarks/ladder.py --corpus='TEXTS/*.txt.gz' --heldout=FILE.txt --pairs=pairs.jsonl --minutes=20

A rung keeps the changes of the rungs below it that have `kept=True`. Every rung of bertjax is a run of `python -m
bertjax.main`, and its number of steps follows from the processor time. A short run measures the time of a step once and
writes it to KEPT/speeds. Later runs use this time, also on other machines, so they have the same number of steps. A
rung with arrays of the same shapes as a measured rung may use a copy of that rung's file in KEPT/speeds. A finished run
writes KEPT/NAME-SEED-MINUTESm.json and is not repeated. Small models waste less processor time on one core than on two:
start the program with `taskset -c 0`, and a second one with `taskset -c 1`.

The measures are the masked-LM loss on the held-out text with 15 % masks, in nats per piece and in bits per byte (which
are comparable across vocabularies), and the accuracy on the minimal pairs. A tenth of BLiMP is enough:
zcat blimp.jsonl.gz | awk 'NR % 10 == 1' > pairs.jsonl.

benchmarks/ladder_report.py prints the table of the results. The text and the pairs do not come with bertjax. The
runs of transformers need the extra `bench`.
"""

import datetime
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
from typing import Any

from absl import app, flags
from ladder_rungs import LADDER, Rung, rung_keys

from bertjax.cores import schedulable_cores
from bertjax.files.atomic import write_atomic
from bertjax.pretrain.heldout import split_name
from bertjax.text.tokenizer import load_tokenizer

# Start this program in the top folder of the checkout, because the runs resolve relative paths there.
_CORPUS = flags.DEFINE_string('corpus', None, 'The text to train on, see config.corpus.')
_HELDOUT = flags.DEFINE_string('heldout', None, 'A file of held-out text.')
_PAIRS = flags.DEFINE_string('pairs', '', 'A file of minimal pairs, see configs/minimal_pairs.py; empty: none.')
_MINUTES = flags.DEFINE_float('minutes', 20.0, 'The processor time of a run, in minutes.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'The seeds.')
_ONLY = flags.DEFINE_list('only', [], 'The names of rungs; default: all.')
_OUT = flags.DEFINE_string('out', 'out/ladder', 'The folder of the runs.')
_KEPT = flags.DEFINE_string('kept', 'docs/results/ladder', 'The folder of the results.')

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


class Run:
    """A run of a rung with a seed."""

    def __init__(self, rung: Rung, seed: int):
        self.rung, self.seed, self.keys = rung, seed, rung_keys(rung)
        slug = ''.join(c if c.isalnum() else '_' for c in rung.name)
        self.name = f'{slug}-{seed}-{_MINUTES.value:g}m'
        self.probe = pathlib.Path(_OUT.value) / f'{slug}-probe'
        self.speed = pathlib.Path(_KEPT.value) / 'speeds' / f'{slug}.json'
        self.kept, self.folder = pathlib.Path(_KEPT.value) / f'{self.name}.json', pathlib.Path(_OUT.value) / self.name

    def train(
        self, folder: pathlib.Path, steps: int, recipe: str = 'configs/pretrain_tiny.py:adam', **more: Any
    ) -> float:
        """Trains in `folder`, unless the run is finished, and returns the used processor time in seconds."""
        shared = {} if more.get('run') == 'corpus' else self.text_keys()
        keys = self.keys | {
            'corpus': _CORPUS.value, 'heldout_texts': f'other={_HELDOUT.value}', 'seed': self.seed, 'steps': steps or 1,
            'eval_every': 0, 'checkpoint_every': 0, 'checkpoint_minutes': 10, 'eval_examples': 2048,
            'pair_plans': 2, **shared, **more,
        }  # fmt: skip
        command = [sys.executable, '-m', 'bertjax.main', f'--config={recipe}', f'--workdir={folder}']
        return _processor_time([*command, *(f'--config.{key}={value}' for key, value in keys.items())])

    def text_keys(self) -> dict[str, pathlib.Path]:
        """Makes the tokenizer and the token store, once per size of the vocabulary, and returns their keys."""
        folder = pathlib.Path(_OUT.value) / f'text-{self.keys["vocab.size"]}'
        if not (folder / 'store' / 'manifest.json').exists():
            self.train(folder, 0, run='corpus')
        return {'tokenizer': folder / 'tokenizer', 'data': folder / 'store'}

    def seconds_per_step(self) -> float:
        """Returns the processor time of a step, which is measured once for all seeds and lengths of runs.

        The result is the number of cores times the shortest wall time of a step (each value is a mean over two steps),
        because other programs on the machine lengthen the processor time.
        """
        if not self.speed.exists():
            cores = schedulable_cores()
            speed = {
                'seconds_per_step': cores * min(self._step_times()), 'cores': cores, 'cpu': _cpu(),
                'date': f'{datetime.date.today()}',
            }  # fmt: skip
            self.speed.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.speed, json.dumps(speed, indent=1) + '\n')
        return json.loads(self.speed.read_text())['seconds_per_step']

    def _step_times(self) -> list[float]:
        if not (self.probe / 'summary.json').exists():
            self.train(self.probe, 60, seed=0, eval_examples=64, log_every=2)
        rows = [json.loads(line) for line in (self.probe / 'metrics.jsonl').read_text().splitlines()]
        seconds = [row['seconds_per_step'] for row in rows if row['split'] == 'train']
        return seconds[:-1]  # the last row waits for no further step

    def fit(self, steps: int) -> float:
        """Trains in the folder of the run, and returns the processor time in seconds."""
        return self.train(self.folder, steps)

    def finish(self) -> dict[str, Any]:
        """Trains for --minutes of processor time, measures, and writes the result."""
        steps = round(60 * _MINUTES.value / self.seconds_per_step())
        seconds = self.fit(steps)
        rows = [json.loads(line) for line in (self.folder / 'metrics.jsonl').read_text().splitlines()]
        losses = {row['step']: row['mlm_loss'] for row in rows if row['split'] == split_name('other')}
        loss = losses[0 if self.rung.peer else steps]
        result = {
            'name': self.rung.name, 'seed': self.seed, 'minutes': _MINUTES.value, 'steps': steps,
            'seconds_per_step': self.seconds_per_step(), 'seconds': seconds,
            'mlm_loss': loss, 'bits_per_byte': self._bits_per_byte(loss), 'keys': self.keys,
            'date': f'{datetime.date.today()}',
        }  # fmt: skip
        if _PAIRS.value:
            result['pairs'] = self._pairs()
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self.kept, json.dumps(result, indent=1) + '\n')
        return result

    def _bits_per_byte(self, loss: float) -> float:
        tokenizer = load_tokenizer(self.folder / 'tokenizer')
        lines = pathlib.Path(_HELDOUT.value).read_text(encoding='utf-8').splitlines()
        pieces = sum(map(len, tokenizer.encode(lines)))
        return loss / math.log(2) * pieces / sum(len(line.encode()) for line in lines)

    def _pairs(self) -> dict[str, float]:
        arguments = ['--config=configs/minimal_pairs.py', f'--workdir={self.folder}', f'--config.input={_PAIRS.value}']
        _processor_time([sys.executable, '-m', 'bertjax.main', *arguments])
        (path,) = (self.folder / 'minimal_pairs').glob('*.json')
        return {name: json.loads(path.read_text())[name] for name in ('accuracy', 'standard_error')}


_PEER_SIZE = {'layers': 'num_layers', 'width': 'width', 'heads': 'num_heads'}


class Peer(Run):
    """A run of transformers' Trainer, whose model bertjax measures."""

    def _step_times(self) -> list[float]:
        if not (self.probe / 'seconds.json').exists():
            self._train(self.probe, 20)
        return json.loads((self.probe / 'seconds.json').read_text())

    def fit(self, steps: int) -> float:
        """Trains, evaluates the model in a run of bertjax, and returns the processor seconds of the training."""
        folder = self.folder.with_name(f'{self.name}-trainer')
        seconds = self._train(folder, steps)
        self.keys = {key: value for key, value in self.keys.items() if not key.startswith('model.')}
        mode = {'pairs.mode': 'full_sentences', 'model.num_segments': 0 if self.rung.peer == 'modernbert' else 2}
        self.train(self.folder, 1, 'configs/adapt.py', init=folder / 'model', learning_rate=1e-12, **mode)
        return seconds

    def _train(self, folder: pathlib.Path, steps: int) -> float:
        size = {name: self.keys[f'model.{key}'] for name, key in _PEER_SIZE.items()}
        settings = {
            **size, 'model': self.rung.peer, 'corpus': _CORPUS.value, 'seq_len': 512, 'steps': steps, 'seed': self.seed,
            'tokenizer': str(self.text_keys()['tokenizer']),
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        return _processor_time([sys.executable, 'benchmarks/peers/masked_lm.py', str(folder), json.dumps(settings)])


def _processor_time(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ | {'JAX_PLATFORMS': 'cpu'}, capture_output=True)
    if done.returncode:
        raise SystemExit(f'{" ".join(command)}\n{done.stderr.decode()[-2000:]}')
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(getattr(after, kind) - getattr(before, kind) for kind in ('ru_utime', 'ru_stime'))


def _cpu() -> str:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    return next((line.partition(': ')[2] for line in lines if line.startswith('model name')), '')


def main(_: Any) -> None:
    if unknown := {*_ONLY.value} - {rung.name for rung in LADDER}:
        raise SystemExit(f'--only: found no rung {sorted(unknown)}; a name with a comma needs "quotes" within the list')
    runs = [(Peer if rung.peer else Run)(rung, int(seed)) for seed in _SEEDS.value for rung in LADDER]
    runs = [run for run in runs if not run.kept.exists() and (not _ONLY.value or run.rung.name in _ONLY.value)]
    for run in runs:  # first, while the machine does nothing else
        print(f'{run.rung.name}: {run.seconds_per_step():.3f} s per step', flush=True)
    for run in runs:
        result = run.finish()
        seconds, loss = result['seconds'], result['mlm_loss']
        print(f'{run.name}: {result["steps"]} steps, {seconds:.0f} s, loss {loss:.3f}', flush=True)


if __name__ == '__main__':
    app.run(main)
