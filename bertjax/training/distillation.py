"""The contribution of a teacher to a training. distill/ builds it; pretrain/ and finetune/ use it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertjax.losses import Objective


@dataclasses.dataclass(frozen=True)
class DistillationStage:
    """A part of the training with a separate objective and learning rate."""

    # the objective of a run without a teacher -> the objective of this stage
    objective: Callable[[Objective], Objective] = lambda student: student
    learning_rate: float | None = None  # the peak; None for the run's peak


@dataclasses.dataclass(frozen=True)
class Distillation:
    """The contribution of a teacher to a training. The default values are those of a training without a teacher."""

    stages: Sequence[DistillationStage] = (DistillationStage(),)  # one or two
    abstract_teacher: tuple[Any, ...] = ()  # (the teacher's parameters,): shapes, dtypes, shardings
    teacher: Callable[[], tuple[Any, ...]] = tuple  # () -> (the teacher's parameters on the mesh,)
    # (sequence length, predictions per sequence) -> FLOPs of the teacher's forward pass for one sequence
    forward_flops: Callable[[int, int], float] = lambda seq_len, predictions: 0.0
    # {'teacher': the fingerprint of its weights}, for the config of the run
    fingerprints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    description: Sequence[str] = ()  # lines about the teacher and the losses, printed at the start of the run
    # (steps of the run, batches in an epoch) -> steps of the first of two stages
    first_stage_steps: Callable[[int, int], int] = lambda steps, batches: 0
    # () -> the student's initial parameters, as host arrays in the tree of the student's model. None if the student
    # starts from config.init or from random weights.
    initial_params: Callable[[], Mapping[str, Any]] | None = None
    has_head: bool = False  # whether `initial_params` has the trained head of the teacher's task
    initial_weights: str = ''  # a line about the student's initial parameters, printed when they are made
    random: bool = False  # whether the student of a task starts from random weights


NO_TEACHER = Distillation()
