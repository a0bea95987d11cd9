"""run=distill: train a smaller model to imitate a trained one, on text or on a task."""

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.errors import UserError
from bertjax.experiment.beginning import with_architecture
from bertjax.experiment.distillation import GeneralDistillation, TaskDistillation, task_teacher
from bertjax.experiment.distillation_data import add_augmented, distillation_data
from bertjax.experiment.distillation_settings import DistillationSettings
from bertjax.experiment.exports import check_push_to
from bertjax.experiment.finetuning_settings import finetuning_settings
from bertjax.experiment.levels import levels
from bertjax.experiment.pretraining_settings import PretrainingSettings, pretraining_settings
from bertjax.experiment.results import finish_task
from bertjax.experiment.session import train_in
from bertjax.experiment.settings import check_row_count
from bertjax.experiment.summary import finish_pretraining
from bertjax.experiment.trials import trials_of
from bertjax.experiment.workdir import TRIALS, working_in
from bertjax.parallel.distributed import fetched, first_before_others
from bertjax.parallel.mesh import make_mesh, row_shards
from bertjax.train.canary import training_devices
from bertjax.train.state import without_own


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE', given: Collection[str] = ()) -> None:
    """Distils; the same call in the same workdir continues.

    Args:
      config: of the run: of a pre-training (general distillation) or of a task.
      workdir: of it.
      recipe: that the config is of, as the command line names it; for what is said to run next.
      given: keys that the command line sets one by one.

    Raises:
      UserError: see docs/distillation.md.
      PreemptedError: SIGTERM or Ctrl-C, after saving.
      NonFiniteError: three steps in a row were not finite.
    """
    distill = DistillationSettings(**config.distill)
    distill.check(config.init, given)
    folder = pathlib.Path(workdir)
    if 'task' in config:
        _distil_task(config, distill, folder, recipe)
    else:
        _distil_general(config, distill, folder, recipe, given)


def _distil_general(
    config: ConfigDict, distill: DistillationSettings, folder: pathlib.Path, recipe: str, given: Collection[str]
) -> None:
    settings = pretraining_settings(config)
    _check_beginning(settings, distill)
    settings = with_architecture(settings, folder, given)
    settings.check()
    check_push_to(settings.push_to, settings.formats)
    mesh = make_mesh(settings.mesh, training_devices())
    settings.check_memory(mesh)
    with working_in(folder):
        with first_before_others():
            training = GeneralDistillation(settings, distill, folder, mesh)
        state, _ = train_in(folder, training)
        finish_pretraining(
            folder,
            training.resolved,
            training.model,
            training.tokenizer,
            fetched(without_own(state.params)),
            training.heldout if distill.soft or distill.hard else None,  # else its head for masks learns nothing
            recipe,
            levels(settings, training.stores, training.examples, training.resolved['steps']),
        )


def _check_beginning(settings: PretrainingSettings, distill: DistillationSettings) -> None:
    """Refuses what a pre-training may begin with and a student may not."""
    if settings.vocab['add']:
        found = f'words of {settings.vocab["add"]}'
        expected = 'none: a student has the pieces of its teacher, which does not know these words'
        raise UserError('config.vocab.add', found, expected, 'leave it empty, or teach the words to the teacher first')
    if settings.embeddings and distill.student_init not in ('init', 'random'):
        expected = f"nothing: the student begins with its teacher's (student_init={distill.student_init})"
        mend = 'leave it empty, or begin with --config.distill.student_init=random'
        raise UserError('config.embeddings', settings.embeddings, expected, mend)


def _distil_task(config: ConfigDict, distill: DistillationSettings, folder: pathlib.Path, recipe: str) -> None:
    settings = finetuning_settings(config)
    settings.check()
    check_push_to(settings.push_to, settings.formats)
    if trials_of(settings) or (folder / TRIALS).exists():
        raise UserError('config.sweep', 'a sweep', 'a single run, where there is a teacher', 'start one run a setting')
    mesh = make_mesh(settings.mesh, training_devices())
    check_row_count(settings.batch_size, settings.accumulate, row_shards(mesh))
    with working_in(folder):
        with first_before_others():
            data = distillation_data(settings, distill, folder)
            teacher = task_teacher(data, distill, mesh)  # before rows are made up, which may take hours
        settings.check_memory(data.encoder, mesh, training=True)
        if distill.augment:
            add_augmented(data, distill, folder, mesh)
        with first_before_others():
            training = TaskDistillation(data, distill, teacher, folder, mesh)
        state, last = train_in(folder, training, select=settings.select)
        finish_task(folder, training.resolved, training.model, without_own(state.params), last, recipe)
