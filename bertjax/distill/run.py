"""A distillation made ready: a pre-training, or a fine-tuning, whose student learns from a teacher as well."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from bertjax.convert.load import load_pretraining_model, load_task_model, read_config
from bertjax.distill.objective import HIDDEN_LOSSES, OUTPUT_LOSSES, distill_objective
from bertjax.distill.settings import DistillationSettings
from bertjax.distill.teacher import Teacher, check_rows, check_vocabulary, teacher_config_changes, teacher_directory
from bertjax.errors import UserError
from bertjax.finetune.packing import PackingDecision
from bertjax.finetune.run import Finetuning
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.losses import Objective
from bertjax.metrics.rows import distillation_values
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.optim.optimizers import make_optimizer
from bertjax.pretrain.run import Pretraining, batch_objective, build_pretraining_setup
from bertjax.pretrain.settings import PretrainingPhase, PretrainingSettings
from bertjax.pretrain.text_data import huggingface_directory
from bertjax.text.tokenizer import load_tokenizer
from bertjax.train.phase import Phase
from bertjax.train.setup import Setup, build_setup
from bertjax.train.state import TrainState


def student_params(settings: PretrainingSettings, student: BertConfig) -> dict[str, Any] | None:
    """The parameters with which a recorded run began where they were blocks of its teacher; None where they were not.

    Raises:
      UserError: the teacher is no longer there.
    """
    if settings.distill is None or settings.distill.student_init in ('init', 'random'):
        return None
    distill = DistillationSettings(**dataclasses.asdict(settings.distill))
    teacher = _load_teacher(settings, distill, student, None)
    return teacher.as_student(distill.student_layers(teacher.config, student.num_layers), student)


def _load_teacher(
    settings: PretrainingSettings, distill: DistillationSettings, student: BertConfig, mesh: Mesh | None
) -> Teacher:
    directory = teacher_directory(distill.teacher)
    changes = {'seed': settings.run_seeds.init, 'nsp': student.nsp, **teacher_config_changes(student.dtype)}
    imported = load_pretraining_model(directory, **changes)
    check_rows(directory, imported.config.vocab_size, student.vocab_size)
    return Teacher(directory, BertForPreTraining(imported.config), imported, mesh)


class PretrainingDistillation(Pretraining):
    """A pre-training whose student learns from a teacher, on the text of config.corpus.

    Made, everything that can be wrong with the teacher has been refused, before the text is read.

    Attributes: see Pretraining; and
      teacher: of config.distill.
    """

    def __init__(self, settings: PretrainingSettings, distill: DistillationSettings, folder: pathlib.Path, mesh: Mesh):
        directory = teacher_directory(distill.teacher)
        if not settings.tokenizer and not settings.init:
            settings = dataclasses.replace(settings, tokenizer=directory)
        tokenizer = load_tokenizer(settings.tokenizer or huggingface_directory(settings.init))
        check_vocabulary(directory, tokenizer)
        student = settings.model_config(tokenizer.vocab_size)
        self.distill = distill
        self.teacher = _load_teacher(settings, distill, student, mesh)
        self.teacher.check_length(max(phase.values['seq_len'] for phase in settings.given_phases))
        self.teacher.check_segments(settings.corpus_options.segments)
        if distill.soft:
            self.teacher.check_head(('mlm',), 'a masked language model')
        self._copied = distill.student_layers(self.teacher.config, student.num_layers)
        if self._copied is not None:
            self.teacher.check_copies(student)
        self.lesson = distill.lesson(self.teacher.config, student)
        super().__init__(settings, folder, mesh)
        self.values = functools.partial(distillation_values, factors=self.setup.objective.factors)

    def _build_setup(self, mesh: Mesh) -> Setup:
        objective = self._objective(batch_objective(self.settings))
        return build_pretraining_setup(self.settings, self.model, mesh, objective, (self.teacher.abstract,))

    def _objective(self, plain: Objective) -> Objective:
        return distill_objective(plain, self.lesson, self.teacher.model, self.model)

    def _fingerprints(self) -> dict[str, str]:
        return {**super()._fingerprints(), 'teacher': self.teacher.fingerprint}

    def fresh(self) -> TrainState:
        """The state of step 0: drawn, the weights of config.init, or blocks of the teacher."""
        if self._copied is None:
            return super().fresh()
        print(f'starting from blocks {", ".join(map(str, self._copied))} of {self.teacher.directory}')
        return self.setup.create_from(self.teacher.as_student(self._copied, self.model), self.settings.run_seeds.init)

    def _eval_step(self) -> Callable[[Any, Any], Any]:
        step = super()._eval_step()
        return lambda params, batch: step(params, batch, self.teacher.params)

    def _phase(self, phase: PretrainingPhase) -> Phase:
        made = super()._phase(phase)
        asked = train_flops_per_sequence(self.teacher.config, phase.seq_len, phase.max_predictions) / 3  # forward alone
        flops = made.flops_per_sequence + asked
        return dataclasses.replace(made, teacher=(self.teacher.params,), flops_per_sequence=flops)

    def describe(self) -> str:
        """A description that is printed before training starts."""
        return '\n'.join([self.teacher.describe(), self.distill.describe(self.lesson), super().describe()])


def student_encoder(distill: DistillationSettings, teacher: BertConfig) -> BertConfig:
    """The encoder of a task's student that is not config.init's: the teacher's, with fewer blocks.

    Raises:
      UserError: more than the teacher has.
    """
    copied = distill.student_layers(teacher)
    count = len(copied) if copied is not None else distill.num_layers or -(-teacher.num_layers // 2)
    return dataclasses.replace(teacher, num_layers=count)


def task_teacher(data: TaskData, distill: DistillationSettings, mesh: Mesh) -> Teacher:
    """The teacher of a task's student, looked at as a whole: no record need have been tokenised.

    Args:
      data: with the encoder of the student; its task has learned its labels.
      distill: of the run.
      mesh: where the teacher is put.

    Raises:
      UserError: one of another vocabulary, without the task's head, or that cannot be compared with the student.
    """
    task, directory = data.task, teacher_directory(distill.teacher)
    check_vocabulary(directory, data.tokenizer)
    model = task.model(read_config(directory, **teacher_config_changes(data.encoder.dtype)))
    labels = task.huggingface().get('id2label')
    imported = load_task_model(directory, model, task.head, id2label=labels, seed=data.settings.run_seeds.init)
    teacher = Teacher(directory, model, imported, mesh)
    teacher.check_length(data.settings.seq_len)
    if distill.soft:
        parts = ('pooler', 'head', 'mix', 'bilstm')
        teacher.check_head(parts, f'a model tuned to {task.name}, with the same labels')
    distill.lesson(model.config, data.encoder)  # raises
    return teacher


class TaskDistillation(Finetuning):
    """A fine-tuning whose student learns from a model that is tuned to the same task.

    With config.distill.intermediate it has two phases, as TinyBERT's: what is computed on the way, then the outputs.

    Attributes: see Finetuning; and
      teacher: see `task_teacher`.
    """

    def __init__(
        self, data: TaskData, distill: DistillationSettings, teacher: Teacher, folder: pathlib.Path, mesh: Mesh
    ):
        self.distill, self.teacher = distill, teacher
        self._copied = distill.student_layers(teacher.config, data.encoder.num_layers)
        self.lesson = distill.lesson(teacher.config, data.encoder)
        super().__init__(data, folder, mesh)
        self._first = distill.intermediate_steps(self.settings.steps, self._examples.batches)
        self._setups = [self._build_setup(parts, mesh) for parts in self._stretches()]
        self.setup = self._setups[0]
        factors = {name: factor for setup in self._setups for name, factor in setup.objective.factors.items()}
        self.values = functools.partial(distillation_values, factors=factors)

    def _decide(self, train: TaskSplit, mesh: Mesh, passes: float, before: str) -> PackingDecision:
        """Never: what is computed on the way is compared row by row."""
        if self.data.settings.packing == 'on':
            raise UserError('config.packing', "'on' in a distillation", "'auto' or 'off'", 'leave it out')
        return PackingDecision(None, 'a student learns from rows as they are')

    def _stretches(self) -> list[tuple[str, ...]]:
        """The parts that are taught in each phase."""
        return [HIDDEN_LOSSES, OUTPUT_LOSSES] if self.distill.in_two else [(*HIDDEN_LOSSES, *OUTPUT_LOSSES)]

    def _build_setup(self, parts: tuple[str, ...], mesh: Mesh) -> Setup:
        plain, settings = self.model.setup, self.settings
        objective = distill_objective(plain.objective, self.lesson.only(parts), self.teacher.model, self.data.encoder)
        return build_setup(
            plain.model,
            objective,
            make_optimizer(**vars(settings.optimizer)),
            mesh,
            self._train.features.spec(1, self.model.shapes[0]),
            trained=plain.trained,
            layer_decay=settings.layer_decay,
            zero1=settings.zero1,
            teacher=(self.teacher.abstract,),
        )

    def _fingerprints(self) -> dict[str, str]:
        return {**super()._fingerprints(), 'teacher': self.teacher.fingerprint}

    def fresh(self) -> TrainState:
        """The state of step 0: that of config.init, blocks of the teacher with its head, or drawn."""
        seed = self.settings.run_seeds.init
        if self.distill.student_init == 'init':
            return self.setup.create_from(super().fresh().params, seed)
        if self._copied is None:
            print('starting from random weights')
            self._drawn_head = True
            return self.setup.create(seed)
        print(f'starting from blocks {", ".join(map(str, self._copied))} of {self.teacher.directory}, and its head')
        return self.setup.create_from(self.teacher.as_student(self._copied, self.data.encoder), seed)

    @property
    def _rates(self) -> list[float]:
        """The learning rate of each phase."""
        rate = self.settings.learning_rate
        return [self.distill.intermediate_learning_rate or rate, rate] if self.distill.in_two else [rate]

    def phases(self) -> list[Phase]:
        """What the loop works through: one phase, or two."""
        (whole,) = super().phases()
        (member,), examples = whole.members, self._examples
        asked = train_flops_per_sequence(self.teacher.config, round(examples.mean_length), 0) / 3  # forward alone
        flops = whole.flops_per_sequence + asked if whole.flops_per_sequence else 0.0
        bounds = [0, self._first, self.settings.steps] if self.distill.in_two else [0, self.settings.steps]
        return [
            dataclasses.replace(
                whole,
                settings=dataclasses.replace(
                    whole.settings,
                    number=number,
                    first_step=bounds[number],
                    last_step=bounds[number + 1],
                    reset_optimizer=number > 0,
                ),
                setup=setup,
                members=[dataclasses.replace(member, learning_rate=self._rates[number])],
                flops_per_sequence=flops,
                chosen=number == len(self._setups) - 1,  # before it, the head has learned nothing
                teacher=(self.teacher.params,),
            )
            for number, setup in enumerate(self._setups)
        ]

    def describe(self) -> str:
        """A description that is printed before training starts."""
        lines = [self.teacher.describe(), self.distill.describe(self.lesson)]
        if self.distill.in_two:
            left = self.settings.steps - self._first
            own, rate = self._rates
            lines.append(f'{self._first:,} steps at {own:g} of what is computed on the way, then {left:,} at {rate:g}')
        return '\n'.join([*lines, super().describe()])
