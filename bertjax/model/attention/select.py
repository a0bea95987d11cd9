"""The implementations of attention in one ordered list, and the choice between them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from absl import logging

from bertjax.errors import UserError
from bertjax.model.attention import by_head_cpu, cudnn, dot_product, flash_tpu, fused_gpu, fused_tpu
from bertjax.model.attention.mask import AttentionMask
from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout
from bertjax.parallel.partition import platform


class Implementation(Protocol):
    """What a file of this folder provides.

    Attributes:
      PLATFORM: the only one that it is for, 'tpu', 'gpu' or 'cpu'; '' for any.

    query is [B, Q, H, K], the first Q positions of a row; key and value are [B, S, H, K]; all in the dtype of
    computation.
    """

    PLATFORM: str

    def supports(self, query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
        """Why it cannot compute this, None where it can. Reads shapes and dtypes only; `dropout_rate` 0: no dropout."""
        ...

    def attend(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        mask: AttentionMask,
        *,
        dropout_rate: float,
        dropout: Dropout | None,
    ) -> jax.Array:
        """[B, Q, H, K]: for each query the mean of the visible values, weighted by the softmax of its scores.

        `dropout_rate` of the weights are dropped as `dropout.drop_attention` does it, none without `dropout`.
        """
        ...


# 'auto' takes the first for this platform that supports the call: faster ones go before `dot_product`, which supports
# everything. `model/config.py` has the names.
IMPLEMENTATIONS: dict[str, Implementation] = {
    'fused_tpu': fused_tpu,
    'flash_tpu': flash_tpu,
    'cudnn': cudnn,
    'fused_gpu': fused_gpu,
    'by_head_cpu': by_head_cpu,
    'dot_product': dot_product,
}

_OF_SEQUENCES = ('by_head_cpu', 'dot_product')  # those that take queries and dropout of several sequences of a row


def _shares(mask: AttentionMask) -> str | None:
    several = mask.query_ids is not None or mask.places is not None
    return 'it takes no rows of several sequences with dropout of their own' if several else None


@dataclasses.dataclass(frozen=True)
class AttentionChoice:
    """The implementation taken, and why those before it in the list were not."""

    name: str
    refused: Mapping[str, str]

    def __str__(self) -> str:
        return '; '.join([self.name, *(f'not {name}: {reason}' for name, reason in self.refused.items())])


def choose_attention(
    asked: str, query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float
) -> AttentionChoice:
    """The implementation for these shapes; the other arguments are those of `Implementation.supports`.

    Args:
      asked: config.model.attention, 'auto' or a name.

    Raises:
      UserError: the implementation asked for by name does not support this.
    """
    refused: dict[str, str] = {}
    here = [name for name, one in IMPLEMENTATIONS.items() if one.PLATFORM in ('', platform())]
    for name in here if asked == 'auto' else (asked,):
        reason = None if name in _OF_SEQUENCES else _shares(mask)
        reason = reason or IMPLEMENTATIONS[name].supports(query, key, mask, dropout_rate)
        if reason is None:
            return AttentionChoice(name, refused)
        refused[name] = reason
    found = f'{asked!r} ({"; ".join(refused.values())})'
    expected = 'an implementation that supports this model, batch and device'
    raise UserError('config.model.attention', found, expected, 'set config.model.attention=auto')


def attend(
    asked: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    *,
    dropout_rate: float,
    dropout: Dropout | None,
) -> jax.Array:
    """`Implementation.attend` by the implementation that `choose_attention` gives; each new choice is logged.

    Raises:
      UserError: see `choose_attention`.
    """
    if mask.layout is not None:
        return _attend_in_groups(asked, query, key, value, mask, dropout_rate, dropout)
    choice = choose_attention(asked, query, key, mask, 0.0 if dropout is None else dropout_rate)
    _log_once(f'attention of {_shape(query)} over {_shape(key)} in {query.dtype}: {choice}')
    implementation = IMPLEMENTATIONS[choice.name]
    return implementation.attend(query, key, value, mask, dropout_rate=dropout_rate, dropout=dropout)


def _attend_in_groups(
    asked: str,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: AttentionMask,
    rate: float,
    dropout: Dropout | None,
) -> jax.Array:
    """`attend` of each group of rows; the queries are all positions, or the first of each sequence."""
    layout = mask.layout
    own = dropout or Dropout(None, None)

    def of_queries(x: jax.Array | None) -> list[Any]:
        if x is None:
            return [None] * len(layout.row_groups)
        return layout.split(x if query.shape[1] == key.shape[1] else layout.gather_cls(x))

    ids, places = (jnp.broadcast_to(x, key.shape[:2]) for x in (layout.sequence_ids, layout.position_ids))
    parts = zip(
        *map(layout.split, (query, key, value, mask.key_mask, ids, places.astype(jnp.uint32))),
        *map(of_queries, (ids, own.numbers, own.places)), layout.most_sequences, strict=True,
    )  # fmt: skip
    mixed = []
    for q, k, v, seen, key_ids, key_places, query_ids, numbers, query_places, most in parts:
        if most == 1:  # a sequence a row: any implementation can compute it
            part = AttentionMask(seen, causal=mask.causal)
            drops = dropout and dropout.replace(numbers=numbers[:, 0], places=None)
        else:
            part = AttentionMask(seen, key_ids, mask.causal, query_ids, dropout and key_places)
            drops = dropout and dropout.replace(numbers=numbers, places=query_places)
        mixed.append(attend(asked, q, k, v, part, dropout_rate=rate, dropout=drops))
    return layout.join(mixed, len(query))


def describe_attention(config: BertConfig, rows: int, seq_len: int, packed: bool = False) -> str:
    """What computes attention in a training step on `rows` sequences of `seq_len` tokens, or on as many rows `packed`
    with several, for a run's description.

    Raises:
      UserError: see `choose_attention`.
    """
    x = jax.ShapeDtypeStruct((rows, seq_len, config.num_heads, config.head_dim), jnp.dtype(config.dtype))
    ids = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32)
    mask = AttentionMask(ids, ids if packed else None, causal=config.causal)
    return str(choose_attention(config.attention, x, x, mask, config.attention_dropout))


def _shape(x: jax.Array) -> str:
    return ' x '.join(map(str, x.shape))


@functools.cache
def _log_once(line: str) -> None:
    """The layers of a model, and the traces of a step, all choose alike: one line tells it."""
    logging.info(line)
