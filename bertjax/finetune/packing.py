"""Chooses packed or padded rows for a fine-tuning run, by their compute and compile cost."""

import dataclasses

import numpy as np
from jax.sharding import Mesh

from bertjax.data.batch import count_batches
from bertjax.data.length_buckets import MAX_LENGTHS, best_length_count
from bertjax.data.strata import choose_layout, layout_cost, slot_capacities
from bertjax.errors import UserError
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import FLOPS, TaskData, TaskSplit, compile_cost
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.model.row_packing import PackedLayout
from bertjax.parallel.mesh import is_cpu, row_shards

# The values of config.model.attention that support rows of several sequences.
_PACKED_ATTENTION = ('auto', 'dot_product', 'by_head_cpu')
# The CPU seconds to compile attention for one more row length, per encoder block (compare task_data.COMPILE_TIME).
_GROUP_COMPILE_TIME = 0.25


@dataclasses.dataclass(frozen=True)
class PackingChoice:
    """The layout of packed rows, or None for padded rows of one sequence each, and the reason to print."""

    layout: PackedLayout | None
    reason: str

    def apply(self, settings: FinetuningSettings) -> FinetuningSettings:
        """Returns the settings with this choice as config.packing, 'on' or 'off'."""
        return dataclasses.replace(settings, packing='off' if self.layout is None else 'on')


def decide_packing(data: TaskData, mesh: Mesh, recorded: str = '') -> PackingChoice:
    """Decides whether rows are packed.

    With config.packing='auto', a resumed run keeps its choice. A new run packs rows if it runs on a CPU,
    config.max_padded_lengths is 0, and packed rows cost less than rows padded to the best number of lengths.

    `recorded` is config.packing of the run in the workdir, or '' for a new run. Raises a UserError if config.packing is
    neither 'auto' nor the choice of the resumed run.
    """
    settings, train = data.settings, data.split('train', training=True)
    packing, passes = settings.packing, train.passes(settings)
    if recorded and packing not in ('auto', recorded):
        fix = 'leave it out to continue, or start anew in another --workdir'
        raise UserError('config.packing', repr(packing), f'{recorded!r}, as at the start of the run', fix)
    reason = 'as at the start of the run' if packing == 'auto' else f'config.packing={packing}'
    if 'off' in (packing, recorded):
        return PackingChoice(None, reason)
    if packing == 'auto' and not recorded:
        if settings.max_padded_lengths:
            return PackingChoice(None, f'config.max_padded_lengths={settings.max_padded_lengths} requires padded rows')
        if not is_cpu(mesh):
            return PackingChoice(None, 'packing has been measured only on CPUs')
    layout, packed_cost = _choose_layout(data, train, mesh, passes)
    if packing == 'on' or recorded:
        return PackingChoice(layout, reason)
    _, padded_cost = best_length_count(
        np.repeat(train.features.lengths, train.features.choices),
        lambda length: passes * _row_cost(data.encoder, length),
        compile_cost=compile_cost(data.encoder, training=True),
        max_length=data.encoder.max_positions,
    )
    reason = f'about {packed_cost / FLOPS:,.0f} CPU seconds packed, {padded_cost / FLOPS:,.0f} padded to a few lengths'
    return PackingChoice(layout if packed_cost < padded_cost else None, reason)


def _choose_layout(data: TaskData, train: TaskSplit, mesh: Mesh, passes: float) -> tuple[PackedLayout, float]:
    """Returns the cheapest packed layout, and the cost of training and compilation with this layout, in FLOPs."""
    settings, encoder, features, shards = data.settings, data.encoder, train.features, row_shards(mesh)
    times = passes * count_batches(len(features), settings.batch_size) * shards * settings.grad_accum_steps
    cost = lambda length: times * _row_cost(encoder, length)  # noqa: E731
    group_cost = FLOPS * _GROUP_COMPILE_TIME * encoder.num_layers
    layout = choose_layout(
        slot_capacities(features.lengths_of_choices, settings.batch_size, shards, settings.grad_accum_steps),
        cost=cost,
        group_cost=group_cost,
        max_groups=settings.max_padded_lengths or MAX_LENGTHS,
        max_length=encoder.max_positions,
        # The attention kernels of other platforms do not support separate dropout for the sequences of a row.
        shared=is_cpu(mesh) and settings.model.attention in _PACKED_ATTENTION,
    )
    packed = PackedLayout(layout.row_groups, layout.slots)
    return packed, layout_cost(layout, cost, group_cost) + compile_cost(encoder, training=True)


def _row_cost(encoder: BertConfig, length: int) -> float:
    """Returns the cost of training on a row of `length` tokens, in FLOPs.

    A FLOP of attention counts as three, because it takes about three times as long as a FLOP of a dense layer.
    """
    attention = 12 * encoder.num_layers * encoder.width * length**2
    return train_flops_per_sequence(encoder, length, 0) + 2 * attention
