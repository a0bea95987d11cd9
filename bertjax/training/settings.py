"""Checks of settings that pre-training and fine-tuning share."""

import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config.ranges import in_steps
from bertjax.config.run import RunKeys
from bertjax.errors import UserError
from bertjax.model.config import BertConfig, parameter_count
from bertjax.parallel.devices import device_memory
from bertjax.parallel.zero1 import should_shard


def resolve_durations(settings: RunKeys, total: int, steps_per_epoch: float | None = None) -> dict[str, int]:
    """Returns `eval_every` and `checkpoint_every` in steps, for a run of `total` steps. For errors, see `in_steps`."""
    return {
        key: in_steps(getattr(settings, key), key, total=total, steps_per_epoch=steps_per_epoch, minimum=1)
        for key in ('eval_every', 'checkpoint_every')
    }


def check_grad_accum_steps(batch_size: int, grad_accum_steps: int, key: str = 'grad_accum_steps') -> None:
    """Raises a UserError for config.KEY unless `grad_accum_steps` divides `batch_size`."""
    if batch_size % grad_accum_steps:
        expected = f'a divisor of batch_size = {batch_size}'
        raise UserError(f'config.{key}', str(grad_accum_steps), expected, f'change config.{key} or the batch size')


def check_mesh(model: BertConfig, mesh: Mesh, bilstm_units: int = 0) -> None:
    """Raises a UserError unless each mesh axis divides the dimensions that it splits, including those of a BiLSTM."""
    for axis, what, size in (
        ('tensor', 'config.model.num_heads', model.num_heads),
        ('tensor', 'config.model.mlp_dim', model.mlp_dim),
        ('tensor', 'rows of the vocabulary', model.padded_vocab_size),
        ('fsdp', 'config.model.width', model.width),
        ('fsdp', '2 x config.task.bilstm_units', 2 * bilstm_units),
    ):
        if size % mesh.shape[axis]:
            expected = f'a divisor of {what} = {size}, which the axis splits'
            fix = f'lower config.mesh.{axis}, and leave the other devices to config.mesh.data=-1'
            raise UserError(f'config.mesh.{axis}', str(mesh.shape[axis]), expected, fix)


def check_row_count(batch_size: int, grad_accum_steps: int, row_shards: int, key: str = 'batch_size') -> None:
    """Raises a UserError for config.KEY unless `row_shards` (data x fsdp) divides the rows of each part of a batch."""
    rows = batch_size // grad_accum_steps
    if rows % row_shards:
        parts = f' / grad_accum_steps {grad_accum_steps}' if grad_accum_steps > 1 else ''
        found = f'{batch_size}{parts} = {rows} rows for {row_shards} shards (mesh data x fsdp)'
        fix = f'try {max(rows // row_shards, 1) * row_shards * grad_accum_steps}'
        raise UserError(f'config.{key}', found, f'a multiple of {row_shards}', fix)


def check_memory(
    model: BertConfig,
    mesh: Mesh,
    *,
    rows: int,
    parts: int = 1,
    seq_len: int,
    predictions: int = 0,
    moments: int = 2,
    zero1: str = 'off',
    key: str = 'batch_size',
) -> None:
    """Raises a UserError if a run does not fit the memory of the devices, before anything is allocated.

    The estimate is about a lower bound. It counts the batch, the parameters (`parameter_count`, with the pre-training
    heads but no task's head), and `moments` further arrays per parameter. For one part of the batch, it also counts
    the logits of the vocabulary and the input of each block (of one block if `moments` is 0).

    Args:
      rows, parts: The number of rows and the number of parts of a batch.
      predictions: The number of predictions per row.
      moments: `RunKeys.moments`, the number of further arrays per parameter; 0 if the encoder is not trained.
      zero1: One of `parallel.zero1.ZERO1`.
      key: The config key of `rows`, for the message.
    """
    weights = parameter_count(model) * jnp.dtype(model.param_dtype).itemsize * (1 + moments)
    weights //= mesh.size if should_shard(zero1, mesh) else mesh.shape['fsdp'] * mesh.shape['tensor']
    hidden = seq_len * model.width * jnp.dtype(model.dtype).itemsize * (model.num_layers if moments else 1)
    logits = predictions * model.vocab_size * 4
    batch = (rows * seq_len * 12 + rows // parts * (hidden + logits)) // mesh.size
    memory = device_memory(mesh)
    batch_fix = f'{key} or seq_len' + ('' if key == 'eval_batch_size' else ', or raise grad_accum_steps')
    for where, what, needed, fix in (
        ('model', f'{parameter_count(model):,} parameters', weights, 'num_layers, width, mlp_dim, max_positions'),
        (key, f'{rows:,} x {seq_len:,} in {parts:,} part(s)', weights + batch, batch_fix),
    ):
        if needed > memory:
            found = f'{what}, which need at least {needed / 2**30:,.1f} GiB per device'
            expected = f'at most {memory / 2**30:,.1f} GiB, the memory of a device'
            raise UserError(f'config.{where}', found, expected, f'lower {fix}')
