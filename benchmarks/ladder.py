"""The ladder from BERT's recipe to that of configs/budget.py: one change at a time, in equal processor time.

    python benchmarks/ladder.py --corpus='TEXTS/*.txt.gz' --heldout=FILE.txt --pairs=pairs.jsonl --minutes=20

A rung keeps the changes of the rungs below it. The change of a side step applies only to this side step. Every rung is
a run of `python -m bertjax.main`. Its number of steps fits the processor time. A short run measures the time of a step
once and writes it to KEPT/speeds, so that later runs, also on other machines, take the number of steps that fits this
machine. A finished run writes KEPT/NAME-SEED-MINUTESm.json and is not repeated. Small models waste less processor time
on one core than on two: start the program with `taskset -c 0`, and a second one with `taskset -c 1`.

The measures are the masked-LM loss on the held-out text with 15 % masks, in nats per piece and in bits per byte (which
are comparable across vocabularies), and the accuracy on the minimal pairs. A tenth of BLiMP is enough:
zcat blimp.jsonl.gz | awk 'NR % 10 == 1' > pairs.jsonl.

    python benchmarks/ladder.py --report --picture=docs/budget.png

prints the table of the finished runs, and a fit of the loss as a function of size and tokens for config.budget, and
draws the losses over the processor time. The text and the pairs do not come with bertjax.
"""

import dataclasses
import datetime
import json
import math
import os
import pathlib
import resource
import subprocess
import sys
from typing import Any

import numpy as np
import scipy.optimize
from absl import app, flags

from bertjax.files.atomic import write_atomic
from bertjax.pretrain.budget import SIZES, gated_width, inner_parameters
from bertjax.pretrain.heldout_texts import split_name
from bertjax.text.tokenizer import load_tokenizer

_CORPUS = flags.DEFINE_string('corpus', None, 'The text to train on, see config.corpus.')
_HELDOUT = flags.DEFINE_string('heldout', None, 'A file of held-out text.')
_PAIRS = flags.DEFINE_string('pairs', '', 'A file of minimal pairs, see configs/minimal_pairs.py; empty: none.')
_MINUTES = flags.DEFINE_float('minutes', 20.0, 'The processor time of a run, in minutes.')
_SEEDS = flags.DEFINE_list('seeds', ['0'], 'The seeds.')
_ONLY = flags.DEFINE_list('only', [], 'The names of rungs; default: all.')
_OUT = flags.DEFINE_string('out', 'out/ladder', 'The folder of the runs.')
_KEPT = flags.DEFINE_string('kept', 'docs/results/ladder', 'The folder of the results.')
_REPORT = flags.DEFINE_bool('report', False, 'Print the table of the finished runs, and run nothing.')
_PICTURE = flags.DEFINE_string('picture', '', 'The picture that --report draws; empty: none.')

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
Keys = dict[str, Any]

