"""The attention implementations in order of preference, and the choice between them."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from absl import logging

from bertjax.errors import UserError
from bertjax.model.attention.by_head_cpu import ByHeadCpu
from bertjax.model.attention.dot_product import DotProduct
from bertjax.model.attention.gpu import Cudnn, FusedGpu
from bertjax.model.attention.implementation import Implementation
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.attention.tpu import BlocksTpu, FlashTpu, FusedTpu
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import platform

# 'auto' chooses the first implementation that supports the call on this platform. Faster implementations come before
# `dot_product`, which supports every call.
IMPLEMENTATIONS: dict[str, Implementation] = {
    'fused_tpu': FusedTpu(),
    'blocks_tpu': BlocksTpu(),
    'flash_tpu': FlashTpu(),
    'cudnn': Cudnn(),
    'fused_gpu': FusedGpu(),
    'by_head_cpu': ByHeadCpu(),
    'dot_product': DotProduct(),
}


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The name of the chosen implementation, and {name: reason} for the earlier candidates, which refuse the call."""

    name: str
    refusals: Mapping[str, str]

    def __str__(self) -> str:
        return '; '.join([self.name, *(f'not {name}: {reason}' for name, reason in self.refusals.items())])


def choose_attention(
    name: str, query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float
) -> AttentionChoice:
    """Chooses the implementation for a call. `name` is `config.model.attention`.

    Raises:
      UserError: The named implementation does not support the call.
    """
    refusals: dict[str, str] = {}
    candidates = [option for option, x in IMPLEMENTATIONS.items() if x.PLATFORM in ('', platform())]
    for candidate in candidates if name == 'auto' else (name,):
        reason = IMPLEMENTATIONS[candidate].supports(query, key, mask, dropout_rate)
        if reason is None:
            return AttentionChoice(candidate, refusals)
        refusals[candidate] = reason
    found = f'{name!r} ({"; ".join(refusals.values())})'
    expected = 'an implementation that supports this model, batch and device'
    raise UserError('config.model.attention', found, expected, 'set config.model.attention=auto')


def attend(
    name: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    *,
    dropout_rate: float,
    dropout: Dropout | None,
) -> jax.Array:
    """Computes attention by the implementation that `choose_attention` returns, and logs each new choice.

    If only some positions are queries and the named implementation does not support this, the choice is that of 'auto'.
    See `Implementation` for the arguments.

    Raises:
      UserError: See `choose_attention`.
    """
    rate = 0.0 if dropout is None else dropout_rate
    if mask.layout is not None:
        return _attend_in_groups(name, (query, key, value), mask, rate, dropout)
    mask = _without_wide_window(mask, key)
    # Most kernels need all positions as queries. With only [CLS] as a query, every implementation is fast enough.
    if name != 'auto' and query.shape[1] != key.shape[1] and IMPLEMENTATIONS[name].PLATFORM in ('', platform()):
        name = 'auto' if IMPLEMENTATIONS[name].supports(query, key, mask, rate) else name
    choice = choose_attention(name, query, key, mask, rate)
    implementation = IMPLEMENTATIONS[choice.name]
    if implementation.SUPPORTS_ANY_MASK and _splits_into_blocks(query, key, mask, rate):
        return _attend_in_blocks(name, query, key, value, mask)
    shapes = ' over '.join(' x '.join(map(str, x.shape)) for x in (query, key))
    _log_once(f'attention of {shapes} in {query.dtype}: {choice}')
    return implementation.attend(query, key, value, mask, dropout_rate=rate, dropout=dropout)


def _attend_in_groups(
    name: str, arrays: tuple[jax.Array, ...], mask: AttentionMask, rate: float, dropout: Dropout | None
) -> jax.Array:
    """Calls `attend` for each row group of the layout. The queries are all positions, or the first of each sequence."""
    (query, key, _), layout = arrays, mask.layout
    ids, positions = (jnp.broadcast_to(x, key.shape[:2]) for x in (layout.sequence_ids, layout.position_ids))
    positions = positions.astype(jnp.uint32)
    gather = layout.gather_cls if query.shape[1] != key.shape[1] else lambda x: x
    plain_mask = mask.replace(layout=None)
    packed_mask = plain_mask.replace(
        sequence_ids=ids,
        query_ids=gather(ids),
        positions=positions if dropout or mask.window else None,
        query_positions=gather(positions) if mask.window else None,
    )
    dropout = dropout and dropout.select(gather)
    mixed = []
    for i, most_sequences in enumerate(layout.most_sequences):
        select = functools.partial(layout.group, index=i)
        inputs = [select(x) for x in arrays]
        is_packed = most_sequences > 1  # more implementations support rows of one sequence
        group_mask = jax.tree.map(select, packed_mask if is_packed else plain_mask)
        group_dropout = dropout and dropout.select(select)
        if dropout and not is_packed:
            group_dropout = group_dropout.replace(example_ids=group_dropout.example_ids[:, 0], positions=None)
        mixed.append(attend(name, *inputs, group_mask, dropout_rate=rate, dropout=group_dropout))
    return layout.join(mixed, len(query))


