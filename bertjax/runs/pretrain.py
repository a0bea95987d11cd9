"""run=pretrain: pre-train BERT on text files: vocabulary, token store, training, evaluation, export."""

import pathlib
from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.experiment.beginning import with_architecture
from bertjax.experiment.exports import check_push_to
from bertjax.experiment.levels import levels
from bertjax.experiment.pretraining import Pretraining
from bertjax.experiment.pretraining_settings import pretraining_settings
from bertjax.experiment.session import train_in
from bertjax.experiment.summary import finish_pretraining
from bertjax.experiment.text import huggingface_directory
from bertjax.experiment.workdir import has_checkpoints, working_in
from bertjax.parallel.distributed import fetched, first_before_others
from bertjax.parallel.mesh import make_mesh
from bertjax.train.canary import training_devices


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE', given: Collection[str] = ()) -> None:
    """Pre-trains; the same call in the same workdir continues.

    Args:
      config: of the run.
      workdir: of it.
      recipe: that the config is of, as the command line names it; for what is said to run next.
      given: keys that the command line sets one by one.

    Raises:
      UserError: see docs/pretraining.md.
      PreemptedError: SIGTERM or Ctrl-C, after saving.
      NonFiniteError: three steps in a row were not finite.
    """
    folder = pathlib.Path(workdir)
    settings = with_architecture(pretraining_settings(config), folder, given)
    settings.check()
    check_push_to(settings.push_to, settings.formats)
    if settings.init and not has_checkpoints(folder):
        huggingface_directory(settings.init)  # raises
    mesh = make_mesh(settings.mesh, training_devices())
    settings.check_memory(mesh)
    with working_in(folder):
        with first_before_others():
            training = Pretraining(settings, folder, mesh)
        state, _ = train_in(folder, training)
        finish_pretraining(
            folder,
            training.resolved,
            training.model,
            training.tokenizer,
            fetched(state.params),
            training.heldout,
            recipe,
            levels(settings, training.stores, training.examples, training.resolved['steps']),
        )
