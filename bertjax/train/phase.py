"""A phase as the loop works through it: how it begins, its compiled step, its batches."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from bertjax.data.batch import BatchSpec
from bertjax.data.length_buckets import BucketedExamples
from bertjax.data.loader import Loader, NumberedBatch
from bertjax.parallel.partition import batch_sharding, replicated
from bertjax.train.compiled_steps import CompiledSteps, Program
from bertjax.train.on_compile import OnCompile, ignore_compile
from bertjax.train.setup import PhaseSettings, Setup
from bertjax.train.state import TrainState
from bertjax.train.vmapped_runs import StackedExamples, VmappedRun


class EvaluatorProtocol(Protocol):
    """Measures parameters on what is not trained on.

    Attributes:
      split: what it measures on, as rows call it: 'heldout', 'dev'.
    """

    split: str

    def run(self, params: Any, on_compile: OnCompile = ignore_compile) -> dict[str, float | None]:
        """The values of a row; None where one is not defined. What is compiled on the way is announced."""
        ...

    def cost(self, values: Mapping[str, float | None]) -> float | None:
        """What the best checkpoint goes by; lower is better."""
        ...


class TrainStep:
    """(state, batch) -> (state, metrics). The state is donated. What is compiled is announced."""

    def __init__(
        self,
        programs: CompiledSteps,
        rate: jax.Array,
        seed: jax.Array,
        on_compile: OnCompile = ignore_compile,
        teacher: tuple[Any, ...] = (),
    ):
        self._programs, self._announce, self._constant = programs, on_compile, (rate, seed, *teacher)

    def __call__(self, state: TrainState, batch: NumberedBatch) -> tuple[TrainState, Any]:
        program = self._program(batch.arrays['input_ids'].shape[-1])
        done = program(state, batch.arrays, batch.number, *self._constant)
        self._programs.go_on()
        return done

    def prepare(self) -> None:
        """Compiles for all lengths now."""
        for length in self._programs:
            self._program(length)

    def _program(self, length: int) -> Program:
        programs = self._programs
        if programs.there(length):
            return programs[length]
        with self._announce(f'length {length} ({len(programs.ready) + 1} of {len(programs)})'):
            return programs[length]


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training with one schedule, of one run or of several together.

    Attributes:
      settings: its numbers.
      setup: of the run.
      members: one; or of runs trained together, several.
      batches: {padded length S: shapes and dtypes of the batches of one member}.
      stacked: whether state and batches have an axis of members.
      evaluator: None where nothing is held out.
      others: what is measured besides; the best checkpoint does not go by it.
      measured_first: whether before the first step, too: of a head that was only drawn nothing is learned by that.
      flops_per_sequence: of a training step of all members, a row; 0 where it is not known.
      chosen: whether the best checkpoint may be one of it: not where outputs are still to be taught.
      teacher: (its parameters,) on the mesh, where the objective of the setup has a guide.
    """

    settings: PhaseSettings
    setup: Setup
    members: Sequence[VmappedRun]
    batches: Mapping[int, BatchSpec]
    stacked: bool = False
    evaluator: EvaluatorProtocol | None = None
    others: Sequence[EvaluatorProtocol] = ()
    measured_first: bool = True
    flops_per_sequence: float = 0.0
    chosen: bool = True
    teacher: tuple[Any, ...] = ()

    def begin(self, state: TrainState) -> TrainState:
        """`state` as the very first step of the phase finds it."""
        return self.setup.reset_optimizer(state) if self.settings.reset_optimizer else state

    def compile(self, on_compile: OnCompile = ignore_compile) -> TrainStep:
        """The step, compiled for each shape of its batches when one comes for the first time."""
        rates = np.asarray([member.learning_rate for member in self.members], np.float32)
        seeds = np.asarray([member.dropout_seed for member in self.members], np.uint32)
        if not self.stacked:
            (rates,), (seeds,) = rates, seeds
        numbers = jax.device_put((rates, seeds), replicated(self.setup.mesh))
        return TrainStep(self._programs(), *numbers, on_compile, self.teacher)

    @contextlib.contextmanager
    def compiling(self, first: int, steps: int) -> Iterator[None]:
        """Compiles on a CPU the step for so many batches from example `first` on, beside whatever is done meanwhile:
        for the first one now, for the others when that is done."""
        programs = self._programs()
        programs.begin(self._coming(first, steps))
        try:
            yield
        finally:
            programs.stop()

    def _programs(self) -> CompiledSteps:
        count = len(self.members) if self.stacked else 0
        return self.setup.compile(self.settings, self.batches, members=count)

    def _coming(self, first: int, steps: int) -> Sequence[int]:
        """The lengths of these batches, in the order in which they are met."""
        examples = self.members[0].examples
        return examples.coming(first, steps) if isinstance(examples, BucketedExamples) else tuple(self.batches)

    def load(self, first: int) -> Loader:
        """The batches from example `first` on."""
        each = [member.examples for member in self.members]
        examples = StackedExamples(each) if self.stacked else each[0]
        examples.batch(np.asarray([first]))  # prepares what a first row needs (pairing plans) before the clock runs
        return Loader(
            examples,
            first=first,
            batch_size=self.settings.batch_size,
            sharding=batch_sharding(self.setup.mesh),
        )
