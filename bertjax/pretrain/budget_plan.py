"""The plan of a pre-training run with config.budget: the sizes and the steps of the run, in WORKDIR/budget.json.

The run has three phases: the learning rate warms up, stays constant, and decays to 0 (the schedule 'wsd'). A budget in
FLOPs determines the steps of all phases at the start. With a budget in time, the clock ends the second phase, and the
steps of the third phase follow from the speed of the run so far.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Collection
from typing import Any

from bertjax.config.pretraining import PhaseKeys
from bertjax.config.ranges import COUNT, in_steps, parse_budget
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.model.config import inner_parameters
from bertjax.pretrain.scaling_law import mlm_loss
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.training.health.goodput import Goodput, read_goodput
from bertjax.training.health.goodput_clock import DATA, EVALUATION, SAVE, STEP
from bertjax.training.time_limit import TimeLimit

FILE = 'budget.json'  # the file in the workdir with the plan
_WARMUP_FRACTION = 0.9999  # the warm-up fraction of the first phase; 1 is not allowed
_OPEN_END_FACTOR = 1000  # the maximum length of the phase that the clock ends, relative to the estimated steps


@dataclasses.dataclass(frozen=True)
class BudgetPlan:
    """The decisions for a budget.

    Attributes:
      budget: The value of config.budget.
      model: {key of config.model: chosen value}; empty unless config.architecture_from is 'budget'. The dtype is chosen
        unless the command line sets it. The size is chosen unless the command line sets one of its keys.
      estimate: The estimated number of steps of the run.
      warmup, stable, decay: The steps of the three phases. With a budget in time, `stable` and `decay` are None until
        the clock ends the second phase.
      batch_size: The number of rows per update; None for the value of config.batch_size.
    """

    budget: str
    model: dict[str, Any]
    estimate: int
    warmup: int
    stable: int | None = None
    decay: int | None = None
    batch_size: int | None = None

    def apply(self, settings: PretrainingSettings) -> PretrainingSettings:
        """Returns the settings with the sizes, the phases and the steps of this plan."""
        constant = {'schedule': 'wsd', 'decay_fraction': 0.0, 'final_mask_rate': settings.masking.rate}
        stable = self.stable or min(_OPEN_END_FACTOR * self.estimate, COUNT // 2)
        lengths = (self.warmup, stable, self.decay or self.estimate)
        values: tuple[dict[str, Any], ...] = (
            {**constant, 'warmup_fraction': _WARMUP_FRACTION},
            {**constant, 'warmup_fraction': 0.0},
            {'schedule': 'wsd', 'decay_fraction': 1.0, 'warmup_fraction': 0.0},
        )
        intervals = {name: getattr(settings, name) for name in ('eval_every', 'checkpoint_every')}
        return dataclasses.replace(
            self.with_sizes(settings),
            steps=sum(lengths),
            phases=tuple(PhaseKeys(steps=steps, **keys) for steps, keys in zip(lengths, values, strict=True)),
            **{name: in_steps(value, name, total=self.estimate, minimum=1) for name, value in intervals.items()},
        )

    def with_sizes(self, settings: PretrainingSettings, flag_keys: Collection[str] = ()) -> PretrainingSettings:
        """Returns the settings with the model and the batch of this plan, except for the keys in `flag_keys`."""
        model = {key: value for key, value in self.model.items() if f'model.{key}' not in flag_keys}
        rows = settings.batch_size if 'batch_size' in flag_keys else self.batch_size or settings.batch_size
        return dataclasses.replace(settings, model=dataclasses.replace(settings.model, **model), batch_size=rows)

    def describe(self, settings: PretrainingSettings) -> str:
        """Returns one line about the size, the batch, the steps and the expected loss.

        config.vocab.size must be the number of token embeddings; see `with_existing_vocabulary`. The line is without a
        loss if the run is unlike those of the scaling law.
        """
        applied = self.apply(settings)
        model, (length, _) = applied.model, applied.first_shape
        size = f'{model.num_layers} layers of width {model.width} in {model.dtype}'
        parameters = inner_parameters(applied.model_config(settings.vocab.size))
        loss = mlm_loss(parameters, self.estimate * applied.batch_size * length, settings.vocab.size)
        is_known = settings.architecture_from == 'budget' and settings.pairs.mode == 'full_rows'
        return (
            f'budget {self.budget}: {size}, about {self.estimate:,} steps of {applied.batch_size} x {length}: '
            f'{self.warmup:,} to warm up, the last {settings.schedule.decay_fraction:.0%} to decay'
        ) + (f'; expected held-out MLM loss on English text: about {loss:.1f}' if loss and is_known else '')

    def time_limit(self, settings: PretrainingSettings) -> TimeLimit | None:
        """Returns the time limit of the run, or None for a budget in FLOPs."""
        seconds, _ = parse_budget(self.budget)
        if seconds == math.inf:
            return None
        if self.stable is not None:
            return TimeLimit(seconds)
        ends = (1 - settings.schedule.decay_fraction) * seconds
        return TimeLimit(seconds, phase=1, ends=ends)

    def decide(self, folder: pathlib.Path, step: int, elapsed: float, *, evaluates: bool) -> None:
        """Computes and saves the steps of the second phase, which ended at `step`, and of the third phase.

        `elapsed` is the time of the run in seconds. `evaluates` says whether the run evaluates during training.
        """
        seconds, _ = parse_budget(self.budget)
        goodput = read_goodput(folder) or Goodput({STEP: elapsed}, processes=1)  # the goodput log may be missing
        kinds = (STEP, DATA, SAVE, EVALUATION) if evaluates else (STEP, DATA, SAVE)
        per_step = sum(goodput.seconds.get(kind, 0.0) for kind in kinds) / step
        left = round((seconds - elapsed) / per_step)
        decay = left if left > 0 else max(self.warmup, 1)  # if no time is left: as long as the warm-up
        dataclasses.replace(self, stable=step - self.warmup, decay=decay).save(folder)

    def save(self, folder: pathlib.Path) -> None:
        """Writes the plan to a workdir."""
        write_atomic(folder / FILE, json.dumps(dataclasses.asdict(self), indent=1) + '\n')


def read_plan(folder: pathlib.Path) -> BudgetPlan | None:
    """Returns the plan in a workdir; None if there is no readable plan."""
    return read_json_or_none(folder / FILE, lambda facts: BudgetPlan(**facts))
