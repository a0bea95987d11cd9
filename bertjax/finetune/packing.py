"""Decide whether a fine-tuning packs the rows of a batch, and in which layout, by what computing and compiling cost."""

import contextlib
import dataclasses
import pathlib

import numpy as np
from jax.sharding import Mesh

from bertjax.data.length_buckets import MAX_LENGTHS, choose_lengths, find_buckets
from bertjax.data.strata import batches_of, choose_layout, layout_cost, slot_capacities
from bertjax.errors import UserError
from bertjax.files.small_files import read_json_object
from bertjax.finetune.settings import FinetuningSettings
from bertjax.finetune.task_data import COMPILING, FLOPS, TaskData, TaskSplit
from bertjax.model.config import BertConfig, train_flops_per_sequence
from bertjax.model.row_packing import PackedLayout
from bertjax.parallel.mesh import row_shards

_SHARED = ('auto', 'dot_product', 'by_head_cpu')  # config.model.attention that takes rows of several sequences
_GROUP = 0.25  # processor seconds a block to compile the attention of another length, as task_data.COMPILING


@dataclasses.dataclass(frozen=True)
class PackingChoice:
    """How the rows of a batch are computed.

    Attributes:
      layout: of the sequences that a device computes at a time; None: a sequence a row.
      why: in words, for the run's description.
    """

    layout: PackedLayout | None
    why: str

    @property
    def recorded(self) -> str:
        """config.packing of a run that goes on so."""
        return 'off' if self.layout is None else 'on'

    def apply(self, settings: FinetuningSettings) -> FinetuningSettings:
        """The settings of a run that goes on so."""
        return dataclasses.replace(settings, packing=self.recorded)


def recorded_packing(folder: pathlib.Path) -> str:
    """config.packing of the workdir's run, which decides the order of its rows."""
    with contextlib.suppress(UserError, OSError):  # the checkpoint says what does not fit a damaged file
        return read_json_object(folder / 'config.json', '').get('packing', 'off')
    return 'off'


def decide_packing(data: TaskData, train: TaskSplit, mesh: Mesh, passes: float, before: str = '') -> PackingChoice:
    """By config.packing; with 'auto' by what the workdir's run had `before`, else by what is cheaper.

    Args:
      data: the task's, with the settings of the run.
      train: what is trained on.
      mesh: of the run.
      passes: how often every row of it is computed.
      before: see `recorded_packing`; '' for a new run.

    Raises:
      UserError: asked for what the workdir's run has not.
    """
    settings = data.settings
    asked = settings.packing
    if before and asked not in ('auto', before):
        fix = 'leave it out to continue, or start anew in another --workdir'
        raise UserError('config.packing', repr(asked), f'{before!r}, as the run began', fix)
    why = 'as the run began' if asked == 'auto' else f'config.packing={asked}'
    if 'off' in (asked, before):
        return PackingChoice(None, why)
    if asked == 'auto' and not before:
        if settings.max_padded_lengths:
            return PackingChoice(
                None, f'config.max_padded_lengths={settings.max_padded_lengths} asks for padded lengths'
            )
        if mesh.devices.flat[0].platform != 'cpu':
            return PackingChoice(None, 'it was measured on CPUs alone')
    layout, packed = _packed(data, train, mesh, passes)
    if asked == 'on' or before:
        return PackingChoice(layout, why)
    padded = _padded(data.encoder, train, passes)
    why = f'about {packed / FLOPS:,.0f} s of a core packed, {padded / FLOPS:,.0f} with a few padded lengths'
    return PackingChoice(layout if packed < padded else None, why)


def _packed(data: TaskData, train: TaskSplit, mesh: Mesh, passes: float) -> tuple[PackedLayout, float]:
    """The layout that costs least, and what training and compiling it costs, in FLOPs."""
    settings, encoder, features, shards = data.settings, data.encoder, train.features, row_shards(mesh)
    on_cpu = mesh.devices.flat[0].platform == 'cpu'
    times = passes * batches_of(len(features), settings.batch_size) * shards * settings.grad_accum_steps
    cost, another = lambda length: times * _row(encoder, length), FLOPS * _GROUP * encoder.num_layers
    layout = choose_layout(
        slot_capacities(features.lengths, settings.batch_size, shards, settings.grad_accum_steps),
        features.choices,
        cost=cost,
        another=another,
        most=settings.max_padded_lengths or MAX_LENGTHS,
        longest=encoder.max_positions,
        # Elsewhere a kernel may compute attention, and none takes rows of several sequences with their own dropout.
        shared=on_cpu and settings.model.attention in _SHARED,
    )
    packed = PackedLayout(layout.row_groups, layout.slots)
    return packed, layout_cost(layout, cost, another) + _compiled(encoder)


def _padded(encoder: BertConfig, train: TaskSplit, passes: float) -> float:
    """What batches of a few padded lengths cost."""
    lengths, choices = train.features.lengths, train.features.choices

    def of(count: int) -> float:
        shapes = choose_lengths(lengths, count=count, longest=encoder.max_positions)
        rows = np.bincount(find_buckets(lengths, shapes), minlength=len(shapes)).tolist()
        computed = sum(n * choices * _row(encoder, shape) for n, shape in zip(rows, shapes, strict=True))
        return passes * computed + len(shapes) * _compiled(encoder)

    return min(map(of, range(1, MAX_LENGTHS + 1)))


def _row(encoder: BertConfig, length: int) -> float:
    """Of a sequence of so many tokens: products of attention take about three times as long as others."""
    attention = 12 * encoder.num_layers * encoder.width * length**2
    return train_flops_per_sequence(encoder, length, 0) + 2 * attention


def _compiled(encoder: BertConfig) -> float:
    once, block = COMPILING[True]
    return FLOPS * (once + block * encoder.num_layers)
