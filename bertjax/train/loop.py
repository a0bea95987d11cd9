"""The loop. Its order is law: batch, update, note, evaluate, save; the position advances only with the state."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax

from bertjax.checkpoint import Position
from bertjax.data.loader import Loader
from bertjax.errors import PreemptedError
from bertjax.train.record import Recorder
from bertjax.train.state import TrainState
from bertjax.train.throughput import Stopwatch


class Evaluates(Protocol):
    """Measures parameters."""

    def run(self, params: Any) -> Any:
        """What the recorder's Reporting understands."""
        ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training with one shape of batch and one schedule.

    Attributes:
      number: from 0; part of what example n is a function of.
      first_step: the run's step at which the phase begins.
      last_step: ... and at which it ends.
      begin: state -> state at the very start of the phase (resets the optimiser, or nothing).
      compile: () -> the compiled step: (state, arrays) -> (state, metrics). The state is donated.
      load: number of an example -> loader of batches from there on.
      evaluator: of what is not trained on (`run` of the parameters); None where nothing is held out.
      flops_per_sequence: of a training step.
    """

    number: int
    first_step: int
    last_step: int
    begin: Callable[[TrainState], TrainState]
    compile: Callable[[], Callable[[TrainState, Mapping[str, jax.Array]], tuple[TrainState, Any]]]
    load: Callable[[int], Loader]
    evaluator: Evaluates | None
    flops_per_sequence: float


def train(
    state: TrainState,
    position: Position,
    phases: Sequence[Phase],
    *,
    recorder: Recorder,
    stopwatch: Stopwatch,
    save: Callable[[TrainState, Position, float | None], None],
    eval_every: int,
    checkpoint_every: int,
    interrupted: Callable[[], bool],
) -> TrainState:
    """Trains from `position` to the end of the last phase.

    Args:
      state: the state at `position`; donated.
      position: where to begin; (0, 0, 0) for a new run.
      phases: all phases of the run.
      recorder: takes each step's example numbers and metrics.
      stopwatch: measures the steps; evaluation and saving are left out.
      save: starts to save (state, position, the cost measured at this very step or None).
      eval_every: steps between evaluations (0: only at the start and the end).
      checkpoint_every: steps between checkpoints (0: only at the end). One that falls on a step that was not finite is
        left out.
      interrupted: whether somebody asked to stop.

    Returns:
      The final state.

    Raises:
      PreemptedError: after `interrupted`, when the state is saved.
      NonFiniteError: three steps in a row were not finite.
    """
    total = phases[-1].last_step

    def evaluate(phase: Phase) -> float | None:
        if phase.evaluator is None:
            return None
        return recorder.evaluation(position, phase.evaluator.run(state.params))

    for phase in phases:
        if position.step >= phase.last_step:
            continue
        if position.phase != phase.number:
            position = Position(position.step, phase.number, 0)
        if position.step == phase.first_step:
            state = phase.begin(state)
        if position.step == 0:
            evaluate(phase)
        compiled = phase.compile()
        batches = phase.load(position.next)
        stopwatch.flops_per_sequence = phase.flops_per_sequence
        stopwatch.restart()
        try:
            while position.step < phase.last_step:
                asked = time.perf_counter()
                batch = next(batches)
                got = time.perf_counter()

                state, metrics = compiled(state, batch.arrays)
                position = Position(position.step + 1, phase.number, batch.first + batch.count)
                recorder.step(position, batch, metrics, got - asked)

                last, stop = position.step == total, interrupted()
                must_evaluate = last or _due(position.step, eval_every)
                may_save = _due(position.step, checkpoint_every)
                if not (last or stop or must_evaluate or may_save):
                    continue
                recorder.drain()  # waits for the devices: that time belongs to training
                paused = time.perf_counter()
                cost = evaluate(phase) if must_evaluate else None
                # After a step that was not finite the parameters are suspect, and what they would displace is not.
                if last or stop or (may_save and not recorder.skipped_in_row):
                    save(state, position, cost)
                if stop and not last:
                    raise PreemptedError(f'stopped at step {position.step} as asked; the same command continues there')
                stopwatch.pause(time.perf_counter() - paused)
        finally:
            batches.close()
        recorder.end_phase()
    return state


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
