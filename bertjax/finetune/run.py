"""A fine-tuning made ready: its examples, its model, its phase."""

import contextlib
import dataclasses
import pathlib

import jax
from jax.sharding import Mesh

from bertjax.checkpoint import Checkpoints
from bertjax.config.plain import plain
from bertjax.data.length_buckets import BucketedExamples
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_object
from bertjax.finetune.packing import PackingDecision, decide_packing, recorded_packing
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import TASK_FILE, TaskData, TaskSplit
from bertjax.finetune.task_model import TaskEvaluator, prepare
from bertjax.metrics.rows import task_values
from bertjax.optim.masks import describe_decay
from bertjax.optim.selection import partition
from bertjax.train.phase import Phase
from bertjax.train.settings import resolve_durations
from bertjax.train.state import TrainState, without_aux
from bertjax.train.vmapped_runs import VmappedRun


class Finetuning:
    """A fine-tuning in its workdir, as `session.fit` runs it.

    Attributes:
      settings: of its config, with what the data has decided, and all durations in steps.
      folders: the workdir.
      model, setup: of the run.
      resolved: the resolved config: what config.json and every checkpoint hold.
      files: task.json, as it is before anything is tuned on dev.
    """

    values = staticmethod(task_values)

    def __init__(self, data: TaskData, folder: pathlib.Path, mesh: Mesh):
        settings = data.settings
        self.settings, self.folders, self.data = settings, [folder], data
        chosen_by = 'config.select' if settings.select == 'best' else 'config.patience' if settings.patience else ''
        train = data.split('train', training=True)
        total = settings.total_steps(-(-len(train.features) // settings.batch_size))
        passes = total * settings.batch_size / len(train.features)
        lengths = _lengths_before(folder)
        self.packing = self._decide(train, mesh, passes, recorded_packing(folder) if lengths else '')
        if self.packing.groups is None:
            lengths = settings.shapes or lengths or data.best_length_count([train], passes, training=True)
        else:
            seen = [data.split(name) for name in data.evaluated] or [train]
            lengths = settings.shapes or lengths or data.best_length_count(seen, 1, training=False)
        self._train, self.model = prepare(data, mesh, lengths, groups=self.packing.groups, chosen_by=chosen_by)
        self.setup = self.model.setup
        self._examples = self.model.examples(self._train.features, settings.run_seeds.data)
        self._drawn_head = False
        self.settings = self._resolve(total, lengths)
        self.resolved = {**plain(self.settings), 'fingerprints': self._fingerprints()}
        self.files = {TASK_FILE: data.learned(finished=False)}

    def _decide(self, train: TaskSplit, mesh: Mesh, passes: float, before: str) -> PackingDecision:
        return decide_packing(self.data, train, mesh, passes, before)

    def _resolve(self, total: int, lengths: int) -> FinetuningSettings:
        """The settings with what the data has decided, and all durations in steps."""
        settings, batches = self.packing.apply(self.settings), self._examples.batches
        durations = resolve_durations(settings, total, batches)
        settings.check_patience(durations['eval_every'])
        return dataclasses.replace(settings, steps=total, shapes=lengths, epochs=total / batches, **durations)

    def _fingerprints(self) -> dict[str, str]:
        """What a run can be continued with; of batches, what the order of the rows depends on besides them."""
        lengths = 'all lengths'
        if isinstance(self._examples, BucketedExamples):
            lengths = f'{", ".join(map(str, self._examples.shapes))} pieces'
        return self.data.fingerprints() | {'batches': f'{self.settings.batch_size} rows of {lengths}'}

    @property
    def template(self) -> TrainState:
        """The abstract state."""
        return self.setup.state

    def fresh(self) -> TrainState:
        """The encoder of config.init with a head that is drawn."""
        state, imported = self.model.fresh_state(self.settings.run_seeds.init)
        print(imported.describe(self.data.source))
        self._drawn_head = any(path.startswith('head/') for path in imported.missing)
        return state

    def phases(self) -> list[Phase]:
        """What the loop works through: one phase; of a `fresh` state, where there was none to continue."""
        member = VmappedRun(self._examples, self.settings.learning_rate, self.settings.run_seeds.dropout)
        evaluator = TaskEvaluator(self.model, self.data.split('dev')) if 'dev' in self.data.evaluated else None
        steps = self.settings.steps
        return [
            self.model.phase([member], self._examples, steps, evaluator=evaluator, measured_first=not self._drawn_head)
        ]

    def describe(self) -> str:
        """A description that is printed before training starts."""
        settings, data, setup = self.settings, self.data, self.setup
        encoder, params = data.encoder, without_aux(setup.state.params)
        splits = ', '.join(f'{len(data.split(name).records):,} {name}' for name in data.evaluated)
        trained, _ = partition(params, setup.trained)
        count, moving = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (params, trained))
        decay = f', layer decay {settings.layer_decay:g}' if settings.layer_decay < 1 else ''
        lines = [
            f'{data.task.name}: {len(self._train.records):,} training records in {len(self._train.features):,} rows; '
            + (splits or 'NO labelled split: nothing will be evaluated'),
            f'{encoder.num_layers} layers, width {encoder.width}, {encoder.num_heads} heads: '
            f'{count:,} parameters, {moving:,} of them trained (train={settings.train})',
            f'{self.settings.steps:,} steps of {settings.batch_size}, learning rate {settings.learning_rate:g} '
            f'{settings.schedule.name}, warm-up {settings.warmup_fraction:.1%}{decay}',
            self._describe_rows(),
        ]
        return '\n'.join(lines)

    def details(self) -> str:
        """Lines for the log: the mesh, the attention, which parameters decay."""
        trained, _ = partition(without_aux(self.setup.state.params), self.setup.trained)
        return f'{self.setup.describe()}, attention: {self.model.attention}\n{describe_decay(trained)}'

    def _describe_rows(self) -> str:
        groups, why, shapes = self.packing.groups, self.packing.why, self.model.shapes
        if groups is None:
            return (
                f'{len(shapes)} padded length{"s"[: len(shapes) > 1]}: {", ".join(map(str, shapes))}; not packed: {why}'
            )
        rows = ' and '.join(f'{rows} rows of {length}' for rows, length in groups.sizes)
        return f'packed: {len(groups.slots)} sequences in {rows}, {groups.mean_length:.1f} positions each; {why}'


def _lengths_before(folder: pathlib.Path) -> int:
    """config.shapes of the workdir's run, which decides the order of the rows; 0 without a checkpoint."""
    path = folder / 'config.json'
    with contextlib.closing(Checkpoints(folder / 'checkpoints', keep=1, reading=True)) as checkpoints:
        if not checkpoints.steps():
            return 0
        with contextlib.suppress(UserError):  # damaged: the checkpoint knows it, too, but is long to verify
            if path.exists() and type(lengths := read_json_object(path, '').get('shapes')) is int:
                return lengths
        saved = checkpoints.latest()
    return saved.config['shapes'] if saved else 0
