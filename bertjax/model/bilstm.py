"""A bidirectional LSTM over hidden states, for heads on a left-to-right or frozen encoder."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertjax.model.config import BertConfig
from bertjax.model.dropout import Dropout, Site, drop
from bertjax.parallel.partition import with_axes


def _uniform_init(units: int) -> nn.initializers.Initializer:
    bound = units**-0.5
    return lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound)


def _bias_init(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    # The forget gate is open initially (Jozefowicz et al. 2015, section 2.2).
    return jnp.zeros(shape, dtype).at[1].set(1)


class Lstm(nn.Module):
    """One direction of one LSTM layer. The gates are in the order input, forget, candidate, output.

    Parameters: kernel [D, 4, U], recurrent [U, 4, U], bias [4, U], for U = `units`. A sharded recurrent kernel would
    need communication in each of the S steps, so `recurrent` is replicated.
    """

    config: BertConfig
    units: int
    reverse: bool = False

    @nn.compact
    def __call__(self, x: jax.Array, attention_mask: jax.Array) -> jax.Array:
        """Maps x [B, S, D] and mask [B, S] to [B, S, U]. Padding leaves the state unchanged and has the output 0."""
        dtype, param_dtype = jnp.dtype(self.config.dtype), jnp.dtype(self.config.param_dtype)
        U, init = self.units, _uniform_init(self.units)
        kernel = self.param('kernel', with_axes(init, 'embed', None, 'norm'), (x.shape[-1], 4, U), param_dtype)
        recurrent = self.param('recurrent', with_axes(init, 'norm', None, None), (U, 4, U), param_dtype).astype(dtype)
        bias = self.param('bias', with_axes(_bias_init, None, 'norm'), (4, U), param_dtype)
        gates = jnp.einsum('BSD,DGU->SBGU', x.astype(dtype), kernel.astype(dtype)) + bias.astype(dtype)  # [S, B, 4, U]
        token_mask = (attention_mask > 0).T[..., None]  # [S, B, 1]

        def step(carry: tuple, inputs: tuple) -> tuple:
            hidden, cell = carry  # [B, U], float32
            gate, is_token = inputs
            gate = gate + jnp.einsum('BU,UGV->BGV', hidden.astype(dtype), recurrent)  # [B, 4, U]
            input_gate, forget_gate, candidate, output_gate = jnp.moveaxis(gate.astype(jnp.float32), 1, 0)
            new_cell = jax.nn.sigmoid(forget_gate) * cell + jax.nn.sigmoid(input_gate) * jnp.tanh(candidate)
            new_hidden = jax.nn.sigmoid(output_gate) * jnp.tanh(new_cell)
            carry = jnp.where(is_token, new_hidden, hidden), jnp.where(is_token, new_cell, cell)
            return carry, jnp.where(is_token, new_hidden, 0).astype(dtype)

        start = jnp.zeros((x.shape[0], U), jnp.float32)
        _, outputs = jax.lax.scan(step, (start, start), (gates, token_mask), reverse=self.reverse)  # [S, B, U]
        return outputs.swapaxes(0, 1)  # [B, S, U]


class BiLstm(nn.Module):
    """A stack of bidirectional LSTM layers with dropout between them."""

    config: BertConfig
    units: int
    num_layers: int = 2

    @nn.compact
    def __call__(self, x: jax.Array, attention_mask: jax.Array, dropout: Dropout | None) -> jax.Array:
        """Maps x [B, S, D] and mask [B, S] to [B, S, 2U]: left-to-right states, then right-to-left states."""
        for i in range(self.num_layers):
            if i:
                x = drop(x, self.config.dropout, dropout and dropout.fold_in(i), Site.BILSTM)
            forward = Lstm(self.config, self.units, name=f'forward_{i}')(x, attention_mask)
            backward = Lstm(self.config, self.units, reverse=True, name=f'backward_{i}')(x, attention_mask)
            x = jnp.concatenate([forward, backward], axis=-1)  # [B, S, 2U]
        return x
