"""The phases of a pre-training run, with all values resolved except the steps, which may be set later."""

import dataclasses
import itertools
from collections.abc import Mapping

from bertjax.data.batch import BatchSpec, pretraining_batch_spec
from bertjax.data.masking import MaskOptions
from bertjax.errors import UserError
from bertjax.optim.schedules import check_schedule
from bertjax.training.settings import check_grad_accum_steps
from bertjax.training.setup import PhaseSettings

_RAMP_STAGES = 8  # the maximum number of batch sizes before the final one; each needs a compiled step


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingPhase(PhaseSettings):
    """A phase of a pre-training run. Keys that config.phases does not set have the run's values or their defaults.

    Attributes:
      first_step, last_step: See `PhaseSettings`. Both are 0 until `PretrainingSettings.resolve_phases` sets them.
      keys: {name of a value: the config key that sets it}, such as 'phases[0].seq_len', or 'seq_len' if inherited.
    """

    first_step: int = 0
    last_step: int = 0
    seq_len: int
    max_predictions: int
    packed: bool
    causal: bool
    learning_rate: float
    mask_rate: float
    final_mask_rate: float
    batch_ramp: float
    batch_size_start: int
    keys: Mapping[str, str] = dataclasses.field(compare=False, repr=False)

    @property
    def smallest_batch(self) -> tuple[str, int]:
        """The config key and the size of the smallest batch. All other batch sizes are multiples of this size."""
        name = 'batch_size_start' if self.batch_size_start else 'batch_size'
        return self.keys[name], getattr(self, name)

    @property
    def batches(self) -> dict[int, BatchSpec]:
        """{S: the shapes and dtypes of a batch}, for the sequence length S of the phase."""
        shape = (self.batch_size, self.seq_len, self.max_predictions)
        return {self.seq_len: pretraining_batch_spec(*shape, packed=self.packed, causal=self.causal)}

    def examples_until(self, step: int) -> int:
        """Returns the number of examples (rows if packed) of the phase in the first `step` steps of the run."""
        return sum((min(max(step, x.first_step), x.last_step) - x.first_step) * x.batch_size for x in self.split())

    def split(self) -> list['PretrainingPhase']:
        """Splits the phase into parts with one batch size each. The schedule and the numbering of examples continue.

        The ramp at the beginning takes the fraction `batch_ramp` of the steps and has up to 8 stages of equal length.
        Their batch sizes are multiples of `batch_size_start`, as evenly spaced as possible. For example, a ramp from 32
        to 128 rows has the sizes 32, 64 and 96, then 128. ModernBERT also uses each batch size for the same number of
        steps (AnswerDotAI/ModernBERT, src/sequence_packer.py).
        """
        if not self.batch_ramp:
            return [self]
        first, last = self.first_step, self.last_step
        ramp, multiple = round(self.batch_ramp * (last - first)), self.batch_size // self.batch_size_start
        stages = min(multiple - 1, _RAMP_STAGES)
        sizes = [self.batch_size_start * round(1 + i * (multiple - 1) / stages) for i in range(stages)]
        bounds = [first + round(i * ramp / stages) for i in range(stages + 1)]
        parts = zip([*sizes, self.batch_size], itertools.pairwise([*bounds, last]), strict=True)
        return [
            dataclasses.replace(
                self,
                first_step=begin,
                last_step=end,
                batch_size=size,
                schedule_steps=(first, last),
            )
            for size, (begin, end) in parts
            if begin < end
        ]

    def check(self, masking: MaskOptions) -> None:
        """Raises a UserError, which names the key, if values of the phase contradict each other or the masking."""
        ramp, start = self.batch_ramp, self.batch_size_start

        def fail(key: str, found: object, expected: str, fix: str = 'change one of the two') -> None:
            raise UserError(f'config.{self.keys[key]}', str(found), expected, fix)

        check_grad_accum_steps(self.batch_size, self.grad_accum_steps, self.keys['grad_accum_steps'])
        schedule_keys = {'warmup_key': self.keys['warmup_fraction'], 'decay_key': self.keys['decay_fraction']}
        check_schedule(self.schedule, self.warmup_fraction, self.decay_fraction, **schedule_keys)
        if self.schedule != 'wsd' and self.keys['decay_fraction'].startswith('phases'):
            found = f'{self.decay_fraction:g} with the schedule {self.schedule!r}'
            fix = f'leave it out, or set --config.{self.keys["schedule"]}=wsd'
            fail('decay_fraction', found, 'no value, because it has no effect', fix)
        if bool(ramp) != bool(start):
            found = f'{ramp:g} with batch_size_start={start}'
            fail('batch_ramp', found, 'both above 0, or both 0', 'set both keys, or none')
        if start and (start == self.batch_size or self.batch_size % start):
            fail('batch_size_start', start, f'a smaller divisor of batch_size = {self.batch_size}')
        if start % self.grad_accum_steps:
            fail('batch_size_start', start, f'a multiple of grad_accum_steps = {self.grad_accum_steps}')
        rates = self.mask_rate, self.final_mask_rate
        if self.max_predictions > self.seq_len:
            expected = f'at most seq_len = {self.seq_len}'
            fail('max_predictions', self.max_predictions, expected, f'use about {max(rates):g} x seq_len')
        if masking.static and rates[0] != rates[1]:
            found = f'True with a mask rate from {rates[0]:g} to {rates[1]:g}'
            fix = 'set it to False, or config.masking.final_rate to -1'
            raise UserError('config.masking.static', found, 'a constant mask rate', fix)
        # A packed row takes no further examples once all its predictions are used, so a lower max_predictions would
        # leave positions empty. A lower value would also reduce a mask rate that a phase or a schedule sets.
        minimum = int(max(rates) * self.seq_len)
        varies = set(rates) != {masking.rate}
        if (self.packed or varies) and self.max_predictions < minimum:
            expected = f'at least {minimum} with {"this mask rate" if varies else "config.packing"}'
            fix = f'set --config.{self.keys["max_predictions"]}={minimum}'
            fail('max_predictions', self.max_predictions, f'{expected}: {max(rates):.0%} of seq_len', fix)
