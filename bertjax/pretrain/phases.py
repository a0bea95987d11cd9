"""The phases of a pre-training run: entries of config.phases, and phases in which all values are resolved."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from bertjax.data.batch import BatchSpec, pretraining_batch_spec
from bertjax.data.masking import MaskOptions
from bertjax.errors import UserError
from bertjax.train.settings import check_grad_accum_steps
from bertjax.train.setup import PhaseSettings

_RAMP_STAGES = 8  # the maximum number of batch sizes before the final one; each needs a compiled step


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingPhase(PhaseSettings):
    """A phase of a pre-training run, in which all values are resolved."""

    seq_len: int
    max_predictions: int
    packed: bool
    causal: bool
    learning_rate: float
    mask_rate: float
    final_mask_rate: float
    batch_ramp: float
    batch_size_start: int

    @property
    def batches(self) -> dict[int, BatchSpec]:
        """{S: the shapes and dtypes of a batch}, for the sequence length S of the phase."""
        shape = (self.batch_size, self.seq_len, self.max_predictions)
        return {self.seq_len: pretraining_batch_spec(*shape, packed=self.packed, causal=self.causal)}

    @property
    def num_examples(self) -> int:
        """The number of examples (rows if packed) that the phase trains on."""
        return sum((part.last_step - part.first_step) * part.batch_size for part in self.split())

    def split(self) -> list['PretrainingPhase']:
        """Splits the phase into parts with one batch size each. They share the schedule and the numbering of examples.

        The ramp at the beginning takes the fraction `batch_ramp` of the steps and has up to 8 stages of equal length.
        Their batch sizes are multiples of `batch_size_start`, as evenly spaced as possible. For example, a ramp from 32
        to 128 rows has the sizes 32, 64 and 96, then 128. ModernBERT also uses each batch size for equally many steps
        (AnswerDotAI/ModernBERT, src/sequence_packer.py).
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
                reset_optimizer=self.reset_optimizer and begin == first,
                schedule_steps=(first, last),
            )
            for size, (begin, end) in parts
            if begin < end
        ]


@dataclasses.dataclass(frozen=True)
class PhaseSpec:
    """An entry of config.phases, before its length is resolved to steps.

    Attributes:
      steps: The length of the phase as in the config, such as '90%'.
      reset_optimizer: Whether the phase starts with a new optimizer state.
      values: {key: value} for the keys of UNSET in config/pretraining.py. A key that the phase does not set has the
        run's value (INHERITED) or its default.
      keys: {key: the config key that sets the value}, such as 'phases[0].seq_len', or 'seq_len' if it is inherited.
    """

    steps: int | str
    reset_optimizer: bool
    values: Mapping[str, Any]
    keys: Mapping[str, str]

    @property
    def smallest_batch(self) -> tuple[str, int]:
        """The config key and the size of the smallest batch. All other batch sizes are multiples of this size."""
        key = 'batch_size_start' if self.values['batch_size_start'] else 'batch_size'
        return self.keys[key], self.values[key]

    def check(self, masking: MaskOptions, packing: bool) -> None:
        """Checks that the values of the phase are consistent, also with the masking and packing of the run.

        Raises:
          UserError: A value is invalid. The error names its key.
        """
        values, ramp, start = self.values, self.values['batch_ramp'], self.values['batch_size_start']

        def fail(key: str, found: object, expected: str, fix: str = 'change one of the two') -> None:
            raise UserError(f'config.{self.keys[key]}', str(found), expected, fix)

        check_grad_accum_steps(values['batch_size'], values['grad_accum_steps'], self.keys['grad_accum_steps'])
        warmup, decay = values['warmup_fraction'], values['decay_fraction']
        if values['schedule'] == 'wsd' and warmup + decay > 1:
            found = f'{decay:g} with config.{self.keys["warmup_fraction"]}={warmup:g}'
            fail('decay_fraction', found, f'at most {1 - warmup:g}', 'lower one of them')
        if bool(ramp) != bool(start):
            found = f'{ramp:g} with batch_size_start={start}'
            fail('batch_ramp', found, 'both above 0, or both 0', 'set both keys, or none')
        if start and (start == values['batch_size'] or values['batch_size'] % start):
            fail('batch_size_start', start, f'a smaller divisor of batch_size = {values["batch_size"]}')
        if start % values['grad_accum_steps']:
            fail('batch_size_start', start, f'a multiple of grad_accum_steps = {values["grad_accum_steps"]}')
        predictions = values['max_predictions']
        if predictions > values['seq_len']:
            expected = f'at most seq_len = {values["seq_len"]}'
            fail('max_predictions', predictions, expected, 'use about 0.15 x seq_len')
        rates = values['mask_rate'], values['final_mask_rate']
        if masking.static and rates[0] != rates[1]:
            found = f'True with a mask rate from {rates[0]:g} to {rates[1]:g}'
            fix = 'set it to False, or config.masking.final_rate to -1'
            raise UserError('config.masking.static', found, 'a constant mask rate', fix)
        # A packed row takes no more examples when all its predictions are used, so fewer predictions would leave
        # positions free. In any row, fewer predictions would reduce a mask rate that a phase or a schedule sets.
        minimum = int(max(rates) * values['seq_len'])
        varies = set(rates) != {masking.rate}
        if (packing or varies) and predictions < minimum:
            expected = f'at least {minimum} with {"this mask rate" if varies else "config.packing"}'
            fix = f'set --config.{self.keys["max_predictions"]}={minimum}'
            fail('max_predictions', predictions, f'{expected}: {max(rates):.0%} of seq_len', fix)
