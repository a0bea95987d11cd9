"""run=pretrain: pre-train BERT on text files; build the vocabulary and the token store, train, evaluate, export."""

import pathlib
from collections.abc import Collection

from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax.config.verb import Verb
from bertjax.distill.run import distill_pretraining
from bertjax.distill.settings import DistillationSettings
from bertjax.files.small_files import read_json_or_none
from bertjax.parallel.distributed import is_primary, primary_first
from bertjax.parallel.mesh import make_mesh
from bertjax.pretrain.budget import check_budget_keys, find_plan, make_plan
from bertjax.pretrain.budget_choice import split_batch
from bertjax.pretrain.run import Pretraining, prepare_inputs
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.summary import finish_pretraining
from bertjax.pretrain.vocabulary import check_existing_vocabulary
from bertjax.pretrain.warm_start import with_architecture, with_existing_vocabulary
from bertjax.training.distillation import NO_TEACHER
from bertjax.training.health.gradient_check import training_devices
from bertjax.training.health.interrupt import Interrupt
from bertjax.training.state import TrainState, without_aux
from bertjax.training.time_limit import PhaseTimeError
from bertjax.training.trainer import fit
from bertjax.workdir.exports import check_push_to
from bertjax.workdir.lock import check_workdir_kind, has_checkpoints, lock_workdir
from bertjax.workdir.resolve_path import huggingface_directory

VERB = Verb(needs='corpus', teacher=False, trains=True, processes=True)


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE', flag_keys: Collection[str] = ()) -> None:
    """Pre-trains a model. The same call in the same workdir continues an interrupted run.

    If the config has a teacher, run=distill calls this function after its own checks.

    Raises:
      UserError, PreemptedError, NonFiniteError: See `program.train`.
    """
    folder = pathlib.Path(workdir)
    check_workdir_kind(folder, 'a pre-training')
    settings = with_architecture(pretraining_settings(config), folder, flag_keys)
    settings.check()
    check_push_to(settings.push_to, settings.formats)
    if settings.init and not has_checkpoints(folder):
        huggingface_directory(settings.init)  # raises if there is no such model
    with primary_first():
        if is_primary() and not has_checkpoints(folder):  # the others read the tokenizer of the workdir
            check_existing_vocabulary(settings, flag_keys)
    mesh = make_mesh(settings.mesh_axes, training_devices())
    settings.check_memory(mesh)
    if not settings.budget:  # a budget chooses the batch
        settings.check_batches(mesh)
    with lock_workdir(folder):
        training, state = _train(settings, folder, mesh, flag_keys)
        trains_head = settings.distill is None or bool(settings.distill.soft or settings.distill.hard)
        finish_pretraining(folder, training, without_aux(state.eval_params), recipe, fill_masks=trains_head)


def _train(
    settings: PretrainingSettings, folder: pathlib.Path, mesh: Mesh, flag_keys: Collection[str]
) -> tuple[Pretraining, TrainState]:
    """Trains to the last step or, with config.budget, until the budget is used up."""
    if not settings.budget:
        with primary_first():
            distillation = NO_TEACHER
            if settings.distill:
                distill = DistillationSettings(**vars(settings.distill))
                settings, distillation = distill_pretraining(settings, distill, folder, mesh)
            training = Pretraining(settings, folder, mesh, distillation)
        return training, fit(folder, training)[0]
    check_budget_keys(settings, folder, flag_keys)
    with primary_first():
        find_plan(settings, folder)  # raises before a vocabulary is trained
        # A new plan depends on the size of the vocabulary.
        inputs = None if has_checkpoints(folder) else prepare_inputs(settings, folder)
        sized = with_existing_vocabulary(settings, folder)
        plan = make_plan(sized, folder, mesh, flag_keys)
    config = folder / 'config.json'
    recorded = read_json_or_none(config, lambda facts: facts['grad_accum_steps']) if has_checkpoints(folder) else None
    settings = split_batch(settings, plan, mesh, flag_keys, recorded)
    plan.apply(settings).check_devices(mesh)
    print(plan.describe(sized))
    with primary_first():
        training = Pretraining(plan.apply(settings), folder, mesh, inputs=inputs)
    with Interrupt() as interrupt:  # a signal between two calls of `fit` stops the second one
        while True:
            limit = plan.time_limit(settings)
            try:
                return training, fit(folder, training, time_limit=limit)[0]
            except PhaseTimeError as error:
                interrupt.doing = 'the last phase is being prepared'
                with primary_first():
                    if is_primary():  # only one process decides, because the clocks of the processes differ
                        plan.decide(folder, error.step, limit.elapsed, evaluates=bool(settings.eval_every))
                    plan = make_plan(settings, folder, mesh, flag_keys)
                    training = training.with_phases(plan.apply(settings))
