"""The loop. Its order is law: batch, update, note, evaluate, save; the position advances only with the state."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bertjax.checkpoint import Checkpoints, Position
from bertjax.errors import PreemptedError
from bertjax.parallel.distributed import broadcast_from_primary
from bertjax.train.early_stopping import EarlyStopping
from bertjax.train.goodput_clock import DATA, EVALUATION, SAVE
from bertjax.train.interrupt import Interrupt
from bertjax.train.phase import Phase
from bertjax.train.process_flags import AnyProcessFlags
from bertjax.train.record import Recorder
from bertjax.train.state import TrainState


def train(
    state: TrainState,
    position: Position,
    phases: Sequence[Phase],
    *,
    recorder: Recorder,
    checkpoints: Checkpoints,
    resolved: Mapping[str, Any],
    eval_every: int,
    checkpoint_every: int,
    checkpoint_minutes: float,
    interrupt: Interrupt,
    patience: EarlyStopping,
) -> TrainState:
    """Trains from `position` to the end of the last phase, or of patience: one run, or several together.

    Args:
      state: the state at `position`; donated.
      position: where to begin; (0, 0, 0) for a new run.
      phases: all phases of the run.
      recorder: takes each step's example numbers and metrics, and the evaluations.
      checkpoints: where the state is saved.
      resolved: the resolved config, which every checkpoint holds.
      eval_every: steps between evaluations (0: only at the end, and at the start where the phase asks for it).
      checkpoint_every: steps between checkpoints (0: only at the end). One that falls on a step that was not finite is
        left out.
      checkpoint_minutes: the longest time between checkpoints (0: any).
      interrupt: whether somebody asked to stop.
      patience: ends the last phase where it no longer gets better; what is the best of it so far is saved.

    Returns:
      The final state.

    Raises:
      PreemptedError: after an interrupt, when the state is saved.
      NonFiniteError: three steps in a row were not finite.
    """
    total = phases[-1].settings.last_step
    votes, sheet = AnyProcessFlags(), recorder.sheet
    saved_at = time.perf_counter()

    def evaluate(phase: Phase) -> float | None:
        own = [phase.evaluator] if phase.evaluator is not None else []
        costs = []
        for evaluator in (*own, *phase.others):
            with interrupt.during(f'{evaluator.split} is being evaluated'), sheet.during(EVALUATION):
                values = evaluator.run(state.params, recorder.report_compile)
            recorder.evaluation(position, evaluator.split, values)
            costs.append(evaluator.cost(values))
        return costs[0] if own else None

    @contextlib.contextmanager
    def compiling(what: str) -> Iterator[None]:
        with interrupt.during('the training step is being compiled'), recorder.compiling(what):
            yield

    # Asked while everything was prepared: nothing is new to save.
    if broadcast_from_primary(interrupt.requested()) and position.step < total and not patience.over:
        raise _stopped(position)
    for phase in phases:
        number, first_step, last_step = phase.settings.number, phase.settings.first_step, phase.settings.last_step
        if position.step >= last_step or patience.over:
            continue
        if position.phase != number:
            position = Position(position.step, number, 0)
        interrupt.doing = 'the run is being prepared'
        sheet.prepare()
        with phase.compiling(position.next, last_step - position.step):
            if position.step == first_step:
                state = phase.begin(state)
            if position.step == 0 and phase.measured_first:
                evaluate(phase)
            step = phase.compile(compiling)
            batches = phase.load(position.next)
            recorder.begin_phase(phase.flops_per_sequence)
            interrupt.doing = 'the step under way goes to its end'
            try:
                while position.step < last_step and not patience.over:
                    asked = time.perf_counter()
                    with sheet.during(DATA):
                        batch = next(batches)
                    got = time.perf_counter()

                    with recorder.tracing(position.step + 1):
                        state, metrics = step(state, batch)
                    position = Position(position.step + 1, number, batch.first + batch.count)
                    recorder.step(position, batch, metrics, got - asked, saving=checkpoints.writing)
                    # Freed when `next` is there, it would hand the interpreter's lock to the loader for a whole batch.
                    del batch

                    last, late = position.step == total, 0 < 60 * checkpoint_minutes <= got - saved_at
                    stop, late = votes(interrupt.requested(), late)
                    must_evaluate = last or _due(position.step, eval_every)
                    may_save = late or _due(position.step, checkpoint_every)
                    if not (last or stop or must_evaluate or may_save):
                        continue
                    recorder.drain()  # waits for the devices: that time belongs to training
                    paused = time.perf_counter()
                    cost = evaluate(phase) if must_evaluate else None
                    # Of several phases the last one counts: what an earlier one teaches need not show.
                    if must_evaluate and patience.limit and phase is phases[-1]:
                        may_save |= patience.note(cost)
                        last |= patience.over
                    cost = cost if phase.chosen else None
                    # After a step that was not finite the parameters are suspect, and what they would displace is not.
                    if last or stop or (may_save and not recorder.suspect):
                        failed = {'failed': recorder.failed} if any(recorder.failed) else {}  # of runs trained together
                        if stop or last:
                            interrupt.doing = f'checkpoint {position.step} is being written'
                        with sheet.during(SAVE):
                            recorder.sync()  # before the checkpoint that counts on it
                            checkpoints.save(state, position, {**resolved, **failed, **patience.state}, cost)
                            if stop and not last:
                                checkpoints.wait()  # that it is saved is said of what is whole, in all processes
                        saved_at = time.perf_counter()
                        votes.forget()
                    if stop and not last:
                        raise _stopped(position)
                    recorder.pause(time.perf_counter() - paused)
            finally:
                batches.close()
            recorder.end_phase()
    return state


def _stopped(position: Position) -> PreemptedError:
    return PreemptedError(f'stopped at step {position.step} as asked; the same command continues there')


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
