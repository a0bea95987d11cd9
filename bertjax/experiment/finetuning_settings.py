"""config of a fine-tuning -> FinetuningSettings: task, encoder, training, sweep."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bertjax.config import duration
from bertjax.errors import UserError
from bertjax.experiment.settings import RunSettings, check_accumulate, check_schedule, shared_settings
from bertjax.tasks.registry import build_task
from bertjax.tasks.task import Task


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuningSettings(RunSettings):
    """The keys of `recipe.finetuning_config`; where no more is said, the attribute is the key.

    Attributes:
      task: config.task in plain form: `kind` and the options of that kind.
      model_choices: config.model, what a run may choose beside the sizes of config.init.
      sweep: config.sweep in plain form.
    """

    task: Mapping[str, Any]
    model_choices: Mapping[str, Any]
    train: str
    layer_decay: float
    max_train_records: int
    max_eval_records: int
    seq_len: int
    shapes: int
    batch_size: int
    eval_batch_size: int
    accumulate: int
    epochs: float
    steps: int | str
    select: str
    patience: int
    split: str
    input: str
    sweep: Mapping[str, Any]

    @property
    def trained_parts(self) -> set[str]:
        """All values of config.train in the run or its sweep."""
        return {self.train, *self.sweep['train']}

    @property
    def steps_decide(self) -> bool:
        """Whether config.steps says how long the run is, and not config.epochs."""
        return self.steps not in (0, '0')

    def total_steps(self, batches: int) -> int:
        """Length of the run, of epochs with `batches` batches each."""
        steps = duration(self.steps, 'steps', steps_per_epoch=batches)
        if not steps:
            steps = duration(f'{self.epochs} epochs', 'epochs', steps_per_epoch=batches)
        if steps < 1:
            raise UserError('config.epochs', str(self.epochs), 'at least one step', 'for example --config.epochs=3')
        return steps

    def build_task(self) -> Task:
        """The task, with its options.

        Raises:
          UserError: no such kind, or an option that cannot be.
        """
        options = {name: value for name, value in self.task.items() if name != 'kind'}
        return build_task(self.task['kind'], data=self.data, seq_len=self.seq_len, **options)

    def check(self) -> None:
        """Refuses what can be wrong without a look at the data.

        Raises:
          UserError: with the key.
        """
        check_schedule(self.schedule, self.warmup_fraction)
        for key in ('shapes', 'patience'):
            if getattr(self, key) < 0:
                raise UserError(f'config.{key}', str(getattr(self, key)), '0 or more', f'leave config.{key} 0')
        if self.patience and self.eval_every in (0, '0'):
            found, mend = f'{self.patience} with config.eval_every=0', 'for example --config.eval_every=1epochs'
            raise UserError('config.patience', found, 'evaluations to go by', mend)
        if self.patience and any(value for key, value in self.sweep.items() if key != 'together'):
            raise UserError('config.patience', f'{self.patience} in a sweep', '0', 'stop single runs early')
        for key in ('batch_size', 'eval_batch_size', 'accumulate', 'checkpoint_keep'):
            if getattr(self, key) < 1:
                raise UserError(f'config.{key}', str(getattr(self, key)), 'at least 1', f'raise config.{key}')
        for key in ('max_train_records', 'max_eval_records'):
            if getattr(self, key) < 0:
                raise UserError(f'config.{key}', str(getattr(self, key)), '1 or more, or 0 for all', 'leave it 0')
        check_accumulate(self.batch_size, self.accumulate)
        if not self.learning_rate > 0:
            raise UserError('config.learning_rate', str(self.learning_rate), 'a number above 0', 'for example 2e-5')
        if not 0 < self.layer_decay <= 1:
            raise UserError('config.layer_decay', str(self.layer_decay), 'a share above 0, to 1', 'for example 0.9')
        together = self.sweep['together']
        if together < 0:
            raise UserError('config.sweep.together', str(together), 'how many, or 0 for as many as fit', 'leave it 0')
        self.build_task().check_training(self.train)
        if self.select not in ('last', 'best'):
            raise UserError('config.select', repr(self.select), "'last' or 'best'", 'choose one of the two')


def finetuning_settings(config: ConfigDict) -> FinetuningSettings:
    """The settings of a config.

    Raises:
      UserError: a recipe without a task, or a value that cannot be, with its key; `check` refuses more.
    """
    if 'task' not in config:
        mend = 'give a recipe of a task, such as configs/glue.py:rte'
        raise UserError('--config', 'a recipe without config.task', 'one for a task', mend)
    names = ('train', 'layer_decay', 'seq_len', 'shapes', 'batch_size', 'eval_batch_size', 'accumulate', 'epochs')
    names += ('steps', 'select', 'patience', 'split', 'input')
    return FinetuningSettings(
        **shared_settings(config),
        **{name: config[name] for name in names},
        **{name: config.get(name, 0) for name in ('max_train_records', 'max_eval_records')},  # not in old workdirs
        task=dict(config.task),
        model_choices=dict(config.model),
        sweep=dict(config.sweep),
    )
