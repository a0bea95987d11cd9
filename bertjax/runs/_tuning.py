"""Joins a task's model, optimiser, mesh and data into what the loop runs."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import optax
from flax import linen as nn
from jax.sharding import Mesh
from ml_collections import ConfigDict

from bertjax.convert.huggingface.config import check_head_exportable
from bertjax.convert.huggingface.load import load_task_model
from bertjax.data.buckets import BucketedExamples
from bertjax.data.features import Features
from bertjax.errors import UserError
from bertjax.optim.optimizers import make_optimizer
from bertjax.optim.selection import Selection, make_selection
from bertjax.parallel.partition import mesh_context
from bertjax.runs import _settings as settings
from bertjax.runs._cells import cells_of
from bertjax.runs._task import Split, TaskData, padded_lengths
from bertjax.train.predict import Predictor
from bertjax.train.state import TrainState, abstract_state, create_state, make_init, replace_params


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The pieces of a run over a task. `state` is abstract: shapes, dtypes and shardings."""

    config: ConfigDict
    data: TaskData
    mesh: Mesh
    model: nn.Module
    trained: Selection
    optimizer: optax.GradientTransformation
    init: Callable[[jax.Array], TrainState]
    state: TrainState
    shapes: tuple[int, ...]

    def examples(self, features: Features, seed: int) -> BucketedExamples:
        """The training examples in the order of `seed`."""
        return BucketedExamples(
            features,
            batch_size=self.config.batch_size,
            shapes=self.shapes,
            seed=seed,
            pad_id=self.data.tokenizer.pad_id,
        )

    def predictor(self, members: int = 0) -> Predictor:
        """Outputs of the model for any features."""
        return Predictor(
            self.model,
            self.data.task.objective,
            self.mesh,
            batch_size=self.config.eval_batch_size,
            shapes=self.shapes,
            pad_id=self.data.tokenizer.pad_id,
            members=members,
        )

    def fresh_state(self, seed: int) -> tuple[TrainState, list[str], list[str]]:
        """The state of step 0; what was drawn with `seed` because the source lacks it, and what of it has no use."""
        state = create_state(self.init, self.state, jax.random.key(seed))
        labels = self.data.task.huggingface()[1].get('id2label')
        imported = load_task_model(self.data.source, self.model, id2label=labels, seed=seed)
        return replace_params(state, imported.params, self.state), imported.missing, imported.unused


class TaskEvaluator:
    """The task's figures on a split."""

    def __init__(self, tuning: Tuning, split: Split):
        self._task, self._split, self._predictor = tuning.data.task, split, tuning.predictor()

    def predictions(self, params: Any) -> list[Any]:
        """One a record."""
        outputs = self._predictor.outputs(params, self._split.features)
        return self._task.predictions(self._split.records, self._split.features, outputs)

    def run(self, params: Any) -> dict[str, float | None]:
        """All figures; of labelled records."""
        return self._task.metrics(self._split.records, self.predictions(params))


def prepare(data: TaskData, mesh: Mesh) -> tuple[Split, Tuning]:
    """Tokenises everything, and builds what trains: all that can be refused is refused here."""
    if 'dev' not in data.evaluated and (data.config.select == 'best' or cells_of(data.config)):
        where = 'config.select' if data.config.select == 'best' else 'config.sweep'
        raise UserError(where, 'no dev split to choose by', 'one', f'give {data.task.name} a dev file')
    if data.config.export:
        check_head_exportable(data.model())
    evaluated = [data.split(name) for name in data.evaluated]
    train = data.split('train', training=True)
    features = [split.features for split in (train, *evaluated)]
    return train, build_tuning(data, mesh, padded_lengths(data, features), train.features)


def build_tuning(data: TaskData, mesh: Mesh, shapes: tuple[int, ...], features: Features) -> Tuning:
    """Shapes, then shardings; no arrays yet. `features` give the form of a batch."""
    config, model = data.config, data.model()
    settings.check_mesh(data.encoder, mesh)
    trained = make_selection(config.train, data.encoder.num_layers)
    optimizer = make_optimizer(**config.optimizer)
    spec = features.spec(1, shapes[0])
    inputs = [jax.ShapeDtypeStruct(*spec[name]) for name in data.task.objective.inputs]
    init = make_init(model, optimizer, inputs, trained)
    with mesh_context(mesh):
        state = abstract_state(init, mesh)
    return Tuning(config, data, mesh, model, trained, optimizer, init, state, shapes)
