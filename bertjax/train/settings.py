"""The checks of settings that a pre-training and a fine-tuning both need."""

import jax.numpy as jnp
from jax.sharding import Mesh

from bertjax.config.ranges import in_steps
from bertjax.config.run import RunKeys
from bertjax.errors import UserError
from bertjax.model.config import BertConfig, parameter_count
from bertjax.parallel.devices import device_memory


def resolve_durations(settings: RunKeys, total: int, steps_per_epoch: float | None = None) -> dict[str, int]:
    """`eval_every` and `checkpoint_every` in steps, of a run of `total` steps.

    Raises:
      UserError: what is no duration.
    """
    return {
        key: in_steps(getattr(settings, key), key, total=total, steps_per_epoch=steps_per_epoch)
        for key in ('eval_every', 'checkpoint_every')
    }


def check_grad_accum_steps(batch_size: int, grad_accum_steps: int, key: str = 'grad_accum_steps') -> None:
    """A batch must divide into its parts, whose number is config.KEY."""
    if batch_size % grad_accum_steps:
        expected = f'a divisor of batch_size = {batch_size}'
        raise UserError(f'config.{key}', str(grad_accum_steps), expected, 'change one of the two')


def check_mesh(model: BertConfig, mesh: Mesh) -> None:
    """What the mesh splits must be divisible by it."""
    for axis, what, size in (
        ('tensor', 'config.model.num_heads', model.num_heads),
        ('tensor', 'config.model.mlp_dim', model.mlp_dim),
        ('tensor', 'rows of the vocabulary', model.padded_vocab_size),
        ('fsdp', 'config.model.width', model.width),
    ):
        if size % mesh.shape[axis]:
            raise UserError(
                f'config.mesh.{axis}',
                str(mesh.shape[axis]),
                f'a divisor of {what} = {size}, which it splits',
                f'lower config.mesh.{axis}, and leave the other devices to config.mesh.data=-1',
            )


def check_row_count(batch_size: int, grad_accum_steps: int, row_shards: int, key: str = 'batch_size') -> None:
    """A batch of config.KEY (a part of it, with accumulation) must divide over the data and fsdp axes of the mesh."""
    rows = batch_size // grad_accum_steps
    if rows % row_shards:
        parts = f' / grad_accum_steps {grad_accum_steps}' if grad_accum_steps > 1 else ''
        raise UserError(
            f'config.{key}',
            f'{batch_size}{parts} = {rows} rows on {row_shards} devices (mesh data x fsdp)',
            f'a multiple of {row_shards}',
            f'try {max(rows // row_shards, 1) * row_shards * grad_accum_steps}',
        )


def check_memory(
    model: BertConfig,
    mesh: Mesh,
    *,
    rows: int,
    parts: int = 1,
    seq_len: int,
    predictions: int = 0,
    moments: int = 2,
    key: str = 'batch_size',
) -> None:
    """Refuses sizes that the devices cannot hold, before anything is made of them.

    What is counted is the least that there has to be: parameters and moments; a batch; of one of its parts what each
    block begins with, and the logits of the vocabulary.

    Args:
      model: of the run; parameters of heads do not count.
      mesh: of the run.
      rows, parts: of a batch.
      seq_len, predictions: S and P.
      moments: arrays of the optimiser for each parameter; 0: the encoder is not trained.
      key: of the batch.
    """
    weights = parameter_count(model) * jnp.dtype(model.param_dtype).itemsize * (1 + moments)
    weights //= mesh.shape['fsdp'] * mesh.shape['tensor']
    hidden = seq_len * model.width * jnp.dtype(model.dtype).itemsize * (model.num_layers if moments else 1)
    logits = predictions * model.vocab_size * 4
    batch = (rows * seq_len * 12 + rows // parts * (hidden + logits)) // mesh.size
    memory = device_memory(mesh)
    for where, what, needed, fix in (
        ('model', f'{parameter_count(model):,} parameters', weights, 'num_layers, width, mlp_dim, max_positions'),
        (key, f'{rows:,} x {seq_len:,} in {parts:,} part(s)', weights + batch, f'{key} or seq_len'),
    ):
        if needed > memory:
            found = f'{what}, which take {needed / 2**30:,.1f} GiB a device and more'
            expected = f'at most the {memory / 2**30:,.1f} GiB that there is'
            raise UserError(f'config.{where}', found, expected, f'lower {fix}')
