"""The settings in config.distill: the teacher, the student's initial weights, and the losses."""

from collections.abc import Collection

from bertjax.config.distillation import TaskDistillationKeys
from bertjax.config.ranges import in_steps, parse_duration
from bertjax.distill.objective import HIDDEN_LOSSES, OUTPUT_LOSSES, DistillSpec, evenly_spaced_layers, uniform_layers
from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.trials import make_trials
from bertjax.model.config import BertConfig

_STATE_LOSSES = ('cosine', 'hidden', 'embeddings')  # losses on hidden states
_AUGMENT_KEYS = ('augment_probability', 'augment_candidates', 'augment_model')


class DistillationSettings(TaskDistillationKeys):
    """The values of config.distill, and properties derived from them. Pre-training ignores the keys for tasks."""

    def check(self, init: str, flag_keys: Collection[str] = ()) -> None:
        """Raises a UserError if a value is invalid or has no effect, as far as this is known without the teacher.

        `init` is config.init. `flag_keys` are the config keys that the command line sets, such as 'distill.layers'.
        """
        if not self.teacher:
            fix = 'for example --config.distill.teacher=out/rte, or google-bert/bert-base-uncased'
            raise UserError('config.distill.teacher', 'nothing', 'a trained model to learn from', fix)
        if (self.student_init == 'init') != bool(init):
            found = f'{self.student_init!r} with config.init={init!r}'
            expected, fix = "'init' if and only if config.init names the student", 'change one of the two'
            raise UserError('config.distill.student_init', found, expected, fix)
        if not any(getattr(self, part) for part in (*HIDDEN_LOSSES, *OUTPUT_LOSSES)):
            found, fix = 'all losses with weight 0', 'for example --config.distill.soft=1'
            expected = 'a weight above 0 for one of ' + ', '.join((*OUTPUT_LOSSES, *HIDDEN_LOSSES))
            raise UserError('config.distill', found, expected, fix)
        if self.num_layers and self.student_init == 'init':
            expected, fix = '0, because config.init sets the number', 'leave it at 0'
            raise UserError('config.distill.num_layers', str(self.num_layers), expected, fix)
        if self.has_two_stages and not (self._uses_any(HIDDEN_LOSSES) and self._uses_any(OUTPUT_LOSSES)):
            first, second = map(', '.join, (HIDDEN_LOSSES, OUTPUT_LOSSES))
            expected = f'losses for both stages: one of {first} and one of {second}'
            raise UserError('config.distill.intermediate', str(self.intermediate), expected, 'leave it at 0')
        if self.augment and not (self.soft or self._uses_any(HIDDEN_LOSSES)):
            expected = 'a loss other than config.distill.hard, because an augmented row has no label'
            raise UserError('config.distill.augment', str(self.augment), f'0, or {expected}', 'leave it at 0')
        for keys, is_used, reason in (
            (('temperature',), self.soft, 'with config.distill.soft=0'),
            (('layers',), self.hidden or self.attention, 'with config.distill.hidden=0 and attention=0'),
            (('projection',), self._uses_any(_STATE_LOSSES), 'without losses on hidden states'),
            (('intermediate_learning_rate',), self.has_two_stages, 'with config.distill.intermediate=0'),
            (_AUGMENT_KEYS, self.augment, 'with config.distill.augment=0'),
        ):
            for key in keys:
                if not is_used and f'distill.{key}' in flag_keys and getattr(self, key):
                    found, expected = f'{getattr(self, key)!r} {reason}', 'no value, because it has no effect'
                    raise UserError(f'config.distill.{key}', found, expected, 'leave it out')

    def check_task(self, settings: FinetuningSettings, flag_keys: Collection[str] = ()) -> None:
        """Raises a UserError if the task cannot be distilled or is a sweep, or if a temperature or loss has no effect.

        For `flag_keys`, see `check`.
        """
        loss = settings.build_task().objective.distill_loss
        if loss is None:
            found, expected = repr(settings.task['kind']), 'a kind of task whose outputs have a distillation loss'
            raise UserError('config.task.kind', found, expected, 'train it without a teacher')
        if not loss.uses_temperature and 'distill.temperature' in flag_keys:
            found, expected = f'{self.temperature:g} for a task with scores', 'no value, because it has no effect'
            raise UserError('config.distill.temperature', found, expected, 'leave it out')
        without_effect: tuple[str, ...] = ()
        if settings.trainable == 'head':
            without_effect = HIDDEN_LOSSES
        elif settings.trainable != 'all' and not (self.projection and (self.hidden or self.cosine)):
            without_effect = ('embeddings',)  # with a projection, they change the other losses on hidden states
        if useless := [name for name in without_effect if getattr(self, name)]:
            found = f'{", ".join(useless)} with config.trainable={settings.trainable}'
            zeros = [*useless, *(['intermediate'] if settings.trainable == 'head' and self.has_two_stages else [])]
            fix = f'set {" ".join(f"--config.distill.{name}=0" for name in zeros)}, or --config.trainable=all'
            raise UserError('config.distill', found, 'losses that affect a trained part of the student', fix)
        if make_trials(settings):
            fix = 'start one run per combination'
            raise UserError('config.sweep', 'a sweep', 'a single run, as distill needs', fix)

    def _uses_any(self, parts: tuple[str, ...]) -> bool:
        return any(getattr(self, part) for part in parts)

    @property
    def has_two_stages(self) -> bool:
        """Whether there are two stages: HIDDEN_LOSSES in the first, OUTPUT_LOSSES in the second."""
        return parse_duration(self.intermediate)[0] > 0

    def student_layers(self, teacher: BertConfig, count: int = 0) -> tuple[int, ...] | None:
        """Returns the indices of the teacher blocks that initialize the student, or None if no block does.

        `count` is the number of the student's blocks; 0 if config.distill determines it. Raises a UserError if the
        teacher does not have these blocks, or if their number is not that of the student.
        """
        if self.student_init in ('init', 'random'):
            return None
        by_number = 'config.model.num_layers' if count else 'config.distill.num_layers'
        count = count or self.num_layers
        listed = _parse_numbers(self.student_init)
        blocks = listed or evenly_spaced_layers(count or -(-teacher.num_layers // 2), teacher.num_layers)
        where = 'config.distill.student_init' if listed else by_number
        fix = 'use blocks of the teacher, or set --config.distill.student_init=random'
        _check_blocks(where, blocks, teacher, fix)
        if count and len(blocks) != count:
            found, expected = f'{len(blocks)} blocks ({self.student_init})', f'{count} ({by_number})'
            raise UserError('config.distill.student_init', found, expected, 'make the two numbers equal')
        return blocks

    def make_spec(self, teacher: BertConfig, student: BertConfig) -> DistillSpec:
        """Returns the spec of all losses of the distillation.

        Raises a UserError if the layers, widths or heads of the two models cannot be compared.
        """
        L = student.num_layers
        maps = {'uniform': uniform_layers, 'alternate': evenly_spaced_layers}
        layers = maps[self.layers](L, teacher.num_layers) if self.layers in maps else _parse_numbers(self.layers)
        if self.hidden or self.attention:
            if len(layers) != L:
                found, expected = f'{len(layers)} blocks ({self.layers})', f'{L}, one for each block of the student'
                raise UserError('config.distill.layers', found, expected, "for example 'uniform'")
            fix = 'give the student at most as many blocks as the teacher, or list blocks of the teacher'
            _check_blocks('config.distill.layers', layers, teacher, fix)
        else:
            layers = ()
        compares_states = self._uses_any(_STATE_LOSSES)
        if compares_states and not self.projection and student.width != teacher.width:
            found = f'a student of width {student.width}'
            expected = f'the width of the teacher, {teacher.width}, or a projection'
            raise UserError('config.distill.projection', found, expected, 'set --config.distill.projection=true')
        if self.attention and student.num_heads != teacher.num_heads:
            found = f'a student with {student.num_heads} heads'
            expected, fix = f'{teacher.num_heads}, as in the teacher', 'set --config.distill.attention=0'
            raise UserError('config.distill.attention', found, expected, fix)
        factors = {part: getattr(self, part) for part in (*HIDDEN_LOSSES, *OUTPUT_LOSSES)}
        return DistillSpec(factors, self.temperature, layers, self.projection and compares_states)

    def intermediate_steps(self, total: int, batches: int) -> int:
        """Returns the number of steps of the first stage. The run has `total` steps, and an epoch has `batches` steps.

        Raises a UserError if a stage would have no steps.
        """
        steps = in_steps(self.intermediate, 'distill.intermediate', total=total, steps_per_epoch=batches)
        if not 0 < steps < total:
            expected = f'at least 1 step for each of the two stages, of the {total} of the run'
            found = f'{self.intermediate}, which is {steps} steps'
            longer = 'raise config.steps or config.epochs'
            fix = longer if total < 2 else f'lower it, or {longer}' if steps else 'raise it'
            raise UserError('config.distill.intermediate', found, expected, fix)
        return steps

    def describe(self, spec: DistillSpec, *, uses_temperature: bool) -> str:
        """Returns one line about the losses and the teacher blocks that they compare.

        For `uses_temperature`, see `DistillLoss`.
        """
        parts = ', '.join(f'{factor:g} x {part}' for part, factor in spec.factors.items() if factor)
        line = f'losses: {parts}' + (f'; temperature {self.temperature:g}' if self.soft and uses_temperature else '')
        line += '; with a learned projection' if spec.projection else ''
        layers = ', '.join(map(str, spec.layers))
        return line + (f'; compared with blocks {layers} of the teacher' if spec.layers else '')


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(','))) if text[:1].isdigit() else ()


def _check_blocks(where: str, blocks: tuple[int, ...], teacher: BertConfig, fix: str) -> None:
    count = teacher.num_layers
    if len(blocks) > count or max(blocks, default=0) >= count:
        found = f'{len(blocks)} blocks' if len(blocks) > count else f'block {max(blocks)}'
        expected = f'at most {count}, as in the teacher' if len(blocks) > count else f'a block from 0 to {count - 1}'
        raise UserError(where, found, expected, fix)
