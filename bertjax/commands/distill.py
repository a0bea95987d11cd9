"""run=distill: train a smaller model to imitate a trained model, on text or on a task."""

from collections.abc import Collection

from ml_collections import ConfigDict

from bertjax.commands import finetune, pretrain
from bertjax.config.verb import Verb
from bertjax.distill.objective import HIDDEN_LOSSES
from bertjax.distill.settings import DistillationSettings
from bertjax.errors import UserError
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials
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
        _check_task(config, distill, flag_keys)
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


def _check_task(config: ConfigDict, distill: DistillationSettings, flag_keys: Collection[str]) -> None:
    """Raises a UserError if the task cannot be distilled or is a sweep, or if a temperature or a loss has no effect."""
    settings = finetuning_settings(config)
    loss = settings.build_task().objective.distill_loss
    if loss is None:
        found, expected = repr(settings.task['kind']), 'a kind of task whose outputs have a distillation loss'
        raise UserError('config.task.kind', found, expected, 'train it without a teacher')
    if not loss.uses_temperature and 'distill.temperature' in flag_keys:
        found, expected = f'{distill.temperature:g} for a task with scores', 'no value, because it has no effect'
        raise UserError('config.distill.temperature', found, expected, 'leave it out')
    frozen = {'all': (), 'head': HIDDEN_LOSSES}.get(settings.trainable, ('embeddings',))  # else 'last_K'
    for name in frozen:
        if factor := getattr(distill, name):
            found, fix = f'{factor:g} with config.trainable={settings.trainable}', 'set it to 0, or train all layers'
            raise UserError(f'config.distill.{name}', found, '0, because the loss trains no part of the student', fix)
    if make_trials(settings):
        raise UserError('config.sweep', 'a sweep', 'a single run, as distill needs', 'start one run per combination')
