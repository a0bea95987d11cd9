"""The contribution of a teacher to a training. distill/ builds it; pretrain/ and finetune/ use it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertjax.losses import Objective


@dataclasses.dataclass(frozen=True)
class DistillationStage:
    """A part of the training with a separate objective and learning rate.

    Attributes:
      objective: A function from the objective of a run without a teacher to the objective of this stage.
      learning_rate: The peak learning rate; None for the run's peak learning rate.
    """

    objective: Callable[[Objective], Objective]
    learning_rate: float | None = None


@dataclasses.dataclass(frozen=True)
class Distillation:
    """The contribution of a teacher to a training.

    Attributes:
      stages: The one or two stages of the training, in order.
      abstract_params: The teacher's parameters: shapes, dtypes, shardings.
      params: () -> the teacher's parameters on the mesh.
      forward_flops: (sequence length, predictions per sequence) -> FLOPs of the teacher's forward pass for one
        sequence.
      fingerprint: The fingerprint of the teacher's weights, for the config of the run.
      description: Lines about the teacher and the losses, printed at the start of the run.
      first_stage_steps: (number of steps of the run, number of batches in an epoch) -> number of steps of the first of
        two stages.
      initial_params: () -> the student's initial parameters, as host arrays in the tree of the student's model. None if
        the student starts from config.init or from random weights.
      initial_weights: A line about the student's initial parameters, printed when they are made; '' for none.
      random: Whether the student of a task starts from random weights, even if the run has a config.init.
    """

    stages: Sequence[DistillationStage]
    abstract_params: Any
    params: Callable[[], Any]
    forward_flops: Callable[[int, int], float]
    fingerprint: str
    description: str
    first_stage_steps: Callable[[int, int], int] = lambda steps, batches: 0
    initial_params: Callable[[], Mapping[str, Any]] | None = None
    initial_weights: str = ''
    random: bool = False
