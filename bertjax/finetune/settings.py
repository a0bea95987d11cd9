"""The settings of a fine-tuning run from its config: the task, the encoder, the training and the sweep."""

from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from bertjax.config.finetuning import FinetuningKeys
from bertjax.config.ranges import in_steps, parse_duration
from bertjax.config.schema import from_config
from bertjax.errors import UserError
from bertjax.model.config import BertConfig
from bertjax.optim.schedules import check_schedule
from bertjax.parallel.distributed import decide_on_primary
from bertjax.tasks.registry import build_task
from bertjax.tasks.task import Task
from bertjax.training.settings import check_grad_accum_steps, check_memory
from bertjax.writers.tracker import check_tracker


class FinetuningSettings(FinetuningKeys):
    """The settings of a fine-tuning run: one attribute for each config key, and properties derived from them."""

    @property
    def trained_parts(self) -> set[str]:
        """All values of config.trainable and config.sweep.trainable."""
        return {self.trainable, *self.sweep.trainable}

    @property
    def selection_key(self) -> str:
        """The config key that selects a checkpoint or the last step by its dev score; '' for none."""
        if self.use_checkpoint == 'best':
            return 'config.use_checkpoint'
        return 'config.patience' if self.patience else ''

    @property
    def steps_decide(self) -> bool:
        """Whether config.steps sets the length of the run, instead of config.epochs."""
        return parse_duration(self.steps)[0] > 0

    def total_steps(self, batches: int) -> int:
        """Returns the number of steps of the run, for `batches` per epoch. Raises a UserError if it would be 0."""
        key, length = ('steps', self.steps) if self.steps_decide else ('epochs', f'{self.epochs} epochs')
        steps = in_steps(length, key, steps_per_epoch=batches)
        if steps < 1:
            key, example = ('sweep.epochs', "'(3,)'") if self.sweep.epochs else (key, 100 if key == 'steps' else 3)
            found, fix = f'{length}, with {batches} batches an epoch', f'for example --config.{key}={example}'
            raise UserError(f'config.{key}', found, 'at least one step', fix)
        return steps

    def build_task(self) -> Task:
        """Builds the task of config.task. Raises a UserError for an unknown kind or an invalid value."""
        return build_task(**self.task, data=self.data, seq_len=self.seq_len)

    def check_memory(self, encoder: BertConfig, mesh: Mesh, *, training: bool) -> None:
        """Raises a UserError if the run does not fit in the memory of the devices, even with very short records."""
        shortest = min(self.seq_len, 8)  # the length of the longest record is not known yet
        check_memory(encoder, mesh, rows=self.eval_batch_size, seq_len=shortest, moments=0, key='eval_batch_size')
        if training:
            moments = self.moments if self.trainable == 'all' else 0
            check_memory(
                encoder,
                mesh,
                rows=self.batch_size,
                parts=self.grad_accum_steps,
                seq_len=shortest,
                moments=moments,
                zero1=self.zero1,
            )

    def check(self) -> None:
        """Raises a UserError if the tracker, an option of the task or a combination of values is invalid."""
        if self.tracker:  # only the primary process sends metrics
            decide_on_primary(lambda: check_tracker(self.tracker) or 0)
        if self.patience and not parse_duration(self.eval_every)[0]:
            found = f'{self.patience} with config.eval_every={self.eval_every}'
            fix = 'for example --config.eval_every=1epochs'
            raise UserError('config.patience', found, 'evaluations during training', fix)
        is_sweep = any(value for key, value in vars(self.sweep).items() if key != 'together')
        if is_sweep and self.run in ('finetune', 'benchmark'):
            for key, expected in (('patience', 0), ('use_checkpoint', 'last')):  # a sweep evaluates only the last step
                if (value := getattr(self, key)) != expected:
                    fix = f'use config.{key} only for single runs'
                    raise UserError(f'config.{key}', f'{value!r} in a sweep', repr(expected), fix)
        check_grad_accum_steps(self.batch_size, self.grad_accum_steps)
        if self.layer_decay < 1 and self.trained_parts == {'head'}:
            expected = '1 with config.trainable=head, which trains no layer'
            raise UserError('config.layer_decay', f'{self.layer_decay:g}', expected, 'leave one of them out')
        check_schedule(self.schedule.name, self.warmup_fraction, self.schedule.decay_fraction)
        task = self.build_task()
        if self.run not in ('evaluate', 'predict'):  # these verbs train nothing
            task.check_training(self.trainable)


def finetuning_settings(config: Mapping[str, Any]) -> FinetuningSettings:
    """Returns the settings of a config. Raises a UserError if the recipe has no task, or a value is invalid."""
    if 'task' not in config:
        fix = 'give a recipe of a task, such as glue:rte'
        raise UserError('--config', 'a recipe without config.task', 'a recipe for a task', fix)
    return from_config(FinetuningSettings, config)
