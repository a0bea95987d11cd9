"""run=distill: train a smaller model to imitate a trained model, on text or on a task."""

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.distill.augment import add_augmented
from bertjax.distill.run import distill_pretraining, distill_task, distillation_data, task_teacher
from bertjax.distill.settings import DistillationSettings
from bertjax.errors import UserError
from bertjax.finetune.results import finish_task
from bertjax.finetune.run import Finetuning
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials
from bertjax.parallel.distributed import primary_first
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.pretrain.run import Pretraining
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.summary import finish_pretraining
from bertjax.pretrain.warm_start import with_architecture
from bertjax.training.health.gradient_check import training_devices
from bertjax.training.settings import check_row_count
from bertjax.training.state import without_aux
from bertjax.training.trainer import fit
from bertjax.workdir.exports import check_push_to
from bertjax.workdir.lock import check_workdir_kind, lock_workdir

VERB = Verb(needs='distill', trains=True, processes=True)


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE', flag_keys: Collection[str] = ()) -> None:
    """Trains a student to imitate its teacher, on text or on a task. The same call continues an interrupted run.

    Raises:
      UserError, PreemptedError, NonFiniteError: See `program.train`.
    """
    distill = DistillationSettings(**config.distill)
    distill.check(config.init, flag_keys)
    folder = pathlib.Path(workdir)
    check_workdir_kind(folder, 'a fine-tuning' if 'task' in config else 'a pre-training')
    if 'task' in config:
        _distil_task(config, distill, folder, recipe, flag_keys)
    else:
        _distil_general(config, distill, folder, recipe, flag_keys)


def _distil_general(
    config: ConfigDict, distill: DistillationSettings, folder: pathlib.Path, recipe: str, flag_keys: Collection[str]
) -> None:
    settings = pretraining_settings(config)
    _check_initial_weights(settings, distill)
    settings = with_architecture(settings, folder, flag_keys)
    settings.check()
    check_push_to(settings.push_to, settings.formats)
    mesh = make_mesh(settings.mesh_axes, training_devices())
    settings.check_devices(mesh)
    with lock_workdir(folder):
        with primary_first():
            settings, distillation = distill_pretraining(settings, distill, folder, mesh)
            training = Pretraining(settings, folder, mesh, distillation)
        state, _ = fit(folder, training)
        trains_head = bool(distill.soft or distill.hard)
        finish_pretraining(folder, training, without_aux(state.eval_params), recipe, fill_masks=trains_head)


def _check_initial_weights(settings: PretrainingSettings, distill: DistillationSettings) -> None:
    """Raises a UserError if config.vocab.add is set, or if the student would not start from config.embeddings."""
    if settings.vocab.add:
        found = f'words of {settings.vocab.add}'
        expected = 'none: a student has the vocabulary of its teacher, which lacks these words'
        raise UserError('config.vocab.add', found, expected, 'leave it empty, or teach the words to the teacher first')
    if settings.embeddings and distill.student_init not in ('init', 'random'):
        expected = f"nothing: the student copies its teacher's embeddings (student_init={distill.student_init})"
        fix = 'leave it empty, or give --config.distill.student_init=random'
        raise UserError('config.embeddings', settings.embeddings, expected, fix)


def _distil_task(
    config: ConfigDict, distill: DistillationSettings, folder: pathlib.Path, recipe: str, flag_keys: Collection[str]
) -> None:
    settings = finetuning_settings(config)
    settings.check()
    loss = settings.build_task().objective.distill_loss
    if loss is None:
        found, expected = repr(settings.task['kind']), 'a kind of task whose outputs have a distillation loss'
        raise UserError('config.task.kind', found, expected, 'train it without a teacher')
    if not loss.uses_temperature and 'distill.temperature' in flag_keys:
        found, expected = f'{distill.temperature:g} for a task with scores', 'no value, because it has no effect'
        raise UserError('config.distill.temperature', found, expected, 'leave it out')
    check_push_to(settings.push_to, settings.formats)
    if make_trials(settings):
        raise UserError('config.sweep', 'a sweep', 'a single run, as distill needs', 'start one run per combination')
    mesh = make_mesh(settings.mesh_axes, training_devices())
    check_row_count(settings.batch_size, settings.grad_accum_steps, row_shards(mesh))
    with lock_workdir(folder):
        with primary_first():
            data = distillation_data(settings, distill, folder)
            # The teacher is loaded before the slow augmentation, so that errors about the teacher are reported early.
            teacher = task_teacher(data, distill, mesh)
        settings.check_memory(data.encoder, mesh, training=True)
        if distill.augment:
            add_augmented(data, distill, folder, mesh)
        with primary_first():
            training = Finetuning(data, folder, mesh, distill_task(data, distill, teacher))
        state, last = fit(folder, training, use_checkpoint=settings.use_checkpoint)
        finish_task(folder, training.resolved, training.task_model, without_aux(state.eval_params), last, recipe)
