"""Row packing inside the encoder, for callers that pass and expect one sequence per row."""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from flax import linen as nn

from bertjax.model.encoder import BertEncoder
from bertjax.model.row_packing import BatchLayout, PackedLayout


def packed_rows(layout: PackedLayout | int | None) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which an encoder packs its inputs [B, S] into rows and unpacks its results.

    The encoder returns [B, S, D] in the original order, with zeros at padding. With `first_only` and fixed slots, it
    returns [B, 1, D]. Callers must not capture intermediate values.

    Args:
      layout: A layout with fixed slots that hold the sequences, with or without dropout; or the number N of sequences
        that each row holds, for a model without dropout; or None for one sequence per row.
    """
    return contextlib.nullcontext() if layout is None else nn.intercept_methods(functools.partial(_pack, layout))


def _pack(
    layout: PackedLayout | int, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], context: Any
) -> tuple[jax.Array, jax.Array | None]:
    if not isinstance(context.module, BertEncoder) or context.method_name != '__call__':
        return call(*args, **kwargs)
    fixed = isinstance(layout, PackedLayout)
    row_layout = layout if fixed else BatchLayout.from_mask(args[2], layout)
    first_only = fixed and kwargs.get('first_only', False)
    dropout = kwargs.get('dropout')
    dropout = row_layout.dropout(dropout) if fixed and dropout is not None else dropout
    options = {**kwargs, 'first_only': first_only, 'dropout': dropout, 'layout': row_layout}
    hidden, layers = call(*map(row_layout.pack, args), **options)
    if first_only:
        return row_layout.unpack_cls(hidden), layers
    unpack = functools.partial(row_layout.unpack, length=args[0].shape[1])
    return unpack(hidden), None if layers is None else jax.vmap(unpack)(layers)