# BERT's recipe (arXiv 1810.04805) for a model that trains in minutes: 3 layers of width 192.
BERT: Keys = {
    'vocab.size': 4096, 'seq_len': 64, 'max_predictions': 10, 'batch_size': 64, 'learning_rate': 1e-3,
    'warmup_fraction': 0.1, 'corpus_options.heldout': 0.02, 'model.num_layers': 3, 'model.width': 192,
    'model.num_heads': 3, 'model.mlp_dim': 768, 'model.dropout': 0.1, 'model.attention_dropout': 0.1,
    'model.max_positions': 256, 'model.scan_layers': False, 'export_formats': 'orbax',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Rung:
    """One change: its name, its keys, and whether the rungs above keep it."""

    name: str
    keys: Keys
    kept: bool = True
    peer: str = ''  # the model that transformers' Trainer trains in place of bertjax


def _size_keys(layers: int, width: int, heads: int) -> Keys:
    return {
        'model.num_layers': layers, 'model.width': width, 'model.num_heads': heads,
        'model.mlp_dim': gated_width(width),
    }  # fmt: skip


LADDER = (
    Rung('bert', {}),
    Rung('no dropout', {'model.dropout': 0.0, 'model.attention_dropout': 0.0}),
    Rung('no next sentence', {'pairs.mode': 'full_sentences', 'model.num_segments': 0}),
    Rung('pre-norm', {'model.pre_norm': True, 'model.first_attention_norm': False}),
    Rung('rope', {'model.position': 'rope'}),
    Rung('geglu', {'model.mlp': 'geglu', 'model.mlp_dim': 512}),
    Rung('no biases', {'model.projection_bias': False, 'model.norm_bias': False}),
    Rung('qk-norm', {'model.qk_norm': True}, kept=False),
    Rung('zero init', {'model.init': 'zero_output'}),
    Rung('adam 3e-3', {'learning_rate': 3e-3, 'optimizer.b2': 0.98}),
    Rung('stable adamw', {'optimizer.name': 'stable_adamw'}, kept=False),
    Rung('muon', {'optimizer.name': 'muon', 'learning_rate': 2e-2}),
    Rung('masks 40 %', {'masking.rate': 0.4, 'max_predictions': 26}),
    Rung('bfloat16', {'model.dtype': 'bfloat16'}),
    # Side steps from the final recipe.
    Rung('muon 1e-2', {'learning_rate': 1e-2}, kept=False),
    Rung('muon 4e-2', {'learning_rate': 4e-2}, kept=False),
    Rung('adam ratio 0.5', {'optimizer.adam_lr_ratio': 0.5}, kept=False),
    Rung('masks 30 %', {'masking.rate': 0.3, 'max_predictions': 20}, kept=False),
    Rung('masks 50 %', {'masking.rate': 0.5, 'max_predictions': 32}, kept=False),
    Rung('masks 40 to 15 %', {'masking.rate': 0.4, 'masking.final_rate': 0.15}, kept=False),
    Rung('[MASK] only', {'masking.mask': 1.0, 'masking.random': 0.0}, kept=False),
    Rung('masked and causal', {'masking.causal_share': 0.25}, kept=False),
    Rung('shifted', {'model.shifted_predictions': True}, kept=False),
    Rung('masked and causal, shifted', {'masking.causal_share': 0.25, 'model.shifted_predictions': True}, kept=False),
    Rung('sentences', {'pairs.mode': 'sentences'}, kept=False),
    Rung('packed sentences', {'pairs.mode': 'sentences', 'packing': True}, kept=False),
    Rung('rows of 32', {'seq_len': 32, 'batch_size': 128, 'max_predictions': 13}, kept=False),
    Rung('rows of 128', {'seq_len': 128, 'batch_size': 32, 'max_predictions': 52}, kept=False),
    Rung('rows of 256', {'seq_len': 256, 'batch_size': 16, 'max_predictions': 103}, kept=False),
    Rung('batch of 16', {'batch_size': 16}, kept=False),
    Rung('batch of 32', {'batch_size': 32}, kept=False),
    Rung('batch of 128', {'batch_size': 128}, kept=False),
    Rung('vocabulary of 8192', {'vocab.size': 8192}, kept=False),
    Rung('vocabulary of 16384', {'vocab.size': 16384}, kept=False),
    Rung('wsd', {'schedule.name': 'wsd', 'schedule.decay_fraction': 0.3, 'schedule.decay': 'linear'}, kept=False),
    Rung('average of weights', {'ema_decay': 0.995}, kept=False),
    # What a user would run otherwise, see benchmarks/peers/masked_lm.py.
    Rung('transformers, BERT', {}, kept=False, peer='bert'),
    Rung('transformers, ModernBERT', {}, kept=False, peer='modernbert'),
    *(Rung(f'{size[0]} x {size[1]}', _size_keys(*size), kept=False) for size in SIZES[:5]),
)  # fmt: skip


def rung_keys(rung: Rung) -> Keys:
    """Returns the keys of a rung with those that it builds on: of the kept rungs below it; BERT's for a peer."""
    if rung.peer:
        return BERT
    below = LADDER[: LADDER.index(rung)]
    return BERT | {name: value for kept in below if kept.kept for name, value in kept.keys.items()} | rung.keys


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
        vocabulary = pathlib.Path(_OUT.value) / f'text-{self.keys["vocab.size"]}'
        shared = {'tokenizer': vocabulary / 'tokenizer', 'data': vocabulary / 'store'}
        if folder != vocabulary and not (shared['data'] / 'manifest.json').exists():
            self.train(vocabulary, 0, run='corpus')
        keys = self.keys | {
            'corpus': _CORPUS.value, 'heldout_texts': f'other={_HELDOUT.value}', 'seed': self.seed, 'steps': steps or 1,
            'eval_every': 0, 'checkpoint_every': 0, 'checkpoint_minutes': 10, 'eval_examples': 2048,
            'pair_plans': 2, **({} if folder == vocabulary else shared), **more,
        }  # fmt: skip
        command = [sys.executable, '-m', 'bertjax.main', f'--config={recipe}', f'--workdir={folder}']
        return _processor_time([*command, *(f'--config.{key}={value}' for key, value in keys.items())])

    def seconds_per_step(self) -> float:
        """Returns the processor time of a step, which is measured once for all seeds and lengths of runs.

        It is the shortest time of two steps, times the number of cores: other programs on the machine make the
        processor time itself longer.
        """
        if not self.speed.exists():
            cores = len(os.sched_getaffinity(0))
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
        """Trains for the given processor time, measures, and writes the result."""
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
        """Trains, loads the model into a run of bertjax, which evaluates it, and returns the time of the training."""
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
            'tokenizer': f'{_OUT.value}/text-{self.keys["vocab.size"]}/tokenizer',
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


def _has_any_size(keys: Keys) -> bool:
    """Returns whether the keys are those of the recipe whose sizes are compared, apart from the model size."""
    size, recipe = _size_keys(*SIZES[0]), rung_keys(next(rung for rung in LADDER if rung.name == 'bfloat16'))
    return keys.keys() == recipe.keys() and all(recipe[name] == keys[name] for name in recipe.keys() - size.keys())


def report() -> None:
    results = [json.loads(path.read_text()) for path in pathlib.Path(_KEPT.value).glob('*.json')]
    print(
        '| change | minutes | seed | steps | MLM loss | bits per byte | minimal pairs |\n|---|---|---|---|---|---|---|'
    )
    order = [rung.name for rung in LADDER]
    for result in sorted(results, key=lambda each: (order.index(each['name']), each['minutes'], each['seed'])):
        pairs = result.get('pairs')
        right = f'{100 * pairs["accuracy"]:.1f} ± {100 * pairs["standard_error"]:.1f}' if pairs else ''
        name = (
            result['name']
            if next(rung for rung in LADDER if rung.name == result['name']).kept
            else f'({result["name"]})'
        )
        figures = f'{result["mlm_loss"]:.3f} | {result["bits_per_byte"]:.3f}'
        print(f'| {name} | {result["minutes"]:g} | {result["seed"]} | {result["steps"]:,} | {figures} | {right} |')
    print(f'\n{fit(results)}')
    if _PICTURE.value:
        draw(results, _PICTURE.value)


def draw(results: list[Keys], path: str) -> None:
    """Draws the bits per byte over the processor time: a line for each size of the last recipe, and for each peer."""
    from matplotlib.figure import Figure

    curves: dict[str, list[tuple[float, float]]] = {}
    peers = {rung.name: rung.name for rung in LADDER if rung.peer} | {LADDER[0].name: "BERT's recipe in bertjax"}
    for result in results:
        keys, name = result['keys'], result['name']
        if _has_any_size(keys):
            name = f'budget.py, {keys["model.num_layers"]} layers of width {keys["model.width"]}'
        elif name not in peers:
            continue
        curves.setdefault(peers.get(name, name), []).append((result['minutes'], result['bits_per_byte']))
    figure = Figure(figsize=(7, 4.2), layout='tight')
    axis = figure.subplots()
    for name, points in sorted(curves.items()):
        style = 'o-' if name.startswith('budget') else 's--'
        axis.plot(*zip(*sorted(points), strict=True), style, label=name, markersize=4, linewidth=1.4)
    axis.set(xscale='log', xlabel='processor time of one core in minutes', ylabel='held-out bits per byte')
    axis.set_xticks([1.5, 5, 15, 60], labels=['1.5', '5', '15', '60'])
    axis.minorticks_off()
    axis.spines[['top', 'right']].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=144)


