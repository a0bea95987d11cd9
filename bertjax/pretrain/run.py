"""A pre-training run in its workdir: its examples, its model on the mesh and its phases."""

import copy
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping

import jax
from jax.sharding import Mesh

from bertjax.config.plain import to_plain
from bertjax.convert.vocabulary import set_embedding_rows
from bertjax.corpus.store import StoreSplit, TokenStore
from bertjax.data.plans import remove_leftovers
from bertjax.errors import UserError
from bertjax.losses import PACKED_PRETRAINING, PRETRAINING, with_z_loss
from bertjax.metrics.rows import distillation_values, pair_name, pretraining_values
from bertjax.model.bert import BertForPreTraining
from bertjax.model.config import BertConfig, parameter_count, train_flops_per_sequence
from bertjax.optim.masks import describe_decay
from bertjax.optim.optimizers import make_optimizer
from bertjax.parallel.distributed import is_primary
from bertjax.parallel.partition import mesh_context
from bertjax.pretrain.descriptions import describe_masks, describe_pairs, describe_phases
from bertjax.pretrain.examples import PhaseExamples, StoreExamples
from bertjax.pretrain.heldout import PairsEvaluator, check_texts, prepare_texts, read_heldout_pairs, split_name
from bertjax.pretrain.phases import PretrainingPhase
from bertjax.pretrain.settings import PretrainingSettings
from bertjax.pretrain.text_data import joined_fingerprint, prepare_stores, prepare_tokenizer
from bertjax.pretrain.warm_start import embedding_rows, initial_params, read_embeddings
from bertjax.tasks.minimal_pairs import MinimalPair, encode_pairs
from bertjax.text.tokenizer import Tokenizer
from bertjax.training.distillation import NO_TEACHER, Distillation
from bertjax.training.evaluate import Evaluator
from bertjax.training.phase import Experiment, Phase
from bertjax.training.settings import check_mesh, resolve_durations
from bertjax.training.setup import Setup
from bertjax.training.state import TrainState
from bertjax.training.step import Sums, make_eval_step
from bertjax.training.vmapped_runs import VmappedRun
from bertjax.workdir.exports import check_formats
from bertjax.workdir.lock import has_checkpoints


def build_pretraining_setup(
    settings: PretrainingSettings, model_config: BertConfig, mesh: Mesh, distillation: Distillation = NO_TEACHER
) -> Setup:
    """Builds the setup of a pre-training; needs no text. Raises a UserError if the mesh cannot shard the model."""
    check_mesh(model_config, mesh)
    objective = PACKED_PRETRAINING if settings.packing else PRETRAINING
    if settings.masking.causal_share:
        objective = dataclasses.replace(objective, keywords=('causal',))
    return Setup(
        BertForPreTraining(model_config),
        with_z_loss(distillation.stages[0].objective(objective), settings.z_loss),
        make_optimizer(**vars(settings.optimizer), dtype=model_config.dtype),
        mesh,
        ema_decay=settings.ema_decay,
        teacher=distillation.abstract_teacher,
        zero1=settings.zero1,
    )


def prepare_inputs(settings: PretrainingSettings, folder: pathlib.Path) -> tuple[list[MinimalPair], Tokenizer]:
    """Checks config.heldout_texts, and returns the pairs of config.heldout_pairs and the tokenizer of the run.

    For errors, see `check_texts`, `read_heldout_pairs` and `prepare_tokenizer`.
    """
    if is_primary():  # only the primary process reads the text
        check_texts(settings, folder)
    return read_heldout_pairs(settings, folder), prepare_tokenizer(settings, folder)


