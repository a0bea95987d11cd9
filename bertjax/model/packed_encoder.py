"""Let an encoder compute packed rows for callers that give it a sequence a row and expect the same back."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import linen as nn

from bertjax.model.encoder import BertEncoder
from bertjax.model.row_packing import BatchLayout, PackedLayout


def packed_rows(layout: PackedLayout | int | None) -> contextlib.AbstractContextManager[None]:
    """Within it, an encoder of [B, S] computes packed rows.

    It returns [B, S, D] in the order that was given, zeros at padding; with `first_only` and fixed slots [B, 1, D]. Not
    for callers that capture intermediate values.

    Args:
      layout: fixed slots, each with room for its sequence, with dropout or without; or N, the sequences of a row of a
        model without dropout, which fit it together; None: a sequence a row.
    """
    return contextlib.nullcontext() if layout is None else nn.intercept_methods(functools.partial(_pack, layout))


def _pack(
    layout: PackedLayout | int, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Any
) -> tuple[jax.Array, jax.Array | None]:
    if not isinstance(context.module, BertEncoder) or context.method_name != '__call__':
        return call(*args, **kwargs)
    fixed = isinstance(layout, PackedLayout)
    own = layout if fixed else BatchLayout.of_lengths(args[2], layout)
    first_only = fixed and kwargs.get('first_only', False)
    dropout = kwargs.get('dropout')
    dropout = own.dropout(dropout) if fixed and dropout is not None else dropout
    options = {**kwargs, 'first_only': first_only, 'dropout': dropout, 'layout': own}
    hidden, layers = call(*map(own.pack, args), **options)
    if first_only:
        return own.unpack_cls(hidden), layers
    unpack = functools.partial(own.unpack, length=args[0].shape[1])
    return unpack(hidden), None if layers is None else jax.vmap(unpack)(layers)
