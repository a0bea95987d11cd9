"""A fine-tuning made ready: its task's head on the encoder, on the mesh, and the phase that trains it."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from bertjax.convert.huggingface.config import check_head_exportable
from bertjax.convert.huggingface.load import load_task_model
from bertjax.data.buckets import BucketedExamples
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.experiment.finetuning_settings import FinetuningSettings
from bertjax.experiment.settings import check_mesh, resolve_durations
from bertjax.experiment.task_data import Split, TaskData
from bertjax.metrics.rows import task_values
from bertjax.model.attention.select import describe_attention
from bertjax.model.config import train_flops_per_sequence
from bertjax.optim.masks import describe_decay
from bertjax.optim.optimizers import make_optimizer
from bertjax.optim.selection import make_selection, partition
from bertjax.parallel.mesh import describe_mesh
from bertjax.tasks.task import Task
from bertjax.train.members import Member
from bertjax.train.phase import Phase
from bertjax.train.predict import Predictor
from bertjax.train.setup import PhaseSettings, Setup, build_setup
from bertjax.train.state import TrainState, replace_params


class TaskModel:
    """A task's model on a mesh: what trains, evaluates and predicts with it shares.

    Attributes:
      data: the task's.
      setup: of the model.
      shapes: the lengths that its batches are padded to.
    """

    def __init__(self, data: TaskData, mesh: Mesh, splits: Sequence[Split]):
        """`splits`, at least one, are those that it will see: they choose the padded lengths, the first one the form
        of a batch."""
        settings = data.settings
        check_mesh(data.encoder, mesh)
        self.data = data
        self.shapes = data.padded_lengths(splits)
        self.setup: Setup = build_setup(
            data.task.model(data.encoder),
            data.task.objective,
            make_optimizer(**settings.optimizer),
            mesh,
            splits[0].features.spec(1, self.shapes[0]),
            rng_impl=settings.rng_impl,
            trained=make_selection(settings.train, data.encoder.num_layers),
            layer_decay=settings.layer_decay,
        )
        self._predictors: dict[int, Predictor] = {}

    @property
    def settings(self) -> FinetuningSettings:
        """Of the config."""
        return self.data.settings

    def examples(self, features: Features, seed: int) -> BucketedExamples:
        """Training examples in the order of `seed`."""
        return BucketedExamples(
            features,
            batch_size=self.settings.batch_size,
            shapes=self.shapes,
            seed=seed,
            pad_id=self.data.tokenizer.pad_id,
        )

    def predictor(self, members: int = 0) -> Predictor:
        """Outputs of the model for any features; one for all splits, so that each length is compiled once."""
        if members not in self._predictors:
            self._predictors[members] = Predictor(
                self.setup.model,
                self.data.task.objective,
                self.setup.mesh,
                per_token=self.data.task.head.per_token,
                batch_size=self.settings.eval_batch_size,
                shapes=self.shapes,
                pad_id=self.data.tokenizer.pad_id,
                members=members,
            )
        return self._predictors[members]

    def predictions(self, params: Any, split: Split) -> list[Any]:
        """One a record."""
        outputs = self.predictor().outputs(params, split.features)
        return self.data.task.predictions(split.records, split.features, outputs)

    def fresh_state(self, seed: int) -> tuple[TrainState, list[str], list[str]]:
        """The state of step 0; what was drawn with `seed` because the source lacks it, and what of it has no use."""
        task, labels = self.data.task, self.data.task.huggingface().get('id2label')
        imported = load_task_model(self.data.source, self.setup.model, task.head, id2label=labels, seed=seed)
        state = replace_params(self.setup.create(seed), imported.params, self.setup.state)
        return state, imported.missing, imported.unused


class TaskEvaluator:
    """The task's figures on dev."""

    split = 'dev'

    def __init__(self, model: TaskModel, split: Split):
        self._model, self._split = model, split

    @property
    def _task(self) -> Task:
        return self._model.data.task

    def run(self, params: Any) -> dict[str, float | None]:
        """All figures."""
        return self._task.metrics(self._split.records, self._model.predictions(params, self._split))

    def cost(self, values: Mapping[str, float | None]) -> float | None:
        """Minus the task's score."""
        score = values[self._task.score]
        return None if score is None else -score


def prepare(data: TaskData, mesh: Mesh, *, chosen_by: str = '') -> tuple[Split, TaskModel]:
    """Tokenises everything, and builds what trains: all that can be refused is refused here.

    Args:
      data: the task's.
      mesh: to train on.
      chosen_by: the config key that makes a run choose among models by dev; '' where none does.
    """
    if 'dev' not in data.evaluated and chosen_by:
        raise UserError(chosen_by, 'no dev split to choose by', 'one', f'give {data.task.name} a dev file')
    if data.settings.export:
        check_head_exportable(data.task.model(data.encoder), data.task.head)
    evaluated = [data.split(name) for name in data.evaluated]
    train = data.split('train', training=True)
    return train, TaskModel(data, mesh, [train, *evaluated])


