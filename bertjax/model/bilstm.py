"""Bidirectional LSTM over hidden states, for heads that a left-to-right or frozen encoder needs."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout, Site, drop, within
from bertjax.parallel.partition import with_axes


def _uniform(units: int) -> nn.initializers.Initializer:
    bound = units**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def _bias_init(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    # The forget gate starts open (Jozefowicz et al. 2015, section 2.2).
    return jnp.zeros(shape, dtype).at[1].set(1)


class Lstm(nn.Module):
    """One direction of one layer; gates in the order input, forget, candidate, output.

    Parameters: kernel [D, 4, U], recurrent [U, 4, U], bias [4, U]. The recurrent kernel is replicated on all devices:
    split, it would need communication in each of the S steps.
    """

    config: BertConfig
    units: int
    reverse: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """x [B, S, D] and mask [B, S] -> [B, S, U]; padding leaves the state alone and outputs 0."""
        dtype, stored = jnp.dtype(self.config.dtype), jnp.dtype(self.config.param_dtype)
        U, init = self.units, _uniform(self.units)
        kernel = self.param('kernel', with_axes(init, 'embed', None, 'norm'), (x.shape[-1], 4, U), stored)
        recurrent = self.param('recurrent', with_axes(init, 'norm', None, None), (U, 4, U), stored).astype(dtype)
        bias = self.param('bias', with_axes(_bias_init, None, 'norm'), (4, U), stored)
        gates = jnp.einsum('BSD,DGU->SBGU', x.astype(dtype), kernel.astype(dtype)) + bias.astype(dtype)  # [S, B, 4, U]
        real = (attention_mask > 0).T[..., None]  # [S, B, 1]

        def step(carry: tuple, inputs: tuple) -> tuple:
            hidden, cell = carry  # [B, U], float32
            gate, keep = inputs
            gate = gate + jnp.einsum('BU,UGV->BGV', hidden.astype(dtype), recurrent)  # [B, 4, U]
            enter, forget, candidate, leave = jnp.moveaxis(gate.astype(jnp.float32), 1, 0)
            new_cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
            new_hidden = jax.nn.sigmoid(leave) * jnp.tanh(new_cell)
            carry = jnp.where(keep, new_hidden, hidden), jnp.where(keep, new_cell, cell)
            return carry, jnp.where(keep, new_hidden, 0).astype(dtype)

        start = jnp.zeros((x.shape[0], U), jnp.float32)
        _, outputs = jax.lax.scan(step, (start, start), (gates, real), reverse=self.reverse)  # [S, B, U]
        return outputs.swapaxes(0, 1)  # [B, S, U]


class BiLstm(nn.Module):
    """Layers that concatenate both directions, with dropout between layers."""

    config: BertConfig
    units: int
    num_layers: int = 2

    @nn.compact
    def __call__(self, x: jax.Array, attention_mask: jax.Array, dropout: Dropout | None) -> jax.Array:
        """x [B, S, D], mask [B, S], dropout or None -> [B, S, 2U]; the second half is read right to left."""
        for i in range(self.num_layers):
            if i:
                x = drop(x, self.config.dropout, within(dropout, i), Site.BILSTM)
            forward = Lstm(self.config, self.units, name=f'forward_{i}')(x, attention_mask)
            backward = Lstm(self.config, self.units, reverse=True, name=f'backward_{i}')(x, attention_mask)
            x = jnp.concatenate([forward, backward], axis=-1)  # [B, S, 2U]
        return x
