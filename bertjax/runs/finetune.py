"""run=finetune: an encoder and a task's files -> a model for the task, its figures and predictions."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from bertjax.config import duration, plain
from bertjax.data.buckets import BucketedExamples
from bertjax.data.loader import Loader
from bertjax.errors import UserError
from bertjax.files import exclusive
from bertjax.metrics.rows import task_values
from bertjax.model.config import train_flops_per_sequence
from bertjax.optim.masks import describe_decay
from bertjax.optim.selection import partition
from bertjax.parallel.devices import claim_devices
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.parallel.partition import batch_sharding
from bertjax.runs import _settings as settings
from bertjax.runs._cells import cells_of, config_of
from bertjax.runs._results import finish_task
from bertjax.runs._session import train_in
from bertjax.runs._steps import step_of_run
from bertjax.runs._sweep import run_sweep
from bertjax.runs._task import Split, TaskData, check_numbers, data_from_source, total_steps
from bertjax.runs._tuning import TaskEvaluator, Tuning, prepare
from bertjax.train.loop import Phase
from bertjax.train.record import Reporting
from bertjax.train.state import TrainState


def run(config: ConfigDict, workdir: str) -> None:
    """Fine-tunes, or with config.sweep does so many times; the same call in the same workdir continues.

    Raises:
      UserError: see docs/finetuning.md.
      PreemptedError: SIGTERM or Ctrl-C, after saving.
      NonFiniteError: three steps in a row were not finite.
    """
    folder = pathlib.Path(workdir)
    cells = cells_of(config)
    runs = [config_of(config, cell) for cell in cells] or [config]
    for each in runs:
        check_numbers(each)
    _check_folder(folder, sweeps=bool(cells))
    mesh = make_mesh(config.mesh, claim_devices())
    for each in runs:
        settings.check_row_count(each.batch_size, each.accumulate, row_shards(mesh))
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder, 'trains in this workdir'):
        data = data_from_source(config, folder)
        if cells:
            run_sweep(config, folder, data, mesh)
        else:
            _finetune(config, folder, data, mesh)


def _check_folder(folder: pathlib.Path, *, sweeps: bool) -> None:
    """A run and a sweep would write the same config.json and export/."""
    here, there = ('a sweep', 'a run') if sweeps else ('a run', 'a sweep')
    if (folder / ('checkpoints' if sweeps else 'cells')).exists():
        raise UserError('--workdir', f'{folder}, which has {there}', f'another folder for {here}', 'name a new one')


def _finetune(config: ConfigDict, folder: pathlib.Path, data: TaskData, mesh: jax.sharding.Mesh) -> None:
    train, tuning = prepare(data, mesh)
    examples = tuning.examples(train.features, settings.seed_of(config, 'data'))
    total = total_steps(config, examples.batches)
    plan = _plan(config, data, examples, total)

    def fresh() -> TrainState:
        state, missing, unused = tuning.fresh_state(settings.seed_of(config, 'init'))
        print(f'starting from {data.source}; freshly drawn: {", ".join(missing) or "nothing"}')
        if unused:
            print(f'of no use here: {", ".join(unused)}')
        return state

    def load(first: int) -> Loader:
        return Loader(examples, first=first, batch_size=config.batch_size, sharding=batch_sharding(mesh))

    def phases() -> list[Phase]:
        print(_description(tuning, train, total))
        return [
            Phase(
                number=0,
                first_step=0,
                last_step=total,
                begin=lambda state: state,
                compile=lambda: step_of_run(tuning, examples, total),
                load=load,
                evaluator=TaskEvaluator(tuning, data.split('dev')) if 'dev' in data.evaluated else None,
                flops_per_sequence=_flops(tuning, examples),
            )
        ]

    def cost(values: Mapping[str, float | None]) -> float | None:
        score = values[data.task.score]
        return None if score is None else -score

    state = train_in(
        folder,
        config,
        plan,
        tuning.mesh,
        template=tuning.state,
        fresh=fresh,
        phases=phases,
        reporting=Reporting('dev', task_values, dict, cost),
        select=config.select,
    )
    finish_task(folder, plan, tuning, state.params)


def _flops(tuning: Tuning, examples: BucketedExamples) -> float:
    """Of a training step of the whole model, per sequence; 0, not known, where a part of it is frozen."""
    length = round(examples.mean_length)
    return train_flops_per_sequence(tuning.data.encoder, length, 0) if tuning.config.train == 'all' else 0.0


def _plan(config: ConfigDict, data: TaskData, examples: BucketedExamples, total: int) -> dict[str, Any]:
    """The resolved config: what config.json and every checkpoint hold."""
    resolved = plain(config)
    resolved |= {'steps': total, 'epochs': total / examples.batches}
    for key in ('eval_every', 'checkpoint_every'):
        resolved[key] = duration(config[key], key, total=total, steps_per_epoch=examples.batches)
    # What the order of the rows depends on besides them.
    batches = f'{config.batch_size} rows of {", ".join(map(str, examples.shapes))} pieces'
    return resolved | {'fingerprints': data.fingerprints() | {'batches': batches}}


def _description(tuning: Tuning, train: Split, total: int) -> str:
    config, data, devices = tuning.config, tuning.data, jax.devices()
    encoder, params = data.encoder, tuning.state.params
    splits = ', '.join(f'{len(data.split(name).records):,} {name}' for name in data.evaluated) or 'NOTHING to judge by'
    moving, _ = partition(params, tuning.trained)
    size, trained = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (params, moving))
    decay = f', layer decay {config.layer_decay:g}' if config.layer_decay < 1 else ''
    lines = [
        f'{data.task.name}: {len(train.records):,} training records in {len(train.features):,} rows; {splits}',
        f'{encoder.num_layers} layers, width {encoder.width}, {encoder.num_heads} heads: '
        f'{size:,} parameters, {trained:,} of them trained (train={config.train})',
        f'{total:,} steps of {config.batch_size}, learning rate {config.learning_rate:g} {config.schedule.name}, '
        f'warm-up {config.warmup_fraction:.1%}{decay}',
        f'{len(tuning.shapes)} padded lengths: ' + ', '.join(map(str, tuning.shapes)),
        f'{len(devices)} x {devices[0].device_kind}, mesh '
        + ' x '.join(f'{name}={size}' for name, size in tuning.mesh.shape.items()),
    ]
    return '\n'.join([*lines, describe_decay(moving)])
