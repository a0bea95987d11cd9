"""run=distill: train a smaller model to imitate a trained model, on text or on a task."""

from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.commands import finetune, pretrain
from bertjax.config.verb import Verb
from bertjax.distill.settings import DistillationSettings
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.pretrain.settings import pretraining_settings

VERB = Verb(needs='distill', trains=True, processes=True)


def run(config: ConfigDict, workdir: str, recipe: str = 'FILE', flag_keys: Collection[str] = ()) -> None:
    """Trains a student to imitate its teacher, on text or on a task. The same call continues an interrupted run.

    Raises:
      UserError, PreemptedError, NonFiniteError: See `program.train`.
    """
    distill = DistillationSettings(**config.distill)
    distill.check(config.init, flag_keys)
    if 'task' in config:
        distill.check_task(finetuning_settings(config), flag_keys)
        finetune.run(config, workdir, recipe)
    else:
        _check_initial_weights(config, distill)
        pretrain.run(config, workdir, recipe, flag_keys)


def _check_initial_weights(config: ConfigDict, distill: DistillationSettings) -> None:
    """Raises a UserError if config.vocab.add is set, or if the student would not start from config.embeddings."""
    settings = pretraining_settings(config)
    if settings.vocab.add:
        found = f'words of {settings.vocab.add}'
        expected = 'none: a student has the vocabulary of its teacher, which lacks these words'
        raise UserError('config.vocab.add', found, expected, 'leave it empty, or teach the words to the teacher first')
    if settings.embeddings and distill.student_init not in ('init', 'random'):
        expected = f"nothing: the student copies its teacher's embeddings (student_init={distill.student_init})"
        fix = 'leave it empty, or give --config.distill.student_init=random'
        raise UserError('config.embeddings', settings.embeddings, expected, fix)
