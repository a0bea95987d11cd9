"""The data of a fine-tuning, its encoder, and how long it takes."""

import contextlib
import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Iterator

import jax

from bertjax.distill.settings import DistillationSettings
from bertjax.doctor.check import OK, Check, looking_at
from bertjax.doctor.plan import disk, hours_of
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TaskData, data_from_source
from bertjax.finetune.task_model import prepare
from bertjax.finetune.trials import trials_of
from bertjax.model.config import parameter_count
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.text_data import huggingface_directory
from bertjax.report.run_record import quiet
from bertjax.train.settings import check_row_count
from bertjax.train.vmapped_runs import VmappedRun

_RECORDS = 256  # of which the steps that are measured are made
_ROWS = 16  # of such a step on a CPU
_TIMED = 3  # steps


@looking_at('teacher')
def teacher(distill: DistillationSettings, init: str) -> Iterator[Check]:
    """Whether there is a model to learn from."""
    distill.check(init)
    yield Check('teacher', OK, huggingface_directory(distill.teacher, 'config.distill.teacher'))


@looking_at('data')
def task(settings: FinetuningSettings, folder: pathlib.Path, done: int) -> Iterator[Check]:
    """Whether its records can be read and its encoder loaded, and the hours of the steps behind `done`, by some that
    are measured."""
    settings.check()
    runs = max(1, len(trials_of(settings)))
    with tempfile.TemporaryDirectory() as scratch, quiet():
        data = data_from_source(settings, pathlib.Path(scratch))
        counts = {name: len(data.task.records(name)) for name in ['train', *data.evaluated]}
    records = ', '.join(f'{count:,} {name}' for name, count in counts.items())
    yield Check('data', OK, f'{data.task.name}: {records} records')
    mesh = make_mesh(settings.mesh_axes)
    check_row_count(settings.batch_size, settings.accumulate, row_shards(mesh))
    settings.check_memory(data.encoder, mesh, training=True)
    count = parameter_count(data.encoder)
    sizes = f'{data.encoder.num_layers} layers of width {data.encoder.width}, {count:,} parameters'
    yield Check('encoder', OK, f'{data.source}: {sizes}')
    yield from disk(settings, data.encoder, folder)
    train = min(counts['train'], settings.max_train_records or counts['train'])
    steps = settings.total_steps(-(-train // settings.batch_size))
    with quiet():
        rows, seconds = _measure(data, mesh)
    several = f' for each of {runs} runs' if runs > 1 else ''
    how = f'by steps measured here, {rows} rows of the longest of {_RECORDS} records in {seconds:.3g} s{several}'
    yield hours_of(max(steps - done, 0) * seconds * settings.batch_size / rows / 3600, steps, how)


def _measure(data: TaskData, mesh: jax.sharding.Mesh) -> tuple[int, float]:
    """(rows of a step, its seconds, the least of some)."""
    settings, shards = data.settings, row_shards(mesh)
    rows = settings.batch_size // settings.accumulate
    if mesh.devices.flat[0].platform == 'cpu':
        rows = max(shards, min(rows, _ROWS) // shards * shards)
    some = {'max_train_records': _RECORDS, 'max_eval_records': 1, 'batch_size': rows, 'accumulate': 1}
    with tempfile.TemporaryDirectory() as scratch:
        part = data_from_source(dataclasses.replace(settings, **some), pathlib.Path(scratch))
        train, model = prepare(part, mesh, 1)
        examples = model.examples(train.features, 0)
        member = VmappedRun(examples, settings.learning_rate, 0)
        phase = model.phase([member], examples, 1 + _TIMED)
        taken = []
        with mesh_context(mesh), contextlib.closing(phase.load(0)) as batches:
            state, _ = model.fresh_state(0)
            step = phase.compile()
            for _ in range(1 + _TIMED):
                batch, began = next(batches), time.perf_counter()
                state, metrics = step(state, batch)
                jax.block_until_ready((state, metrics))
                taken.append(time.perf_counter() - began)
    return rows, min(taken[1:])
