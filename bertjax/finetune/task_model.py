"""A task's model, including its head, on a mesh, for training, evaluation and prediction."""

import contextlib
from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from bertjax.convert.load import ImportedModel, load_task_model
from bertjax.data.length_buckets import BucketedExamples, choose_lengths
from bertjax.data.strata import StratifiedExamples
from bertjax.errors import UserError
from bertjax.finetune.task_data import TaskData, TaskSplit
from bertjax.model.attention.select import describe_attention
from bertjax.model.config import train_flops_per_sequence
from bertjax.model.row_packing import PackedLayout
from bertjax.optim.optimizers import make_optimizer
from bertjax.optim.trainable import make_selection
from bertjax.parallel.mesh import row_shards
from bertjax.parallel.partition import mesh_context
from bertjax.tasks.task import Outputs
from bertjax.training.evaluate import OnCompile
from bertjax.training.phase import Phase
from bertjax.training.predict import Predictor
from bertjax.training.settings import check_mesh
from bertjax.training.setup import PhaseSettings, Setup
from bertjax.training.state import TrainState
from bertjax.training.step import make_forward
from bertjax.training.vmapped_runs import VmappedRun
from bertjax.workdir.exports import check_formats


class TaskModel:
    """The model of a task on a mesh, for training, evaluation and prediction.

    Args:
      shapes: The padded lengths, ascending; packed training batches do not use them. () if only `setup` is used.
      layout: The layout of packed training batches; None for padded rows.

    Attributes:
      attention: A description of the attention for batches of the longest rows; '' if only `setup` is used.
    """

    def __init__(self, data: TaskData, mesh: Mesh, shapes: tuple[int, ...], layout: PackedLayout | None = None):
        settings = data.settings
        module = data.task.build_module(data.encoder)
        check_mesh(data.encoder, mesh, module.bilstm_units)
        self.data, self.settings, self.shapes, self.layout = data, settings, shapes, layout
        self.attention = ''
        self.setup = Setup(
            module,
            data.task.objective,
            make_optimizer(**vars(settings.optimizer), dtype=data.encoder.dtype),
            mesh,
            trained=make_selection(settings.trainable, data.encoder.num_layers),
            layer_decay=settings.layer_decay,
            ema_decay=settings.ema_decay,
            zero1=settings.zero1,
        )
        with mesh_context(mesh):
            if layout is not None:
                (rows, length), packed = layout.row_groups[-1], max(layout.most_sequences) > 1
                self.attention = describe_attention(data.encoder, rows * row_shards(mesh), length, packed=packed)
            elif shapes:
                self.attention = describe_attention(data.encoder, settings.batch_size, max(shapes))
        self._predictors: dict[int, Predictor] = {}
        self._last: tuple[Any, TaskSplit, Outputs] | None = None

    def examples(self, seed: int) -> BucketedExamples | StratifiedExamples:
        """Returns the training examples, in an order that depends on `seed`."""
        features = self.data.split('train', training=True).features
        options = {'batch_size': self.settings.batch_size, 'seed': seed, 'pad_id': self.data.tokenizer.pad_id}
        if self.layout is not None:
            shapes = choose_lengths(features.lengths, count=1, max_length=self.data.encoder.max_positions)
            return StratifiedExamples(features, shapes=shapes, **options)
        return BucketedExamples(features, shapes=self.shapes, **options)

    def predictor(self, members: int = 0) -> Predictor:
        """Returns the predictor, which all splits share, for `members` stacked models; 0 means a single model."""
        if members not in self._predictors:
            objective = self.data.task.objective
            self._predictors[members] = Predictor(
                make_forward(self.setup.module, objective),
                self.setup.mesh,
                inputs=objective.inputs,
                per_token=self.data.task.head.per_token,
                batch_size=self.settings.eval_batch_size,
                shapes=self.shapes,
                pad_id=self.data.tokenizer.pad_id,
                members=members,
            )
        return self._predictors[members]

    def outputs(self, params: Any, split: TaskSplit, on_compile: OnCompile = contextlib.nullcontext) -> Outputs:
        """Returns the outputs for all rows of a split. The last result is cached."""
        if self._last is None or self._last[0] is not params or self._last[1] is not split:
            self._last = params, split, self.predictor().outputs(params, split.features, on_compile)
        return self._last[2]

    def predictions(
        self, params: Any, split: TaskSplit, on_compile: OnCompile = contextlib.nullcontext
    ) -> Sequence[Any]:
        """Returns a prediction for each record."""
        outputs = self.outputs(params, split, on_compile)
        return self.data.task.predictions(split.records, split.features, outputs)

    def phase(
        self,
        members: Sequence[VmappedRun],
        total: int,
        *,
        stacked: bool = False,
        evaluator: 'TaskEvaluator | None' = None,
    ) -> Phase:
        """Returns the single phase of `total` steps of a fine-tuning run, or of several runs that are trained together.

        All runs have batches of the same shapes. For the other arguments, see `Phase`.
        """
        settings, examples = self.settings, members[0].examples
        length = self.layout.mean_length if self.layout else examples.mean_length
        flops = train_flops_per_sequence(self.data.encoder, round(length), 0)  # if all parameters are trained
        flops *= self.data.split('train').features.choices * len(members)
        return Phase(
            PhaseSettings(
                number=0,
                first_step=0,
                last_step=total,
                batch_size=settings.batch_size,
                grad_accum_steps=settings.grad_accum_steps,
                schedule=settings.schedule.name,
                warmup_fraction=settings.warmup_fraction,
                power=settings.schedule.power,
                decay=settings.schedule.decay,
                decay_fraction=settings.schedule.decay_fraction,
                layout=self.layout,
            ),
            self.setup,
            members,
            examples.abstract_batches(),
            stacked=stacked,
            evaluator=evaluator,
            flops_per_row=flops if settings.trainable == 'all' else 0.0,
        )

    def fresh_state(self, seed: int) -> tuple[TrainState, ImportedModel]:
        """Returns the state at step 0 and the model of `data.source`. `seed` initializes its missing parameters."""
        task, labels = self.data.task, self.data.task.huggingface().get('id2label')
        imported = load_task_model(self.data.source, self.setup.module, task.head, id2label=labels, seed=seed)
        return self.setup.create_from(imported.params, seed), imported


