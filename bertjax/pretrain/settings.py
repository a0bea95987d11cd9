"""Builds the settings of a pre-training run from its config, and checks their values."""

import dataclasses
import itertools
import operator
from collections.abc import Mapping
from typing import Any

from jax.sharding import Mesh

from bertjax.config.plain import flatten
from bertjax.config.pretraining import INHERITED, UNSET, PhaseKeys, PretrainingKeys
from bertjax.config.ranges import in_steps, is_in_epochs
from bertjax.config.schema import from_config
from bertjax.corpus.sources import AUTO, parse_mixture
from bertjax.errors import UserError
from bertjax.model.attention.select import describe_attention
from bertjax.model.config import BertConfig
from bertjax.parallel.distributed import decide_on_primary
from bertjax.parallel.mesh import row_shards
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.text.special import SPECIAL_TOKENS
from bertjax.training.settings import check_memory, check_mesh, check_row_count, resolve_durations
from bertjax.workdir.exports import check_formats
from bertjax.writers.tracker import check_tracker


class PretrainingSettings(PretrainingKeys):
    """The settings of a pre-training run: one attribute for each config key, and properties derived from them."""

    patience = 0  # a pre-training run never stops early

    @property
    def unresolved_phases(self) -> tuple[PretrainingPhase, ...]:
        """The phases of config.phases without their steps, or a single phase if config.phases is empty."""
        shared = {'power': self.schedule.power, 'decay': self.schedule.decay, 'packed': self.packing}
        shared['causal'] = self.masking.causal_share > 0
        defaults = UNSET | {key: operator.attrgetter(run_key)(self) for key, run_key in INHERITED.items()}
        phases = []
        for i, phase in enumerate(self.phases or (PhaseKeys(),)):
            set_keys = [key for key, unset in UNSET.items() if getattr(phase, key) != unset]
            values = {**defaults, **{key: getattr(phase, key) for key in set_keys}}
            if values['final_mask_rate'] < 0:
                values['final_mask_rate'] = values['mask_rate']
            keys = {key: f'phases[{i}].{key}' for key in UNSET}
            keys |= {key: run_key for key, run_key in INHERITED.items() if key not in set_keys}
            values |= {'number': i, 'reset_optimizer': phase.reset_optimizer, 'keys': keys}
            phases.append(PretrainingPhase(**values, **shared))
        return tuple(phases)

    @property
    def copied_teacher(self) -> str:
        """config.distill.teacher if the student is initialized with blocks of the teacher, else ''."""
        copies = self.distill is not None and self.distill.student_init not in ('init', 'random')
        return self.distill.teacher if copies else ''

    @property
    def first_shape(self) -> tuple[int, int]:
        """The sequence length S and the maximum number of predictions P of the first phase."""
        first = self.unresolved_phases[0]
        return first.seq_len, first.max_predictions

    @property
    def vocabulary_key(self) -> str:
        """The settings that a trained vocabulary depends on, as lines `KEY = VALUE`."""
        smoothed = any(weight == AUTO for _, weight in parse_mixture(self.corpus))
        names = ('format', 'text_key', *(['smoothing'] if smoothed else []))
        options = {name: getattr(self.corpus_options, name) for name in names}
        vocab = {name: value for name, value in vars(self.vocab).items() if name not in ('add', 'candidates')}
        facts = flatten({'corpus': self.corpus, 'corpus_options': options, 'vocab': vocab})
        if self.vocab.family == 'sentencepiece':
            facts['seed'] = self.seed
        return ''.join(f'{key} = {value}\n' for key, value in sorted(facts.items()))

    def model_config(self, vocab_size: int) -> BertConfig:
        """Returns the config of a model with a vocabulary of `vocab_size` pieces.

        Raises:
          UserError: The sizes are invalid, or the sequences of a phase are longer than config.model.max_positions.
        """
        model_config = BertConfig(vocab_size=vocab_size, nsp=self.pair_options.paired, **dataclasses.asdict(self.model))
        for phase in self.unresolved_phases:
            if phase.seq_len > model_config.max_positions:
                expected = f'at most config.model.max_positions = {model_config.max_positions}'
                fix = f'lower it, or set --config.model.max_positions={phase.seq_len}'
                fix = 'lower it' if self.architecture_from == 'init' and self.model.position != 'rope' else fix
                raise UserError(f'config.{phase.keys["seq_len"]}', str(phase.seq_len), expected, fix)
        return model_config

    def total_steps(self, examples_per_epoch: float | None) -> int:
        """Returns the length of the run in steps.

        Epochs are converted to steps with the `batch_size` of the first phase. The `batch_ramp` is ignored.

        Args:
          examples_per_epoch: The number of examples in an epoch; None if the corpus has not been read.

        Raises:
          UserError: The run is shorter than a step, or its length is in epochs and `examples_per_epoch` is None.
        """
        batch_size = self.unresolved_phases[0].batch_size
        per_epoch = examples_per_epoch / batch_size if examples_per_epoch else None
        if self.epochs > 0:
            if per_epoch is None:
                expected, fix = '0, because no corpus is read', 'set --config.epochs=0 and --config.steps'
                raise UserError('config.epochs', str(self.epochs), expected, fix)
            key, length = 'epochs', f'{self.epochs} epochs'
        else:
            key, length = 'steps', self.steps
        steps = in_steps(length, key, steps_per_epoch=per_epoch)
        if steps < 1:
            fix = 'for example --config.steps=1000'
            if key == 'epochs':
                length += f' of {examples_per_epoch:,.0f} examples'
                fix = 'lower config.batch_size, or set --config.epochs=0 and --config.steps=1000'
            raise UserError(f'config.{key}', str(length), 'at least 1 step', fix)
        return steps

    def resolve_phases(self, total: int) -> list[PretrainingPhase]:
        """Returns the phases of a run. Raises a UserError if they do not add up to `total` steps, or are invalid."""
        phases, steps = self.unresolved_phases, [phase.steps for phase in self.phases or (PhaseKeys(),)]
        for phase in phases:
            phase.check(self.masking)
        lengths = [in_steps(length, f'phases[{i}].steps', total=total) for i, length in enumerate(steps)]
        fix = 'give the phases in percent, or make their sum equal to config.steps'
        if all(str(length).endswith('%') for length in steps):
            shares = sum(float(str(length)[:-1]) for length in steps)
            if abs(shares - 100) > 0.01:
                found, expected = f'{shares:g}% of the steps', '100% over all phases'
                raise UserError('config.phases', found, expected, 'correct the steps of the phases')
            lengths[-1] = max(total - sum(lengths[:-1]), 0)  # the last phase absorbs the rounding errors
            fix = 'raise config.steps: in whole steps, these percentages need more steps than the run has'
        if sum(lengths) != total:
            found = f'{" + ".join(map(str, lengths))} = {sum(lengths)} steps'
            raise UserError('config.phases', found, f'config.steps = {total}', fix)
        bounds = itertools.pairwise(itertools.accumulate(lengths, initial=0))
        return [
            dataclasses.replace(phase, first_step=first, last_step=last)
            for phase, (first, last) in zip(phases, bounds, strict=True)
        ]

    def _check_budget(self) -> None:
        needs_budget = 'replay' if self.replay else 'architecture_from' if self.architecture_from == 'budget' else ''
        if needs_budget and not self.budget:
            found = f"'' with config.{needs_budget}={getattr(self, needs_budget)}"
            raise UserError('config.budget', found, 'a budget', 'for example --config.budget=25m')
        if self.budget and self.distill is not None:
            raise UserError('config.budget', self.budget, 'none in a distillation', 'set config.steps instead')

    def _check_causal(self) -> None:
        share = self.masking.causal_share
        if self.pair_options.paired and (share or self.model.causal):
            context = f'with config.masking.causal_share={share:g}' if share else 'with config.model.causal=True'
            expected = 'a mode without pairs, because [CLS] of a causal row sees only itself'
            fix = 'set --config.pairs.mode=doc_sentences'
            raise UserError('config.pairs.mode', f'{self.pair_options.mode} {context}', expected, fix)
        if share and self.distill is not None:
            expected = '0 in a distillation, because the teacher would see the tokens to predict'
            raise UserError('config.masking.causal_share', f'{share:g}', expected, 'set it to 0')

    def describe_attention(self) -> str:
        """Describes the attention of the last phase. Raises a UserError if a phase or a device does not allow it."""
        model_config = self.model_config(self.vocab.size)
        for phase in self.unresolved_phases:
            rows, options = phase.batch_size // phase.grad_accum_steps, {'packed': phase.packed}
            options['causal_rows'] = phase.causal
            description = describe_attention(model_config, rows, phase.seq_len, **options)
        return description

    def check_devices(self, mesh: Mesh) -> None:
        """Calls `check_batches` and `check_memory`."""
        self.check_batches(mesh)
        self.check_memory(mesh)

    def check_batches(self, mesh: Mesh) -> None:
        """Raises a UserError if the mesh does not divide the model or a batch. Does not read the corpus."""
        trained = not self.tokenizer and not self.init
        check_mesh(self.model_config(self.vocab.size if trained else 128 * mesh.shape['tensor']), mesh)
        for phase in self.unresolved_phases:
            key, rows = phase.smallest_batch
            check_row_count(rows, phase.grad_accum_steps, row_shards(mesh), key)

    def check_memory(self, mesh: Mesh) -> None:
        """Raises a UserError if a phase surely needs more memory than the devices have. Does not read the corpus."""
        trained = not self.tokenizer and not self.init
        for phase in self.unresolved_phases:
            check_memory(
                self.model_config(self.vocab.size if trained else 1),
                mesh,
                rows=phase.batch_size,
                parts=phase.grad_accum_steps,
                seq_len=phase.seq_len,
                predictions=phase.max_predictions,
                moments=self.moments,
                zero1=self.zero1,
                key=phase.keys['batch_size'],
            )

    def check(self) -> None:
        """Raises a UserError, which names the key, if a value is invalid. Reads neither the text nor the devices."""
        if self.tracker:  # only the primary process sends metrics
            decide_on_primary(lambda: check_tracker(self.tracker) or 0)
        model_config = self.model_config(self.vocab.size)
        if self.pair_options.paired and self.model.pooling != 'cls':
            found = f'{self.model.pooling!r} with config.pairs.mode={self.pairs.mode}'
            raise UserError(
                'config.model.pooling', found, "'cls', because pairs are predicted from [CLS]", 'change one of the two'
            )
        if self.corpus_options.segments > model_config.num_segments:
            found, fix = str(self.corpus_options.segments), f'raise num_segments to {self.corpus_options.segments}'
            expected = f'at most config.model.num_segments = {model_config.num_segments}'
            raise UserError('config.corpus_options.segments', found, expected, fix)
        trained = not self.tokenizer and not self.init
        check_formats(self.formats, model_config, vocabulary=self.vocab.family if trained else '')
        for phase in self.unresolved_phases:
            phase.check(self.masking)
        self._check_causal()
        self._check_budget()
        self.check_new_vocabulary()
        if self.epochs <= 0 and not is_in_epochs(self.steps):
            total = self.total_steps(None)
            self.resolve_phases(total)
            resolve_durations(self, total)

    def check_new_vocabulary(self) -> None:
        """Raises a UserError if a vocabulary is trained with config.vocab.add or too large a config.vocab.unused."""
        if self.tokenizer or self.init:
            return
        if self.vocab.unused + len(SPECIAL_TOKENS) >= self.vocab.size:
            found, fix = f'{self.vocab.unused} of {self.vocab.size} pieces', 'reserve fewer pieces'
            raise UserError('config.vocab.unused', found, 'room for words', fix)
        if self.vocab.add:
            expected = 'config.init or config.tokenizer, whose vocabulary gets the words'
            raise UserError('config.vocab.add', 'words for a vocabulary that is trained', expected, 'set either key')


def pretraining_settings(config: Mapping[str, Any]) -> PretrainingSettings:
    """Returns the settings of a config. Raises a UserError for an invalid value; `check` has further checks."""
    settings = from_config(PretrainingSettings, config)
    settings.pair_options  # noqa: B018 - raises a UserError if the options are invalid
    return settings
