"""A training and its phases: their initial states, compiled steps and batches."""

import abc
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
import numpy as np

from bertjax.checkpoint.position import Position
from bertjax.config.run import RunKeys
from bertjax.data.batch import BatchSpec
from bertjax.data.loader import Loader, NumberedBatch
from bertjax.metrics.rows import WeightedSums
from bertjax.model.dropout import fold_seed
from bertjax.optim.schedules import Schedule
from bertjax.parallel.distributed import has_separate_workdirs, is_multiprocess, primary_first, wait_for_all
from bertjax.parallel.partition import batch_sharding, replicated
from bertjax.training.compiled_steps import CompiledSteps, compile_steps
from bertjax.training.evaluate import OnCompile
from bertjax.training.setup import PhaseSettings, Setup
from bertjax.training.state import TrainState
from bertjax.training.vmapped_runs import StackedExamples, VmappedRun


class EvaluatorProtocol(Protocol):
    """An evaluator of parameters on examples that are not trained on."""

    split: str  # the name of these examples in metrics rows, such as 'heldout' or 'dev'

    def run(
        self, params: Any, on_compile: OnCompile = contextlib.nullcontext
    ) -> tuple[dict[str, float | None], float | None]:
        """Returns the values of a metrics row, and the value that selects the best checkpoint (lower is better)."""
        ...


class TrainStep:
    """The compiled train step, (state, batch) -> (state, metrics). It donates the state.

    `schedule` is on the devices. `seed` is the dropout seed of the phase, uint32 [], or [M] for M stacked members.
    """

    def __init__(
        self,
        programs: CompiledSteps,
        schedule: Schedule,
        seed: jax.Array,
        on_compile: OnCompile = contextlib.nullcontext,
        teacher: tuple[Any, ...] = (),
    ):
        self._programs, self._on_compile, self._constant = programs, on_compile, (schedule, seed, *teacher)

    def __call__(self, state: TrainState, batch: NumberedBatch) -> tuple[TrainState, Any]:
        program = self._programs.program(batch.arrays['input_ids'].shape[-1], self._on_compile)
        result = program(state, batch.arrays, batch.number, *self._constant)
        self._programs.compile_rest()
        return result

    def prepare(self) -> None:
        """Compiles the step for all lengths now, so that a benchmark does not measure the compilation."""
        for length in self._programs.lengths:
            self._programs.program(length, self._on_compile)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the training with one batch size and one schedule."""

    settings: PhaseSettings
    setup: Setup
    members: Sequence[VmappedRun]  # the runs that are trained together; often only one
    batches: Mapping[int, BatchSpec]  # {padded length: shapes and dtypes of a batch of one member}
    stacked: bool = False  # whether state and batches have an axis for the members
    evaluator: EvaluatorProtocol | None = None  # the evaluator for the best checkpoint; None without held-out examples
    other_evaluators: Sequence[EvaluatorProtocol] = ()  # evaluators that do not affect the best checkpoint
    flops_per_row: float = 0.0  # FLOPs of a training step per row, summed over all members; 0 if unknown
    may_be_best: bool = True  # whether a checkpoint may be the best; False if the phase does not train the head
    teacher: tuple[Any, ...] = ()  # (teacher parameters,) on the mesh if the objective has a `teacher_fn`

    def begin(self, state: TrainState) -> TrainState:
        """Converts the last state of the previous phase to the first state of this phase."""
        return self.setup.reset_optimizer(state) if self.settings.reset_optimizer else state

    def compile(self, on_compile: OnCompile = contextlib.nullcontext) -> TrainStep:
        """Returns the train step, which compiles its programs at their first use or earlier; see `CompiledSteps`."""
        peaks = np.asarray([member.learning_rate for member in self.members], np.float32)
        seeds = np.asarray([member.dropout_seed for member in self.members], np.uint32)
        if not self.stacked:
            (peaks,), (seeds,) = peaks, seeds
        seeds = np.asarray(jax.jit(fold_seed)(seeds, self.settings.number))
        numbers = jax.device_put((self.settings.make_schedule(peaks), seeds), replicated(self.setup.mesh))
        return TrainStep(self._programs(), *numbers, on_compile, self.teacher)

    @contextlib.contextmanager
    def compiling(self, first: int, steps: int) -> Iterator[None]:
        """A context in which a CPU compiles the step in the background, for `steps` batches from example `first` on."""
        programs, examples = self._programs(), self.members[0].examples
        # Only `BucketedExamples` have batches of several lengths.
        programs.compile_ahead(self.batches if len(self.batches) == 1 else examples.upcoming_lengths(first, steps))
        try:
            yield
        finally:
            programs.stop()

    def _programs(self) -> CompiledSteps:
        members = len(self.members) if self.stacked else 0
        return compile_steps(self.setup, self.settings, self.batches, members=members)

    def load(self, first: int) -> Loader:
        """Loads the batches from example `first` on."""
        member_examples = [member.examples for member in self.members]
        examples = StackedExamples(member_examples) if self.stacked else member_examples[0]
        # This call makes the pairing plans before the throughput is measured. In a shared workdir, the primary process
        # makes the plans, and the other processes read its files.
        with contextlib.nullcontext() if has_separate_workdirs() else primary_first(sync_workdirs=False):
            examples.batch(np.asarray([first]))
        if is_multiprocess():
            wait_for_all()  # The watchdog allows more time here than in a step.
        return Loader(
            examples, first=first, batch_size=self.settings.batch_size, sharding=batch_sharding(self.setup.mesh)
        )


class Experiment(abc.ABC):
    """The base class of a training: a pre-training, a fine-tuning, or several fine-tunings together.

    Attributes:
      settings: The settings of the run, with `steps`, `eval_every` and `checkpoint_every` in steps.
      resolved: The settings in plain form, and fingerprints. They are saved in config.json and every checkpoint.
      folders: The folder of each run, for its rows and its ledger.
      values: A function from sums of training batches to the values of a row.
      files: {name in the workdir: text} of further files to write before the first step.
      position: The position from which the run continues. `resume_or_start` sets it.
      evaluate_first: Whether to evaluate before the first step. `init_state` sets it to False if the head is random.
    """

    settings: RunKeys
    setup: Setup
    resolved: dict[str, Any]
    folders: Sequence[pathlib.Path]
    values: Callable[[WeightedSums], dict[str, float | None]]
    files: Mapping[str, str] = MappingProxyType({})
    position: Position = Position()
    evaluate_first: bool = True

    @property
    def run_configs(self) -> Sequence[Mapping[str, Any]]:
        """The resolved settings of each run, in the order of `folders`."""
        return [self.resolved]

    def eval_fingerprints(self) -> dict[str, str]:
        """Returns {split: fingerprint} of the evaluation data, which must be the same in all processes."""
        return {}

    @property
    def template(self) -> TrainState:
        """The abstract state: the shapes, dtypes and shardings of its arrays."""
        return self.setup.state

    @abc.abstractmethod
    def init_state(self) -> TrainState:
        """Returns the state of step 0."""

    @abc.abstractmethod
    def phases(self) -> Sequence[Phase]:
        """Returns the phases of the training loop."""

    def describe(self) -> str:
        """Returns a description, which is printed before training starts; '' for none."""
        return ''

    def details(self) -> str:
        """Returns lines for the log: the mesh, the attention implementation, the parameters with weight decay."""
        return ''
