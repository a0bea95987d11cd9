"""config.distill -> DistillationSettings: who teaches, how the student begins, what counts, and what cannot be."""

from collections.abc import Collection

from bertjax.config.distillation import TaskDistillationKeys
from bertjax.config.ranges import in_steps, parse_duration
from bertjax.distill.objective import HIDDEN_LOSSES, OUTPUT_LOSSES, DistillSpec, evenly_spaced_layers, uniform_layers
from bertjax.errors import UserError
from bertjax.model.config import BertConfig

_AUGMENTING = ('augment_probability', 'augment_candidates', 'augment_model')


class DistillationSettings(TaskDistillationKeys):
    """config.distill, and what follows from it; a pre-training has the defaults of what is of tasks alone."""

    def check(self, init: str, given: Collection[str] = ()) -> None:
        """Refuses what can be wrong without a look at the teacher.

        Args:
          init: config.init.
          given: keys that the command line sets, such as 'distill.layers'.

        Raises:
          UserError: with the key.
        """
        if not self.teacher:
            fix = 'for example --config.distill.teacher=out/rte, or google-bert/bert-base-uncased'
            raise UserError('config.distill.teacher', 'nothing', 'a trained model to learn from', fix)
        if (self.student_init == 'init') != bool(init):
            found = f'{self.student_init!r} with config.init={init!r}'
            expected, fix = "'init' where config.init names the student, and nowhere else", 'change one of the two'
            raise UserError('config.distill.student_init', found, expected, fix)
        if not any(getattr(self, part) for part in (*HIDDEN_LOSSES, *OUTPUT_LOSSES)):
            found, fix = 'all parts at 0', 'for example --config.distill.soft=1'
            raise UserError(
                'config.distill', found, 'something to learn: ' + ', '.join((*OUTPUT_LOSSES, *HIDDEN_LOSSES)), fix
            )
        if self.num_layers and self.student_init == 'init':
            fix = 'leave it 0'
            raise UserError('config.distill.num_layers', str(self.num_layers), "0: it is config.init's", fix)
        if self.num_layers and self._listed and len(self._listed) != self.num_layers:
            found = f'{self.num_layers} with student_init={self.student_init}'
            raise UserError('config.distill.num_layers', found, f'{len(self._listed)}, or 0', 'leave it 0')
        if self.in_two and not (self._some(HIDDEN_LOSSES) and self._some(OUTPUT_LOSSES)):
            expected = (
                f'parts for both stretches: one of {", ".join(HIDDEN_LOSSES)} and one of {", ".join(OUTPUT_LOSSES)}'
            )
            raise UserError('config.distill.intermediate', str(self.intermediate), expected, 'leave it 0')
        if self.augment and not (self.soft or self._some(HIDDEN_LOSSES)):
            expected = 'config.distill.soft above 0: a row that is made up has no label but the teacher'
            raise UserError('config.distill.augment', str(self.augment), f'0, or {expected}', 'leave it 0')

        for key, without in self._unread.items():
            if f'distill.{key}' in given and getattr(self, key):
                found = f'{getattr(self, key)!r} {without}'
                raise UserError(f'config.distill.{key}', found, 'nothing, as it is not read then', 'leave it out')

    @property
    def _unread(self) -> dict[str, str]:
        """The keys that nothing reads, and for want of what."""
        read = {
            'temperature': (self.soft, 'with config.distill.soft=0'),
            'layers': (self.hidden or self.attention, 'with neither hidden states nor attention compared'),
            'projection': (self._some(('cosine', 'hidden', 'embeddings')), 'with no hidden states compared'),
            'intermediate_learning_rate': (self.in_two, 'with config.distill.intermediate=0'),
            **dict.fromkeys(_AUGMENTING, (self.augment, 'with config.distill.augment=0')),
        }
        return {key: without for key, (by, without) in read.items() if not by}

    def _some(self, parts: tuple[str, ...]) -> bool:
        return any(getattr(self, part) for part in parts)

    @property
    def in_two(self) -> bool:
        """Whether what is computed on the way is taught first, alone."""
        return parse_duration(self.intermediate)[0] > 0

    @property
    def _listed(self) -> tuple[int, ...]:
        """The blocks of the teacher that `student_init` names by number."""
        return _numbers(self.student_init)

    def student_layers(self, teacher: BertConfig, count: int = 0) -> tuple[int, ...] | None:
        """The blocks of the teacher that the student begins as; None where it begins as something else.

        Args:
          teacher: to be copied from.
          count: the student's blocks; 0 for `num_layers`.

        Raises:
          UserError: more than the teacher has, or as many as the student does not have.
        """
        if self.student_init in ('init', 'random'):
            return None
        wanted = count or self.num_layers or -(-teacher.num_layers // 2)
        chosen = self._listed or evenly_spaced_layers(wanted, teacher.num_layers)
        where = 'config.model.num_layers' if count and not self._listed else 'config.distill.student_init'
        _check_numbers(where, chosen, teacher, fix='take fewer, or begin with --config.distill.student_init=random')
        if count and len(chosen) != count:
            found, expected = f'{len(chosen)} blocks ({self.student_init})', f'config.model.num_layers = {count}'
            raise UserError('config.distill.student_init', found, expected, 'make the two agree')
        return chosen

    def lesson(self, teacher: BertConfig, student: BertConfig) -> DistillSpec:
        """What is taught, all parts of it.

        Raises:
          UserError: a teacher whose layers, width or heads the student's cannot be compared with.
        """
        L, of = student.num_layers, teacher.num_layers
        maps = {'uniform': uniform_layers, 'alternate': evenly_spaced_layers}
        layers = maps[self.layers](L, of) if self.layers in maps else _numbers(self.layers)
        if self.hidden or self.attention:
            if len(layers) != L:
                found, expected = f'{len(layers)} blocks ({self.layers})', f'{L}, one for each of the student'
                raise UserError('config.distill.layers', found, expected, "for example 'uniform'")
            fix = 'give the student no more blocks than its teacher has, or name blocks of it'
            _check_numbers('config.distill.layers', layers, teacher, fix)
        else:
            layers = ()
        if self._some(('cosine', 'hidden', 'embeddings')) and not self.projection and student.width != teacher.width:
            found = f'a student of width {student.width}'
            expected = f'the width of its teacher, {teacher.width}, to compare hidden states without a projection'
            raise UserError('config.distill.projection', found, expected, 'set --config.distill.projection=true')
        if self.attention and student.num_heads != teacher.num_heads:
            found = f'a student with {student.num_heads} heads'
            expected, fix = f'as many as its teacher, {teacher.num_heads}', 'set --config.distill.attention=0'
            raise UserError('config.distill.attention', found, expected, fix)
        factors = {part: getattr(self, part) for part in (*HIDDEN_LOSSES, *OUTPUT_LOSSES)}
        compares = self._some(('cosine', 'hidden', 'embeddings'))
        return DistillSpec(factors, self.temperature, layers, self.projection and compares)

    def intermediate_steps(self, total: int, batches: int) -> int:
        """How many of `total` steps come before the outputs are taught, of epochs with `batches` batches each.

        Raises:
          UserError: all of them, or none.
        """
        if not self.in_two:
            return 0
        steps = in_steps(self.intermediate, 'distill.intermediate', total=total, steps_per_epoch=batches)
        if not 0 < steps < total:
            expected = f'1 to {total - 1} of the {total} steps of the run'
            found = f'{self.intermediate}, which is {steps} steps'
            raise UserError('config.distill.intermediate', found, expected, 'lower it, or raise config.epochs')
        return steps

    def describe(self, lesson: DistillSpec) -> str:
        """What counts, and which block follows which, in a line."""
        parts = ', '.join(f'{factor:g} x {part}' for part, factor in lesson.factors.items() if factor)
        line = f'taught: {parts}' + (f'; temperature {self.temperature:g}' if self.soft else '')
        line += '; through a learned projection' if lesson.projection else ''
        follows = ', '.join(map(str, lesson.layers))
        return line + (f'; its blocks follow {follows} of the teacher' if lesson.layers else '')


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(','))) if text[:1].isdigit() else ()


def _check_numbers(where: str, chosen: tuple[int, ...], teacher: BertConfig, fix: str) -> None:
    of = teacher.num_layers
    if len(chosen) > of or max(chosen, default=0) >= of or min(chosen, default=0) < 0:
        found = f'{len(chosen)} blocks' if len(chosen) > of else f'block {max(chosen)}'
        raise UserError(where, found, f'what a teacher of {of} has: blocks 0 to {of - 1}', fix)