class Finetuning:
    """A fine-tuning in its workdir, as `session.train_in` runs it.

    Attributes:
      settings: of its config.
      folders: the workdir.
      model, setup: of the run.
      config: the resolved config: what config.json and every checkpoint hold.
    """

    values = staticmethod(task_values)

    def __init__(self, data: TaskData, folder: pathlib.Path, mesh: Mesh):
        settings = data.settings
        self.settings, self.folders, self.data = settings, [folder], data
        chosen_by = 'config.select' if settings.select == 'best' else ''
        self._train, self.model = prepare(data, mesh, chosen_by=chosen_by)
        self.setup = self.model.setup
        self._examples = self.model.examples(self._train.features, settings.seeds.data)
        self.config = self._resolved(settings.total_steps(self._examples.batches))

    def _resolved(self, total: int) -> dict[str, Any]:
        settings, examples = self.settings, self._examples
        # What the order of the rows depends on besides them.
        batches = f'{settings.batch_size} rows of {", ".join(map(str, examples.shapes))} pieces'
        return {
            **settings.recorded,
            'steps': total,
            'epochs': total / examples.batches,
            **resolve_durations(settings, total, examples.batches),
            'fingerprints': self.data.fingerprints() | {'batches': batches},
        }

    @property
    def template(self) -> TrainState:
        """The abstract state."""
        return self.setup.state

    def fresh(self) -> TrainState:
        """The encoder of config.init with a head that is drawn."""
        state, missing, unused = self.model.fresh_state(self.settings.seeds.init)
        print(f'starting from {self.data.source}; freshly drawn: {", ".join(missing) or "nothing"}')
        if unused:
            print(f'of no use here: {", ".join(unused)}')
        return state

    def phases(self) -> list[Phase]:
        """What the loop works through: one phase."""
        member = Member(self._examples, self.settings.learning_rate, self.settings.seeds.dropout)
        evaluator = TaskEvaluator(self.model, self.data.split('dev')) if 'dev' in self.data.evaluated else None
        return [task_phase(self.model, [member], self._examples, self.config['steps'], evaluator=evaluator)]

    def describe(self) -> str:
        """What a person wants to know before it starts."""
        settings, data, setup = self.settings, self.data, self.setup
        encoder, params = data.encoder, setup.state.params
        splits = ', '.join(f'{len(data.split(name).records):,} {name}' for name in data.evaluated)
        trained, _ = partition(params, setup.trained)
        count, moving = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (params, trained))
        decay = f', layer decay {settings.layer_decay:g}' if settings.layer_decay < 1 else ''
        lines = [
            f'{data.task.name}: {len(self._train.records):,} training records in {len(self._train.features):,} rows; '
            + (splits or 'NOTHING to judge by'),
            f'{encoder.num_layers} layers, width {encoder.width}, {encoder.num_heads} heads: '
            f'{count:,} parameters, {moving:,} of them trained (train={settings.train})',
            f'{self.config["steps"]:,} steps of {settings.batch_size}, learning rate {settings.learning_rate:g} '
            f'{settings.schedule}, warm-up {settings.warmup_fraction:.1%}{decay}',
            f'{len(self.model.shapes)} padded lengths: ' + ', '.join(map(str, self.model.shapes)),
            describe_mesh(setup.mesh),
            f'attention: {describe_attention(encoder, settings.batch_size, max(self.model.shapes))}',
        ]
        return '\n'.join([*lines, describe_decay(trained)])


def task_phase(
    model: TaskModel,
    members: Sequence[Member],
    examples: BucketedExamples,
    total: int,
    *,
    together: bool = False,
    evaluator: TaskEvaluator | None = None,
) -> Phase:
    """The one phase of a fine-tuning, or of several together.

    Args:
      model: theirs.
      members: see Phase.
      examples: of any of them: what batches there are does not depend on the seed.
      total: steps.
      together: see Phase.
      evaluator: see Phase.
    """
    settings = model.settings
    # Of a step of the whole model; not known where a part of it is frozen.
    flops = train_flops_per_sequence(model.data.encoder, round(examples.mean_length), 0)
    return Phase(
        PhaseSettings(
            number=0,
            first_step=0,
            last_step=total,
            batch_size=settings.batch_size,
            accumulate=settings.accumulate,
            schedule=settings.schedule,
            warmup_fraction=settings.warmup_fraction,
            power=settings.power,
        ),
        model.setup,
        members,
        examples.abstract_batches(),
        together=together,
        evaluator=evaluator,
        flops_per_sequence=flops * len(members) if settings.train == 'all' else 0.0,
    )
