"""run=finetune: fine-tune an encoder on a task; write its metrics, its predictions and the exported model."""

import pathlib

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.distill.augment import add_augmented
from bertjax.distill.run import distill_task, distillation_data, task_teacher
from bertjax.distill.settings import DistillationSettings
from bertjax.finetune.results import finish_task
from bertjax.finetune.run import Finetuning
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.sweep import run_sweep
from bertjax.finetune.task_data import data_from_source
from bertjax.finetune.trials import make_trials
from bertjax.parallel.distributed import primary_first
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.training.distillation import NO_TEACHER
from bertjax.training.health.gradient_check import training_devices
from bertjax.training.settings import check_row_count
from bertjax.training.state import without_aux
from bertjax.training.trainer import fit
from bertjax.workdir.exports import check_push_to
from bertjax.workdir.lock import check_workdir_kind, lock_workdir

VERB = Verb(needs='task', teacher=False, trains=True, processes=True)


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE') -> None:
    """Fine-tunes a model, or one for each trial of config.sweep. The same call continues an interrupted run.

    If the config has a teacher, run=distill calls this function after its own checks.

    Raises:
      UserError, PreemptedError, NonFiniteError: See `program.train`.
    """
    settings, folder = finetuning_settings(config), pathlib.Path(workdir)
    distill = DistillationSettings(**vars(settings.distill)) if settings.distill else None
    trials = make_trials(settings)
    all_settings = [trial.settings(settings) for trial in trials] or [settings]
    for one in all_settings:
        one.check()
    check_push_to(settings.push_to, settings.formats)
    check_workdir_kind(folder, 'a sweep' if trials else 'a fine-tuning')
    mesh = make_mesh(settings.mesh_axes, training_devices())
    for one in all_settings:
        check_row_count(one.batch_size, one.grad_accum_steps, row_shards(mesh))
    with lock_workdir(folder):
        with primary_first():
            data = distillation_data(settings, distill, folder) if distill else data_from_source(settings, folder)
            # The teacher is loaded before the slow augmentation, so that errors about the teacher are reported early.
            distillation = distill_task(data, distill, task_teacher(data, distill, mesh)) if distill else NO_TEACHER
        for one in all_settings:
            one.check_memory(data.encoder, mesh, training=True)
        if trials:
            run_sweep(folder, data, mesh)
            return
        if distill and distill.augment:
            add_augmented(data, distill, folder, mesh)
        with primary_first():
            training = Finetuning(data, folder, mesh, distillation)
        state, last = fit(folder, training, use_checkpoint=settings.use_checkpoint)
        finish_task(folder, training.resolved, training.task_model, without_aux(state.eval_params), last, recipe)
