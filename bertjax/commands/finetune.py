"""run=finetune: fine-tune an encoder on a task; write its metrics, its predictions and the exported model."""

import pathlib

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.errors import UserError
from bertjax.finetune.results import finish_task
from bertjax.finetune.run import Finetuning
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.sweep import run_sweep
from bertjax.finetune.task_data import data_from_source
from bertjax.finetune.trials import trials_of
from bertjax.parallel.distributed import primary_first
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.train.health.gradient_check import training_devices
from bertjax.train.settings import check_row_count
from bertjax.train.trainer import fit
from bertjax.workdir.exports import check_push_to
from bertjax.workdir.lock import TRIALS, has_checkpoints, lock_workdir

VERB = Verb(needs='task', teacher=False, trains=True, processes=True)


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE') -> None:
    """Fine-tunes, or with config.sweep does so many times; the same call in the same workdir continues.

    Args:
      config: of the run.
      workdir: of it.
      recipe: that the config is of, as the command line names it; for what is said to run next.

    Raises:
      UserError: see docs/finetuning.md.
      PreemptedError: SIGTERM or Ctrl-C, after saving.
      NonFiniteError: three steps in a row were not finite.
    """
    settings, folder = finetuning_settings(config), pathlib.Path(workdir)
    trials = trials_of(settings)
    each_run = [trial.settings(settings) for trial in trials] or [settings]
    for one in each_run:
        one.check()
    check_push_to(settings.push_to, settings.formats)
    _check_folder(folder, sweeps=bool(trials))
    mesh = make_mesh(settings.mesh_axes, training_devices())
    for one in each_run:
        check_row_count(one.batch_size, one.grad_accum_steps, row_shards(mesh))
    with lock_workdir(folder):
        with primary_first():
            data = data_from_source(settings, folder)
        for one in each_run:
            one.check_memory(data.encoder, mesh, training=True)
        if trials:
            run_sweep(folder, data, mesh)
        else:
            with primary_first():
                training = Finetuning(data, folder, mesh)
            state, last = fit(folder, training, use_checkpoint=settings.use_checkpoint)
            finish_task(folder, training.resolved, training.model, state.params, last, recipe)


def _check_folder(folder: pathlib.Path, *, sweeps: bool) -> None:
    """A run and a sweep would write the same config.json and export/."""
    here, there = ('a sweep', 'a run') if sweeps else ('a run', 'a sweep')
    if has_checkpoints(folder) if sweeps else (folder / TRIALS).exists():
        raise UserError('--workdir', f'{folder}, which has {there}', f'another folder for {here}', 'name a new one')