class Pretraining(Experiment):
    """A pre-training run in its workdir. `examples` are the examples of its token stores.

    The argument `inputs` is the result of `prepare_inputs`, which is called if `inputs` is None.
    """

    def __init__(
        self,
        settings: PretrainingSettings,
        folder: pathlib.Path,
        mesh: Mesh,
        distillation: Distillation = NO_TEACHER,
        inputs: tuple[list[MinimalPair], Tokenizer] | None = None,
    ):
        self.settings, self.folders, self._distillation = settings, [folder], distillation
        with mesh_context(mesh):
            self._attention = settings.describe_attention()
        self._pairs, self.tokenizer = inputs or prepare_inputs(settings, folder)
        self.model_config = settings.model_config(embedding_rows(settings, folder, self.tokenizer))
        self._embeddings = None
        stores = self._prepare_stores(folder)
        self.setup = build_pretraining_setup(settings, self.model_config, mesh, distillation)
        self.values = functools.partial(pretraining_values, pair=pair_name(settings.pair_options.mode))
        if distillation is not NO_TEACHER:
            self.values = functools.partial(distillation_values, factors=self.setup.objective.factors)
        remove_leftovers(folder / 'store' / 'plans')
        self._set_phases(settings, stores, prepare_texts(settings, folder, self.tokenizer, stores))

    def _set_phases(
        self, settings: PretrainingSettings, stores: list[TokenStore], texts: Mapping[str, StoreSplit]
    ) -> None:
        self.examples = StoreExamples(settings, stores, self.tokenizer, self.folders[0] / 'store' / 'plans', texts)
        total = self.examples.total_steps
        self._phases = settings.resolve_phases(total)
        self.settings = dataclasses.replace(settings, steps=total, **resolve_durations(settings, total))
        # A resumed run must have the same fingerprints.
        fingerprints = {'tokenizer': self.tokenizer.fingerprint, 'store': joined_fingerprint(stores)}
        fingerprints |= self._distillation.fingerprints
        self.resolved = {**to_plain(self.settings), 'fingerprints': fingerprints}
        self.resolved['model']['vocab_size'] = self.model_config.vocab_size

    def with_phases(self, settings: PretrainingSettings) -> 'Pretraining':
        """Returns the run with other steps and phases. Both runs share the text and the compiled steps."""
        other = copy.copy(self)
        other._set_phases(settings, self.examples.stores, self.examples.texts)
        return other

    def _prepare_stores(self, folder: pathlib.Path) -> list[TokenStore]:
        """Reads config.embeddings and prepares the token stores, after the checks that need only the vocabulary."""
        settings, model_config = self.settings, self.model_config
        check_formats(settings.formats, model_config, tokenizer=self.tokenizer)
        encode_pairs(self._pairs, self.tokenizer, model_config.max_positions)
        if settings.embeddings and not has_checkpoints(folder):
            self._embeddings = read_embeddings(settings.embeddings, self.tokenizer, model_config.width)
        stores = prepare_stores(settings, folder, self.tokenizer)
        segments = max(store.segments for store in stores)
        if segments > model_config.num_segments:
            found, fix = str(model_config.num_segments), f'set --config.model.num_segments={segments}'
            expected = f'at least {segments}, the number of segment types in the token store'
            raise UserError('config.model.num_segments', found, expected, fix)
        return stores

    @property
    def heldout(self) -> PhaseExamples | None:
        """The held-out examples of the first phase, or None if a token store has no held-out documents."""
        return self.examples.get(self.settings.first_shape, 'heldout') if self.examples.has_heldout else None

    def init_state(self) -> TrainState:
        """Returns the state at step 0, with weights of the teacher or of config.init, or with random weights.

        config.embeddings replaces the embeddings of config.init or the random embeddings.

        Raises:
          UserError: The sizes of the model in config.init differ from config.model.
        """
        seed = self.settings.run_seeds.init
        if self._distillation.initial_params is not None:
            print(self._distillation.initial_weights)
            return self.setup.create_from(self._distillation.initial_params(), seed)
        if self.settings.init:
            params, description = initial_params(self.settings, self.model_config, self.tokenizer)
            print(description)
            state = self.setup.create_from(params, seed)
        else:
            state = self.setup.create(seed)
        if self._embeddings is not None:
            rows, matrix = self._embeddings
            print(f'{len(rows):,} token embeddings are initialized from {self.settings.embeddings}')
            state = state.with_params(set_embedding_rows(state.params, rows, matrix))
        return state

    def phases(self) -> list[Phase]:
        """Returns the phases of the training. A phase with a batch ramp becomes several phases."""
        return [
            dataclasses.replace(phase, settings=part, batches=part.batches)
            for phase in map(self._phase, self._phases)
            for part in phase.settings.split()
        ]

    def _phase(self, phase: PretrainingPhase) -> Phase:
        shape = (phase.seq_len, phase.max_predictions)
        train = self.examples.get_training(phase, self.position)
        teacher = self._distillation.teacher()
        flops = train_flops_per_sequence(self.model_config, *shape) + self._distillation.forward_flops(*shape)

        def evaluator(split: str) -> Evaluator:
            examples = self.examples.get(shape, split)
            return Evaluator(
                lambda params, batch: self._eval_step(params, batch, *teacher),
                examples,
                count=min(self.settings.eval_examples, examples.cycle_length),
                batch_size=phase.batch_size // phase.grad_accum_steps,
                mesh=self.setup.mesh,
                values=self.values,
                split=split,
            )

        return Phase(
            phase,
            self.setup,
            [VmappedRun(train, phase.learning_rate, self.settings.run_seeds.dropout)],
            phase.batches,
            evaluator=evaluator('heldout') if self.examples.has_heldout else None,
            other_evaluators=[*(evaluator(split_name(name)) for name in self.examples.texts), *self._pairs_evaluators],
            flops_per_row=flops,
            teacher=teacher,
        )

    @functools.cached_property
    def _eval_step(self) -> Callable[..., Sums]:
        """See `make_eval_step`. All phases share the jitted function, so phases of equal shape compile it once."""
        # Held-out rows are never packed, so that all runs are evaluated on the same rows.
        return jax.jit(make_eval_step(self.setup.module, self._distillation.stages[0].objective(PRETRAINING)))

    @functools.cached_property
    def _pairs_evaluators(self) -> list[PairsEvaluator]:
        """A list with the evaluator of config.heldout_pairs, which all phases share; empty without pairs."""
        if not self._pairs:
            return []
        rows = self._phases[0].batch_size // self._phases[0].grad_accum_steps
        options = {'batch_size': rows, 'mesh': self.setup.mesh}
        return [PairsEvaluator(self._pairs, self.tokenizer, self.setup.module, **options)]

    def describe(self) -> str:
        """See `Experiment`."""
        model_config, tokenizer = self.model_config, self.tokenizer
        tokens = sum(store.split('train').num_tokens for store in self.examples.stores)
        heldout = [store.split('heldout').num_documents for store in self.examples.stores]
        held_out = f'{sum(heldout):,} documents held out'
        if not all(heldout):
            held_out = 'NO held-out loss, because a corpus has no held-out document'
        lines = [
            *self._distillation.description,
            f'{model_config.num_layers} layers, width {model_config.width}, {model_config.num_heads} heads: '
            f'{parameter_count(model_config):,} parameters',
            f'{tokenizer.family} vocabulary of {tokenizer.vocab_size:,}; {tokens:,} training tokens; ' + held_out,
            *(
                f'also evaluated on {name}: {split.num_documents:,} documents, {split.num_tokens:,} tokens'
                for name, split in self.examples.texts.items()
            ),
            *([f'also evaluated on {len(self._pairs):,} minimal pairs'] if self._pairs else []),
        ]
        lines += [] if self.settings.budget else describe_phases(self._phases)  # see `BudgetPlan.describe` for a budget
        pieces = max(store.report['pieces_per_word'] for store in self.examples.stores)
        lines += describe_masks(self.settings, self._phases, pieces)
        report = self.examples.get(self.settings.first_shape, 'train', 0).report
        return '\n'.join([*lines, *describe_pairs(report)])

    def details(self) -> str:
        """See `Experiment`."""
        return f'{self.setup.describe()}, attention: {self._attention}\n{describe_decay(self.setup.state.params)}'