def _without_wide_window(mask: AttentionMask, key: jax.Array) -> AttentionMask:
    """Removes a window that covers the whole row, so that more implementations support the call."""
    S = key.shape[1]
    covers_row = mask.window and isinstance(S, int) and mask.window // 2 + 1 >= S
    return mask.replace(window=0) if covers_row else mask


def _halo(mask: AttentionMask) -> int:
    """Returns the number of keys on each side of a block of queries: half the window, but at least 32 for speed."""
    return max(mask.window // 2, 32)


def _splits_into_blocks(query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> bool:
    """Returns whether the window is narrow, all positions are queries, and there is no dropout or causal attention."""
    is_causal, S = mask.causal or mask.causal_queries is not None, key.shape[1]
    if not mask.window or is_causal or dropout_rate or not isinstance(S, int):  # an exported model has a symbolic S
        return False
    return query.shape[1] == S > 4 * _halo(mask)


def _attend_in_blocks(name: str, query: jax.Array, key: jax.Array, value: jax.Array, mask: AttentionMask) -> jax.Array:
    """Computes `attend` with a window at a cost of O(S), by multiplying each block of queries with the keys near it.

    A block has 2·h queries and 4·h keys for h = `_halo`. One call attends in all blocks, with a row for each block.
    """
    (B, S), halo = key.shape[:2], _halo(mask)
    blocks = -(-S // (2 * halo))
    padding = 2 * halo * blocks - S

    def of_queries(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))
        return padded.reshape(-1, 2 * halo, *x.shape[2:])

    def of_keys(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, 0), (halo, padding + halo)] + [(0, 0)] * (x.ndim - 2))
        halves = padded.reshape(B, 2 * blocks + 2, halo, *x.shape[2:])
        near = jnp.stack([halves[:, i : i + 2 * blocks : 2] for i in range(4)], axis=2)  # [B, blocks, 4, halo, ...]
        return near.reshape(-1, 4 * halo, *x.shape[2:])

    positions = jnp.broadcast_to(jnp.arange(S) if mask.positions is None else mask.positions, (B, S))
    ids = mask.sequence_ids
    part = AttentionMask(
        of_keys(mask.key_mask),
        None if ids is None else of_keys(ids),
        query_ids=None if ids is None else of_queries(ids if mask.query_ids is None else mask.query_ids),
        positions=of_keys(positions),
        query_positions=of_queries(positions),
        window=mask.window,
        hidden_queries=mask.hidden_queries,
    )
    # A named implementation computes the blocks even if it would refuse them as too short to be fast (by_head_cpu.py).
    attend_blocks = functools.partial(attend, name) if name == 'auto' else IMPLEMENTATIONS[name].attend
    mixed = attend_blocks(of_queries(query), of_keys(key), of_keys(value), part, dropout_rate=0.0, dropout=None)
    return mixed.reshape(B, -1, *mixed.shape[2:])[:, :S]


def describe_attention(
    config: BertConfig, rows: int, seq_len: int, packed: bool = False, causal_rows: bool = False
) -> str:
    """Describes the attention of a training step on [rows, seq_len] tokens. With `causal_rows`, some rows are causal.

    Raises:
      UserError: See `choose_attention`.
    """
    x = jax.ShapeDtypeStruct((rows, seq_len, config.num_heads, config.head_dim), jnp.dtype(config.dtype))
    ids = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32)
    mask = AttentionMask(ids, ids if packed else None, config.causal, causal_queries=ids if causal_rows else None)
    choices, is_global = [], {config.attends_globally(i) for i in range(config.num_layers)}
    if True in is_global:
        choices.append(str(choose_attention(config.attention, x, x, mask, config.attention_dropout)))
    if False in is_global:
        windowed = _without_wide_window(mask.replace(window=config.attention_window), x)
        choice = choose_attention(config.attention, x, x, windowed, config.attention_dropout)
        choices.append(f'in layers with a window of {config.attention_window}: {choice}')
    return '; '.join(choices)


@functools.cache
def _log_once(line: str) -> None:
    """Logs a line only once, although every layer makes the same choice."""
    logging.info(line)
