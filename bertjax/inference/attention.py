"""Computes the attention weights of all heads of all layers for texts."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertjax.data.features import INPUTS, Features
from bertjax.data.length_buckets import find_buckets
from bertjax.inference.runner import Forward, Runner
from bertjax.model.capture import HIDDEN, PROBABILITIES, apply_capturing
from bertjax.model.config import BertConfig

_MAX_BYTES = 1 << 28  # the maximum bytes of a batch's attention weights; the computation takes a few times as much


class Attention(NamedTuple):
    """The attention weights of one text.

    Attributes:
      pieces: The S pieces, or the S words if attention was merged into words, including the special tokens.
      weights: float32 [L, H, S, S] for L layers and H heads. `weights[l, h, i, j]` is the attention from position i to
        position j in head h of layer l. The weights sum to 1 over j.
    """

    pieces: list[str]
    weights: np.ndarray


def apply_encoder(
    module: nn.Module, params: Any, batch: Mapping[str, jax.Array], *, hidden: bool = False
) -> dict[str, jax.Array]:
    """Runs the encoder and captures intermediate values (model/capture.py).

    Returns:
      A dict with the attention `probabilities` [L, B, H, S, S]. If `hidden` is True, it also has the hidden states,
      `hidden` [L + 1, B, S, D].
    """
    inputs = [batch[name] for name in INPUTS]
    capture = (PROBABILITIES, HIDDEN) if hidden else (PROBABILITIES,)
    encode = lambda model, *inputs: model.encoder(*inputs)[0]  # noqa: E731
    return apply_capturing(module, params, *inputs, capture=capture, method=encode)[1]


def max_batch_size(config: BertConfig, length: int) -> int:
    """Returns the largest batch size whose attention weights take at most _MAX_BYTES, but at least 1."""
    return max(1, _MAX_BYTES // (4 * config.num_layers * config.num_heads * length**2))


def compute_attention(runner: Runner, features: Features) -> list[Attention]:
    """Computes the attention weights of each row, including [CLS] and [SEP]."""
    model = runner.model
    # `max_rows` is a power of two that depends only on the longest padded length. A CPU may use fewer rows.
    longest = runner.lengths[int(find_buckets(features.lengths, runner.lengths).max())]
    max_rows = 1 << (max_batch_size(model.config, longest).bit_length() - 1)
    outputs = runner.run('attention', _make_forward, features, max_rows=max_rows, title='attention')
    rows = np.split(features.tokens, features.offsets[1:-1])
    return [
        Attention([model.tokenizer.pieces[i] for i in ids], np.ascontiguousarray(weights[..., : len(ids), : len(ids)]))
        for ids, weights in zip(rows, outputs['attention'], strict=True)
    ]


def _make_forward(module: nn.Module) -> Forward:
    def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {'attention': jnp.moveaxis(apply_encoder(module, params, batch)[PROBABILITIES], 1, 0)}  # [B, L, H, S, S]

    return forward