class TaskEvaluator:
    """Evaluates a task on dev."""

    split = 'dev'

    def __init__(self, task_model: TaskModel, split: TaskSplit):
        self._task_model, self._task, self._split = task_model, task_model.data.task, split

    def run(
        self, params: Any, on_compile: OnCompile = contextlib.nullcontext
    ) -> tuple[dict[str, float | None], float | None]:
        """Returns all metrics, and the negated score, which selects the best checkpoint (None if undefined)."""
        predictions = self._task_model.predictions(params, self._split, on_compile)
        values = self._task.metrics(self._split.records, predictions)
        score = values[self._task.score]
        return values, (None if score is None else -score)


def prepare(
    data: TaskData, mesh: Mesh, length_count: int, *, layout: PackedLayout | None = None, selection_key: str = ''
) -> TaskModel:
    """Builds the model and tokenizes the splits that the run needs, so that errors are reported before training.

    Args:
      length_count: The maximum number of padded lengths.
      layout: See `TaskModel`.
      selection_key: The config key that selects a model by its dev score; '' for none.

    Raises:
      UserError: `selection_key` is set, but dev is missing or its score is undefined. Or the records or an export
        format do not fit the model.
    """
    if 'dev' not in data.eval_splits and selection_key:
        raise UserError(selection_key, 'no dev split', 'a dev split', f'give {data.task.name} a dev file')
    data.task.check_encoder(data.encoder)
    check_formats(
        data.settings.formats,
        data.encoder,
        tokenizer=data.tokenizer,
        module=data.task.build_module(data.encoder),
        head=data.task.head,
    )
    eval_splits = [data.split(name) for name in data.eval_splits]
    if selection_key and not data.task.has_score(data.split('dev').records):
        found, expected = 'a dev split with equal scores', f'different scores, as {data.task.score} needs'
        raise UserError(
            selection_key, found, expected, f'give {data.task.name} another dev split, or leave {selection_key} out'
        )
    train = data.split('train', training=True)
    padded_splits = [train, *eval_splits]
    if layout is not None:  # only the evaluation has padded rows
        padded_splits = eval_splits or [train]
    return TaskModel(data, mesh, data.padded_lengths(padded_splits, length_count), layout)
