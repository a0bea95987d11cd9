"""The training loop. An iteration loads a batch, trains on it, records the step, and evaluates and saves if due."""

import contextlib
import time
from collections.abc import Iterator, Sequence

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.checkpoint.position import Position
from bertjax.data.loader import Loader
from bertjax.errors import PreemptedError
from bertjax.parallel.distributed import broadcast_from_primary
from bertjax.training.any_process_flags import AnyProcessFlags
from bertjax.training.caller import CALLER
from bertjax.training.early_stopping import EarlyStopping
from bertjax.training.health.goodput_clock import DATA, EVALUATION, SAVE
from bertjax.training.health.interrupt import Interrupt
from bertjax.training.phase import EvaluatorProtocol, Experiment, Phase, TrainStep
from bertjax.training.record import Recorder
from bertjax.training.state import TrainState
from bertjax.training.time_limit import PhaseTimeError, TimeLimit


class Loop:
    """Trains one run, or several runs together. Evaluates and saves at the intervals of the settings and at the end.

    If `early_stopping` has a limit, each new best state of the last phase is also saved. A save is skipped if the last
    step was not finite, unless the loop stops or ends there. `time_limit` can end a phase; None for no limit.
    """

    def __init__(
        self,
        experiment: Experiment,
        phases: Sequence[Phase],
        recorder: Recorder,
        checkpoints: Checkpoints,
        interrupt: Interrupt,
        early_stopping: EarlyStopping,
        time_limit: TimeLimit | None = None,
    ):
        self._settings, self._config, self._phases = experiment.settings, experiment.resolved, phases
        self._recorder, self._checkpoints, self._interrupt = recorder, checkpoints, interrupt
        self._early_stopping, self._time_limit = early_stopping, time_limit
        self._evaluate_first = experiment.evaluate_first
        self._clock, self._any_process = recorder.run_clock, AnyProcessFlags()
        self._saved_at, self._saved_step = time.perf_counter(), 0

    def run(self, state: TrainState, position: Position) -> TrainState:
        """Trains from `position` (`Position()` for a new run) to the end, and returns the final state. Donates `state`.

        Raises:
          PreemptedError: A signal requested a stop, and all finished steps are saved.
          PhaseTimeError: The time of a phase is used up, and the state is saved.
          NonFiniteError: A single run had three non-finite steps in a row, see `Recorder`.
        """
        self._state, self._position, stopping = state, position, self._early_stopping
        total = self._phases[-1].settings.last_step
        # A stop that is requested before the first step of this process needs no save, because nothing has changed.
        if broadcast_from_primary(self._interrupt.requested()) and position.step < total and not stopping.should_stop:
            raise self._stopped()
        for phase in self._phases:
            if self._position.step < phase.settings.last_step and not stopping.should_stop:
                self._run_phase(phase)
        if position.step == total:
            self._evaluate_new_splits()
        return self._state

    def _run_phase(self, phase: Phase) -> None:
        settings = phase.settings
        # If the previous phase has been shortened, a resumed run enters this phase after its first step.
        is_start = self._position.step == settings.phase_steps[0] or self._position.phase < settings.number
        if self._position.phase > settings.number:
            fix = 'to lengthen only the last phase, give config.phases or config.distill.intermediate in steps'
            print(f'the run returns to phase {settings.number} until step {settings.phase_steps[1]}: {fix}')
        if self._position.phase != settings.number:
            self._position = self._position.enter(settings.number)
        self._interrupt.doing = 'the run is being prepared'
        self._clock.prepare()
        with phase.compiling(self._position.next, settings.last_step - self._position.step):
            if is_start:
                self._state = phase.begin(self._state)
            if self._position.step == 0 and self._evaluate_first:
                self._evaluate(phase)
            step = phase.compile(self._compiling)
            with contextlib.closing(phase.load(self._position.next)) as batches:
                self._recorder.begin_phase(phase.flops_per_row)
                self._interrupt.doing = 'the current step is being finished'
                while self._position.step < settings.last_step and not self._early_stopping.should_stop:
                    self._train_step(step, batches)
                    self._evaluate_and_save_if_due(phase)
            self._recorder.write_pending()

    def _train_step(self, step: TrainStep, batches: Loader) -> None:
        with self._clock.during(DATA):
            batch = next(batches)
        with self._recorder.tracing(self._position.step + 1):
            self._state, metrics = step(self._state, batch)
        self._position = self._position.after(batch.first + batch.count)
        self._recorder.step(self._position, batch, metrics, saving=self._checkpoints.writing)

    def _evaluate_and_save_if_due(self, phase: Phase) -> None:
        step, last = self._position.step, self._position.step == self._phases[-1].settings.last_step
        late = 0 < 60 * self._settings.checkpoint_minutes <= time.perf_counter() - self._saved_at
        over = self._time_limit is not None and self._time_limit.ends_phase(phase.settings.number)
        stop, late, over = self._any_process(self._interrupt.requested(), late, over)
        late &= step > self._saved_step + self._any_process.delay  # an earlier `late` is from before the save
        must_evaluate = last or _is_due(step, self._settings.eval_every)
        may_save = late or _is_due(step, self._settings.checkpoint_every)
        if not (last or stop or over or must_evaluate or may_save):
            return
        self._recorder.drain()  # The wait for the devices counts as training time.
        cost = self._evaluate(phase) if must_evaluate else None
        # Earlier phases do not count, because they need not improve the score.
        if must_evaluate and self._early_stopping.limit and phase is self._phases[-1]:
            may_save |= self._early_stopping.note(cost)
            last |= self._early_stopping.should_stop
        # After a non-finite step, the parameters are suspect, and their checkpoint could replace a better checkpoint.
        if last or stop or over or (may_save and not self._recorder.suspect):
            if last or stop or over or step == phase.settings.last_step:
                self._recorder.write_pending()  # a later process would not write this row
            self._save(cost if phase.may_be_best else None, last=last, stop=stop or over)
        if stop and not last:
            raise self._stopped()
        if over and not last:
            raise PhaseTimeError(step)

    def _evaluate(self, phase: Phase) -> float | None:
        """Runs all evaluators of a phase. Returns the cost from `phase.evaluator`; None without this evaluator."""
        cost = None if phase.evaluator is None else self._run_evaluator(phase.evaluator)
        for evaluator in phase.other_evaluators:
            self._run_evaluator(evaluator)
        return cost

    def _evaluate_new_splits(self) -> None:
        """Evaluates a finished run on the splits that were added after its end."""
        splits = self._recorder.evaluated_splits(self._position)
        for evaluator in self._phases[-1].other_evaluators:
            if broadcast_from_primary(evaluator.split not in splits):
                self._run_evaluator(evaluator)

    def _run_evaluator(self, evaluator: EvaluatorProtocol) -> float | None:
        with self._interrupt.during(f'{evaluator.split} is being evaluated'), self._clock.during(EVALUATION):
            values, cost = evaluator.run(self._state.eval_params, self._recorder.report_compile)
            self._recorder.evaluation(self._position, evaluator.split, values)
        return cost

    def _save(self, cost: float | None, *, last: bool, stop: bool) -> None:
        if stop or last:
            self._interrupt.doing = f'checkpoint {self._position.step} is being written'
        failed = {'failed': self._recorder.failed} if any(self._recorder.failed) else {}  # only with several runs
        config = {**self._config, **failed, **self._early_stopping.state}
        with self._clock.during(SAVE):
            self._recorder.sync()  # The rows up to the checkpoint must be on disk before the checkpoint.
            self._checkpoints.save(self._state, self._position, config, cost)
            if stop and not last:
                self._checkpoints.wait()  # The message "stopped" must not come before the checkpoint is complete.
        self._saved_at, self._saved_step = time.perf_counter(), self._position.step

    @contextlib.contextmanager
    def _compiling(self, what: str) -> Iterator[None]:
        self._recorder.drain()
        with self._interrupt.during('the training step is being compiled'), self._recorder.report_compile(what):
            yield

    def _stopped(self) -> PreemptedError:
        step, word = self._position.step, CALLER.get().word
        return PreemptedError(f'stopped at step {step} as asked; the same {word} continues there')


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0
