"""Sequences that come one a row, computed by the encoder several a row: less padding, whatever asks for them."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.encoder import BertEncoder
from bertjax.model.groups import Groups


def sharing(count: int) -> contextlib.AbstractContextManager[None]:
    """Within it, an encoder of [B, S] computes rows `count` · i to `count` · (i + 1) - 1 in one row of S positions.

    They must fit it together; each still sees its own tokens alone, at positions from 0 on. What comes back is in the
    order that was given, [B, S, D] for every position, whose values at padding nobody must read. For models without
    dropout.

    Args:
      count: E; it divides B.
    """
    return nn.intercept_methods(functools.partial(_share, count))


def _share(
    count: int, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Any
) -> tuple[jax.Array, jax.Array | None]:
    if not _is_encoder(context):
        return call(*args, **kwargs)
    input_ids, segment_ids, mask = args
    S = input_ids.shape[1]
    ends = jnp.cumsum(mask.sum(-1).reshape(-1, count), axis=1)  # [R, E]
    begins = jnp.pad(ends, ((0, 0), (1, 0)))  # [R, E + 1], the last that of the row's padding
    place = jnp.arange(S)
    which = (place[:, None] >= ends[:, None]).sum(-1)  # [R, S], whose position it is; E: padding
    inside = place - jnp.take_along_axis(begins, which, axis=1)  # [R, S]
    source = jnp.minimum(which, count - 1) * S + inside  # [R, S], in the row's sequences one after the other

    def together(x: jax.Array) -> jax.Array:
        return jnp.where(which < count, jnp.take_along_axis(x.reshape(-1, count * S), source, axis=1), 0)

    hidden, layers = call(
        *(together(x) for x in (input_ids, segment_ids, mask)),
        **{name: x for name, x in kwargs.items() if name != 'first_only'},  # each sequence has a first position
        sequence_ids=which,
        position_ids=inside,
    )
    target = jnp.minimum(begins[:, :-1, None] + place, S - 1).reshape(-1, count * S)  # [R, E·S]

    def apart(x: jax.Array) -> jax.Array:
        return jax.vmap(lambda row, at: row[at])(x, target).reshape(-1, S, x.shape[-1])

    return apart(hidden), None if layers is None else jax.vmap(apart)(layers)


def grouped(groups: Groups | None) -> contextlib.AbstractContextManager[None]:
    """Within it, an encoder of [B, S] computes the sequences in the rows of `groups`, with dropout or without.

    None has more tokens than room. What comes back is [B, S, D] in the order that was given, zeros where there is no
    room, and for who wants the first position alone [B, 1, D]. Not for who captures what is computed on the way.
    Without groups each is in a row of its own.
    """
    return contextlib.nullcontext() if groups is None else nn.intercept_methods(functools.partial(_group, groups))


def _group(
    groups: Groups, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Any
) -> tuple[jax.Array, jax.Array | None]:
    if not _is_encoder(context):
        return call(*args, **kwargs)
    dropout = kwargs.get('dropout')
    own = None if dropout is None else groups.dropout(dropout)
    hidden, layers = call(*map(groups.together, args), **{**kwargs, 'dropout': own, 'groups': groups})
    if kwargs.get('first_only'):
        return groups.firsts_apart(hidden), layers
    apart = functools.partial(groups.apart, length=args[0].shape[1])
    return apart(hidden), None if layers is None else jax.vmap(apart)(layers)


def _is_encoder(context: Any) -> bool:
    return isinstance(context.module, BertEncoder) and context.method_name == '__call__'
