"""The base class of the attention implementations, and the options of their kernels."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.model.attention.mask import AttentionMask
from bertjax.model.dropout import Dropout, attention_words
from bertjax.parallel.partition import indivisible_reason, over_mesh, platform

# (query, key, value, mask, `attention_words`) -> attended values. If `Implementation.PLATFORM` is set, the arrays are
# the shards of one device.
Kernel = Callable[[jax.Array, jax.Array, jax.Array, AttentionMask, Any], jax.Array]


@dataclasses.dataclass(frozen=True)
class KernelOptions:
    """The static options of a kernel."""

    rate: float  # the dropout rate
    packed: bool  # whether a row holds several sequences
    causal: bool  # whether to hide the keys to the right of a query
    program: int  # heads per program on TPU; positions per program on GPU, a power of 2 that divides S


class Implementation:
    """An attention implementation.

    In all methods, query is [B, Q, H, K], and key and value are [B, S, H, K], in one dtype. The queries are the first Q
    positions of a row, unless the mask has `query_ids` or `query_positions`.

    Attributes:
      PLATFORM: The only platform that the implementation supports, 'tpu', 'gpu' or 'cpu'; '' for plain XLA operations,
        which support every call on every platform, and which XLA partitions over a mesh.
      SUPPORTS_DROPOUT: Whether the implementation supports dropout.
      SUPPORTS_ANY_MASK: Whether the implementation supports every mask and any number of queries.
      MERGES_HEADS: Whether the kernel takes and returns [B, S, H·K] instead of [B, S, H, K].
    """

    PLATFORM = ''
    SUPPORTS_DROPOUT = True
    SUPPORTS_ANY_MASK = False
    MERGES_HEADS = False

    def supports(self, query: jax.Array, key: jax.Array, mask: AttentionMask, dropout_rate: float) -> str | None:
        """Returns the reason why the implementation does not support this call, or None if it does."""
        if not self.PLATFORM:
            return None
        if reason := self._refuse_mask(mask):
            return reason
        if platform() != self.PLATFORM:
            return f'it is a kernel for {self.PLATFORM.upper()}s'
        if reason := self._refuse_device(query):
            return reason
        if dropout_rate and not self.SUPPORTS_DROPOUT:
            return 'it does not support dropout'
        if query.shape[1] != key.shape[1] and not self.SUPPORTS_ANY_MASK:
            return f'it computes all {key.shape[1]} positions, not the first {query.shape[1]}'
        return self._refuse_shape(key, mask)

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
        """Averages the visible values, weighted by the softmax of the scores -> [B, Q, H, K].

        Drops the fraction `dropout_rate` of the weights (see `drop_weights`). `dropout` may be None if the rate is 0.
        """
        B, _, H, _ = query.shape
        words, kernel = attention_words(dropout, H) if dropout_rate else None, self._kernel(query, mask, dropout_rate)
        if not self.PLATFORM:
            return kernel(query, key, value, mask, words)
        words = jnp.zeros((B, H, 2), jnp.uint32) if words is None else words
        arrays, axes = (query, key, value), ('act_batch', 'act_length', 'act_heads', 'act_head_dim')
        if self.MERGES_HEADS:
            arrays, axes = (x.reshape(*x.shape[:2], -1) for x in arrays), axes[:3]
        word_axes = ('act_batch', 'act_heads', *[None] * (words.ndim - 2))
        kernel = over_mesh(kernel, (axes, axes, axes, ('act_batch', 'act_length'), word_axes), axes)
        return kernel(*arrays, mask, words).reshape(query.shape)

    def _kernel(self, query: jax.Array, mask: AttentionMask, rate: float) -> Kernel:
        """Returns the attention function for a dropout rate; see `Kernel`."""
        raise NotImplementedError

    def _refuse_mask(self, mask: AttentionMask) -> str | None:
        if self.SUPPORTS_ANY_MASK:
            return None
        if mask.window:
            return f'it does not support a window (config.model.attention_window={mask.window})'
        if mask.causal_queries is not None:
            return 'it does not support causal and other rows in one batch (config.masking.causal_share)'
        if mask.hidden_queries:
            return 'it does not support tokens that attend but are not attended to'
        is_packed = mask.query_ids is not None or mask.positions is not None
        return 'it does not support rows with fixed slots for several sequences' if is_packed else None

    def _refuse_device(self, query: jax.Array) -> str | None:
        return None

    def _refuse_shape(self, key: jax.Array, mask: AttentionMask) -> str | None:
        return indivisible_reason(key.shape[0], key.shape[2])


def refuse_length(length: int, multiple: int, longest: int | None = None) -> str | None:
    """Returns the reason to refuse `length`, or None if it is a multiple of `multiple` and at most `longest`."""
    if length % multiple == 0 and (longest is None or length <= longest):
        return None
    limit = '' if longest is None else f' up to {longest}'
    return f'sequences of {length} tokens, but it needs multiples of {multiple}{limit}'
