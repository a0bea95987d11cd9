"""config of a pre-training -> PretrainingSettings: text, model, pairs, masks, phases."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from bertjax.config.plain import flatten
from bertjax.config.pretraining import INHERITED, PhaseKeys, PretrainingKeys
from bertjax.config.ranges import in_steps
from bertjax.config.schema import from_config
from bertjax.corpus.sources import AUTO, parse_mixture
from bertjax.data.batch import BatchSpec, pretraining_batch_spec
from bertjax.errors import UserError
from bertjax.model.attention.select import describe_attention
from bertjax.model.config import BertConfig
from bertjax.text.special import SPECIAL_TOKENS
from bertjax.train.settings import check_grad_accum_steps, check_memory, resolve_durations
from bertjax.train.setup import PhaseSettings
from bertjax.workdir.exports import check_formats


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingPhase(PhaseSettings):
    """A phase of pre-training with every value resolved."""

    seq_len: int
    max_predictions: int
    packed: bool
    learning_rate: float

    @property
    def batches(self) -> dict[int, BatchSpec]:
        """{S: shapes and dtypes of its batches}."""
        shape = (self.batch_size, self.seq_len, self.max_predictions)
        return {self.seq_len: pretraining_batch_spec(*shape, packed=self.packed)}


@dataclasses.dataclass(frozen=True)
class _GivenPhase:
    """An entry of config.phases: the values that it has or inherits, their keys, and its length as it was given."""

    steps: int | str
    reset_optimizer: bool
    values: Mapping[str, Any]  # by the keys of INHERITED, as are
    keys: Mapping[str, str]  # 'phases[0].seq_len', or 'seq_len' where that decides


class PretrainingSettings(PretrainingKeys):
    """The settings of a pre-training: an attribute a key, and what follows from them."""

    patience = 0  # it always runs to its end

    @property
    def given_phases(self) -> tuple[_GivenPhase, ...]:
        """config.phases, or one that is the run; `resolve_phases` resolves them."""
        usual = {**{key: getattr(self, key) for key in INHERITED}, 'schedule': self.schedule.name}
        given = []
        for i, phase in enumerate(self.phases or (PhaseKeys(),)):
            own = [key for key, unset in INHERITED.items() if getattr(phase, key) != unset]
            values = {**usual, **{key: getattr(phase, key) for key in own}}
            keys = {key: f'phases[{i}].{key}' if key in own else key for key in INHERITED}
            given.append(_GivenPhase(phase.steps, phase.reset_optimizer, values, keys))
        return tuple(given)

    @property
    def first_shape(self) -> tuple[int, int]:
        """S and P of the first phase."""
        first = self.given_phases[0].values
        return first['seq_len'], first['max_predictions']

    @property
    def vocabulary_key(self) -> str:
        """Text that is equal where equal vocabularies are trained."""
        smoothed = any(weight == AUTO for _, weight in parse_mixture(self.corpus))
        names = ('format', 'text_key', *(['smoothing'] if smoothed else []))
        options = {name: getattr(self.corpus_options, name) for name in names}
        vocab = {name: value for name, value in vars(self.vocab).items() if name not in ('add', 'candidates')}
        facts = flatten({'corpus': self.corpus, 'corpus_options': options, 'vocab': vocab})
        if self.vocab.family == 'sentencepiece':
            facts['seed'] = self.seed
        return ''.join(f'{key} = {value}\n' for key, value in sorted(facts.items()))

    def model_config(self, vocab_size: int) -> BertConfig:
        """The model with a vocabulary of `vocab_size` pieces.

        Raises:
          UserError: sizes that cannot be, a phase longer than the model's positions.
        """
        model = BertConfig(vocab_size=vocab_size, nsp=self.pair_options.paired, **dataclasses.asdict(self.model))
        for phase in self.given_phases:
            length = phase.values['seq_len']
            if length > model.max_positions:
                raise UserError(
                    f'config.{phase.keys["seq_len"]}',
                    str(length),
                    f'at most config.model.max_positions = {model.max_positions}',
                    f'lower it, or set --config.model.max_positions={length}',
                )
        return model

    def total_steps(self, examples_per_epoch: float | None) -> int:
        """Length of the run; `examples_per_epoch` is None where no corpus is at hand (run=compile)."""
        batch_size = self.given_phases[0].values['batch_size']
        per_epoch = examples_per_epoch / batch_size if examples_per_epoch else None
        if self.epochs > 0:
            if per_epoch is None:
                raise UserError('config.epochs', str(self.epochs), 'config.steps where no corpus is read', 'set steps')
            key, length = 'epochs', f'{self.epochs} epochs'
        else:
            key, length = 'steps', self.steps
        steps = in_steps(length, key, steps_per_epoch=per_epoch)
        if steps < 1:
            raise UserError(f'config.{key}', str(length), 'at least 1 step', 'for example --config.steps=1000')
        return steps

    def resolve_phases(self, total: int) -> list[PretrainingPhase]:
        """The phases of a run of `total` steps.

        Raises:
          UserError: phases that do not add up to it, or a value in one that cannot be.
        """
        self._check_shapes()
        given = self.given_phases
        lengths = [in_steps(phase.steps, f'phases[{i}].steps', total=total) for i, phase in enumerate(given)]
        if all(str(phase.steps).endswith('%') for phase in given):
            shares = sum(float(str(phase.steps)[:-1]) for phase in given)
            if abs(shares - 100) > 0.01:
                found, fix = f'{shares:g}% of the steps', 'correct their steps'
                raise UserError('config.phases', found, '100% over all phases', fix)
            lengths[-1] = total - sum(lengths[:-1])  # what rounding left
        if sum(lengths) != total:
            raise UserError(
                'config.phases',
                f'{" + ".join(map(str, lengths))} = {sum(lengths)} steps',
                f'config.steps = {total}',
                'give the phases in percent, or make the two agree',
            )
        resolved, first = [], 0
        for number, (phase, length) in enumerate(zip(given, lengths, strict=True)):
            resolved.append(
                PretrainingPhase(
                    number=number,
                    first_step=first,
                    last_step=first + length,
                    power=self.schedule.power,
                    reset_optimizer=phase.reset_optimizer,
                    packed=self.packing,
                    **phase.values,
                )
            )
            first += length
        return resolved

    def _check_shapes(self) -> None:
        for phase in self.given_phases:
            values = phase.values
            check_grad_accum_steps(values['batch_size'], values['grad_accum_steps'], phase.keys['grad_accum_steps'])
            if values['max_predictions'] > values['seq_len']:
                expected, fix = f'at most seq_len = {values["seq_len"]}', 'use about 0.15 x seq_len'
                raise UserError(
                    f'config.{phase.keys["max_predictions"]}', str(values['max_predictions']), expected, fix
                )
            # With fewer, what a row may predict would be used up before the row is full.
            least = int(self.masking.rate * values['seq_len'])
            if self.packing and values['max_predictions'] < least:
                expected = f'at least {least} with config.packing: {self.masking.rate:.0%} of seq_len'
                fix = f'set --config.{phase.keys["max_predictions"]}={least}'
                raise UserError(
                    f'config.{phase.keys["max_predictions"]}', str(values['max_predictions']), expected, fix
                )

    def describe_attention(self) -> str:
        """What computes attention in the last phase.

        Raises:
          UserError: the implementation asked for by name cannot, in one of the phases or on these devices.
        """
        model = self.model_config(self.vocab.size)
        for phase in self.given_phases:
            rows = phase.values['batch_size'] // phase.values['grad_accum_steps']
            described = describe_attention(model, rows, phase.values['seq_len'], self.packing)
        return described

    def check_memory(self, mesh: Mesh) -> None:
        """Refuses what the devices cannot hold, whatever the text is."""
        trained = not self.tokenizer and not self.init
        model = self.model_config(self.vocab.size if trained else 1)
        for phase in self.given_phases:
            values = phase.values
            check_memory(
                model,
                mesh,
                rows=values['batch_size'],
                parts=values['grad_accum_steps'],
                seq_len=values['seq_len'],
                predictions=values['max_predictions'],
                moments=self.moments,
                key=phase.keys['batch_size'],
            )

    def check(self) -> None:
        """Refuses everything that can be wrong in a pre-training without a look at the text.

        Raises:
          UserError: with the key.
        """
        self.tracking.check()
        model = self.model_config(self.vocab.size)
        if self.corpus_options.segments > model.num_segments:
            found, fix = str(self.corpus_options.segments), f'raise that to {self.corpus_options.segments}'
            expected = f'at most config.model.num_segments = {model.num_segments}'
            raise UserError('config.corpus_options.segments', found, expected, fix)
        trained = not self.tokenizer and not self.init
        check_formats(self.formats, model, vocabulary=self.vocab.family if trained else '')
        self._check_shapes()
        if trained and self.vocab.unused + len(SPECIAL_TOKENS) >= self.vocab.size:
            found, fix = f'{self.vocab.unused} of {self.vocab.size} pieces', 'reserve fewer'
            raise UserError('config.vocab.unused', found, 'room for words', fix)
        if trained and self.vocab.add:
            expected = 'config.init or config.tokenizer, the vocabulary to add them to'
            raise UserError('config.vocab.add', 'words for a vocabulary that is trained', expected, 'name one of them')
        if self.epochs <= 0 and 'epoch' not in str(self.steps):
            total = self.total_steps(None)
            self.resolve_phases(total)
            resolve_durations(self, total)


def pretraining_settings(config: Mapping[str, Any]) -> PretrainingSettings:
    """The settings of a config.

    Raises:
      UserError: a value that cannot be, with its key. What only a training would mind, `check` refuses.
    """
    settings = from_config(PretrainingSettings, config)
    settings.pair_options  # noqa: B018 - raises
    return settings
