"""A fine-tuning run in its workdir: its examples, its model and its phases."""

import dataclasses
import functools
import itertools
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from bertjax.config.plain import to_plain
from bertjax.data.length_buckets import BucketedExamples
from bertjax.files.small_files import read_json_or_none
from bertjax.finetune.packing import PackingChoice, decide_packing
from bertjax.finetune.task_data import TASK_FILE, TaskData
from bertjax.finetune.task_model import TaskEvaluator, prepare
from bertjax.metrics.rows import distillation_values, task_values
from bertjax.optim.masks import describe_decay
from bertjax.optim.trainable import partition
from bertjax.training.distillation import NO_TEACHER, Distillation, DistillationStage
from bertjax.training.health.profiler import profiled_steps
from bertjax.training.phase import Experiment, Phase
from bertjax.training.settings import resolve_durations
from bertjax.training.setup import Setup
from bertjax.training.state import TrainState, without_aux
from bertjax.training.vmapped_runs import VmappedRun
from bertjax.workdir.lock import has_checkpoints


class Finetuning(Experiment):
    """A fine-tuning run in its workdir.

    `task_model` is the model of the task, and `setup` is the setup of the first stage of training. `files` has the
    content of task.json before any threshold is tuned on dev.
    """

    def __init__(self, data: TaskData, folder: pathlib.Path, mesh: Mesh, distillation: Distillation = NO_TEACHER):
        settings = data.settings
        self.settings, self.folders, self.data, self._distillation = settings, [folder], data, distillation
        self._train = train = data.split('train', training=True)
        profiled_steps(settings.profile, train.total_steps(settings))  # raises before the other splits are tokenized
        passes = train.passes(settings)
        recorded_count, recorded_packing = _recorded_rows(folder)
        if distillation is NO_TEACHER:
            self.packing = decide_packing(data, mesh, recorded_packing)
        else:
            self.packing = PackingChoice(None, 'distillation does not support packed rows')
        is_padded, splits = self.packing.layout is None, [train]
        if not is_padded:  # only the evaluation has padded rows
            splits, passes = [data.split(name) for name in data.eval_splits] or [train], 1
        length_count = settings.max_padded_lengths or recorded_count
        length_count = length_count or data.best_length_count(splits, passes, training=is_padded)
        self.task_model = prepare(
            data, mesh, length_count, layout=self.packing.layout, selection_key=settings.selection_key
        )
        self._setups = [self.task_model.setup]
        self.values = task_values
        if distillation is not NO_TEACHER:
            self._setups = [self._stage_setup(stage) for stage in distillation.stages]
            factors = {name: factor for setup in self._setups for name, factor in setup.objective.factors.items()}
            self.values = functools.partial(distillation_values, factors=factors)
        self.setup = self._setups[0]
        self._examples = self.task_model.examples(settings.run_seeds.data)
        total = settings.total_steps(self._examples.batches)
        self._stage_ends = [total]
        if len(self._setups) > 1:
            self._stage_ends = [distillation.first_stage_steps(total, self._examples.batches), total]
        durations = resolve_durations(settings, total, self._examples.batches)
        durations |= {'steps': total, 'max_padded_lengths': length_count, 'epochs': total / self._examples.batches}
        self.settings = dataclasses.replace(self.packing.apply(settings), **durations)
        self.resolved = {**to_plain(self.settings), 'fingerprints': self._fingerprints()}
        self.files = {TASK_FILE: data.task_json(finished=False)}

    def _stage_setup(self, stage: DistillationStage) -> Setup:
        student, teacher = self.task_model.setup, self._distillation.abstract_teacher
        return dataclasses.replace(student, objective=stage.objective(student.objective), teacher=teacher)

    def _fingerprints(self) -> dict[str, str]:
        """Returns fingerprints of the data, the batches and the teacher. They must not change in a resumed run."""
        lengths = 'all lengths'
        if isinstance(self._examples, BucketedExamples):
            lengths = f'{", ".join(map(str, self._examples.shapes))} pieces'
        batches = f'{self.settings.batch_size} rows of {lengths}'
        return {**self.data.fingerprints(), 'batches': batches, **self._distillation.fingerprints}

    def eval_fingerprints(self) -> dict[str, str]:
        """See `Experiment`."""
        return self.data.eval_fingerprints()

    def init_state(self) -> TrainState:
        """Returns the initial state: from config.init (with a new head if it has none), from a teacher, or random."""
        distillation, seed = self._distillation, self.settings.run_seeds.init
        if distillation.initial_params is not None:
            print(distillation.initial_weights)
            self.evaluate_first = distillation.has_head
            return self.setup.create_from(distillation.initial_params(), seed)
        if distillation.random:
            print(distillation.initial_weights)
            self.evaluate_first = False
            return self.setup.create(seed)
        state, imported = self.task_model.fresh_state(seed)
        print(imported.describe(self.data.source))
        self.evaluate_first = not any(path.startswith('head/') for path in imported.missing)
        return state if distillation is NO_TEACHER else self.setup.create_from(state.params, seed)

    def phases(self) -> list[Phase]:
        """Returns a phase for each stage of the distillation; a single phase without a teacher."""
        member = VmappedRun(self._examples, self.settings.learning_rate, self.settings.run_seeds.dropout)
        evaluator = TaskEvaluator(self.task_model, self.data.split('dev')) if 'dev' in self.data.eval_splits else None
        phase = self.task_model.phase([member], self.settings.steps, evaluator=evaluator)
        flops, teacher = phase.flops_per_row, self._distillation.teacher()
        if flops:
            forward_flops = self._distillation.forward_flops(round(self._examples.mean_length), 0)
            flops += self._train.features.choices * forward_flops
        stages = zip(self._setups, self._rates, itertools.pairwise([0, *self._stage_ends]), strict=True)
        return [
            dataclasses.replace(
                phase,
                settings=dataclasses.replace(
                    phase.settings, number=number, first_step=first, last_step=last, reset_optimizer=number > 0
                ),
                setup=setup,
                members=[dataclasses.replace(member, learning_rate=rate)],
                flops_per_row=flops,
                may_be_best=number == len(self._setups) - 1,  # the head is trained only in the last stage
                teacher=teacher,
            )
            for number, (setup, rate, (first, last)) in enumerate(stages)
        ]

    @property
    def _rates(self) -> list[float]:
        """The peak learning rate of each stage."""
        return [stage.learning_rate or self.settings.learning_rate for stage in self._distillation.stages]

    def describe(self) -> str:
        """See `Experiment`."""
        settings, data, setup = self.settings, self.data, self.setup
        encoder, params = data.encoder, without_aux(setup.state.params)
        splits = ', '.join(f'{len(data.split(name).records):,} {name}' for name in data.eval_splits)
        trained, _ = partition(params, setup.trained)
        count, num_trained = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (params, trained))
        decay = f', layer decay {settings.layer_decay:g}' if settings.layer_decay < 1 else ''
        lines = [*self._distillation.description]
        if len(self._setups) > 1:
            (first, total), (hidden, rate) = self._stage_ends, self._rates
            lines.append(
                f'{first:,} steps at {hidden:g} on the hidden losses, then {total - first:,} at {rate:g} on the outputs'
            )
        lines += [
            f'{data.task.name}: {len(self._train.records):,} training records in {len(self._train.features):,} rows; '
            + (splits or 'NO labeled split: nothing will be evaluated'),
            f'{encoder.num_layers} layers, width {encoder.width}, {encoder.num_heads} heads: '
            f'{count:,} parameters, {num_trained:,} of them trained (trainable={settings.trainable})',
            f'{self.settings.steps:,} steps of {settings.batch_size}, learning rate {settings.learning_rate:g} '
            f'{settings.schedule.name}, warm-up {settings.warmup_fraction:.1%}{decay}',
            self._describe_rows(),
        ]
        # The export that gives the weights may be in a workdir of a pre-training.
        workdir = pathlib.Path(data.source or os.devnull).resolve().parent.parent
        pretrained = read_json_or_none(workdir / 'config.json', _pretrained_length)
        longest = int(self._train.features.lengths.max())
        if encoder.position == 'learned' and pretrained and longest > pretrained:
            lines.append(
                f'warning: rows have up to {longest} tokens, but those of the pre-training had {pretrained}, so the '
                f'embeddings of later positions are random: set --config.seq_len={pretrained}, or pre-train longer rows'
            )
        intervals = self.settings.eval_every, self.settings.checkpoint_every
        period = math.lcm(*intervals)
        start, end = [0, *self._stage_ends][-2:]  # of the last stage
        has_choice = settings.patience or (all(intervals) and (end - 1) // period > start // period)
        if settings.use_checkpoint == 'best' and not has_choice:
            stage = ' in the last stage' if len(self._setups) > 1 else ''
            lines.append(
                f'warning: config.use_checkpoint=best can choose only the last step, the only one{stage} that is saved '
                'and evaluated: set config.eval_every and config.checkpoint_every to one shorter interval'
            )
        return '\n'.join(lines)

    def details(self) -> str:
        """See `Experiment`."""
        trained, _ = partition(without_aux(self.setup.state.params), self.setup.trained)
        return f'{self.setup.describe()}, attention: {self.task_model.attention}\n{describe_decay(trained)}'

    def _describe_rows(self) -> str:
        layout, shapes = self.packing.layout, self.task_model.shapes
        if layout is None:
            lengths = f'{len(shapes)} padded length{"s"[: len(shapes) > 1]}: {", ".join(map(str, shapes))}'
            return f'{lengths}; not packed: {self.packing.reason}'
        rows = ' and '.join(f'{rows} rows of {length}' for rows, length in layout.row_groups)
        sequences = f'{len(layout.slots)} sequences, {layout.mean_length:.1f} positions each, in {rows}'
        return f'packed: {sequences}; {self.packing.reason}'


def _pretrained_length(facts: Mapping[str, Any]) -> int:
    """Returns the longest row of a pre-training in tokens, from its config; 0 if it has weights of another model."""
    lengths = [phase['seq_len'] or facts['seq_len'] for phase in facts['phases']]
    return 0 if facts['init'] or 'distill' in facts else max(lengths, default=facts['seq_len'])


def _recorded_rows(folder: pathlib.Path) -> tuple[int, str]:
    """Returns config.max_padded_lengths and config.packing of the run in the workdir, or (0, '') without a checkpoint.

    A resumed run must keep these values, because the order of its rows depends on them.
    """
    parse = lambda config: (config['max_padded_lengths'], config['packing'])  # noqa: E731
    recorded = read_json_or_none(folder / 'config.json', parse) if has_checkpoints(folder) else None
    return recorded or (0, '')