def fit(results: list[Keys]) -> str:
    """Fits the form of `bertjax.pretrain.budget.expected_loss` to the runs of all sizes, and describes it.

    Runs of less than 500 steps are left out: they have not left the plateau of the piece frequencies.
    """
    points = [
        (inner_parameters(keys['model.num_layers'], keys['model.width']),
         each['steps'] * keys['batch_size'] * keys['seq_len'], each['mlm_loss'])
        for each in results
        if _has_any_size(keys := each['keys']) and each['steps'] >= 500
    ]  # fmt: skip
    if len(points) < 6:
        return 'at least six runs of several sizes are needed for the fit'
    parameters, tokens, losses = np.asarray(points, np.float64).T

    def form(
        x: tuple[np.ndarray, np.ndarray], floor: float, a: float, b: float, alpha: float, beta: float
    ) -> np.ndarray:
        return floor + np.exp(a) / x[0] ** alpha + np.exp(b) / x[1] ** beta

    bounds = ([0.5, 0, 0, 0.2, 0.2], [3, 12, 14, 0.8, 0.8])
    start = (1.5, 4, 5, 0.3, 0.3)
    values, _ = scipy.optimize.curve_fit(form, (parameters, tokens), losses, start, sigma=losses, bounds=bounds)
    error = np.abs(form((parameters, tokens), *values) - losses)
    floor, a, b, alpha, beta = values
    constants = f'{floor:.3f}, {math.exp(a):.3g}, {alpha:.3f}, {math.exp(b):.3g}, {beta:.3f}'
    errors = f'mean error {error.mean():.3f}, largest {error.max():.3f}'
    return f'constants of expected_loss: {constants}; {len(points)} runs, {errors}'


def main(_: Any) -> None:
    if _REPORT.value:
        report()
        return
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
