"""What each head of each layer attends to, in texts."""

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

_BYTES = 1 << 28  # of the attention of one batch, all heads; what is computed of it takes a few times as much


class Attention(NamedTuple):
    """The attention in one text.

    Attributes:
      pieces: S of them, special tokens among them.
      weights: float32 [L, H, S, S]: of layer l + 1 and head h + 1, the share that position `i` has of `j` is
        `weights[l, h, i, j]`, and those of all `j` add up to 1.
    """

    pieces: list[str]
    weights: np.ndarray


def apply_encoder(
    module: nn.Module, params: Any, batch: Mapping[str, jax.Array], *, hidden: bool = False
) -> dict[str, jax.Array]:
    """What the encoder of any model computes on its way: `probabilities` [L, B, H, S, S] and, where they are asked
    for, `hidden` [L + 1, B, S, D]; see model/capture.py."""
    inputs = [batch[name] for name in INPUTS]
    capture = (PROBABILITIES, HIDDEN) if hidden else (PROBABILITIES,)
    return apply_capturing(module, params, *inputs, capture=capture, method=_encoder)[1]


def _encoder(model: nn.Module, input_ids: jax.Array, segment_ids: jax.Array, mask: jax.Array) -> jax.Array:
    return model.encoder(input_ids, segment_ids, mask)[0]


def rows_at_once(config: BertConfig, length: int) -> int:
    """How many texts of a padded length are computed at a time, so that the attention of all heads fits memory."""
    return max(1, _BYTES // (4 * config.num_layers * config.num_heads * length**2))


def attention(runner: Runner, features: Features) -> list[Attention]:
    """The attention in each row; [CLS] and [SEP] among its pieces."""
    model = runner.model
    # By the padded length, as a power of two: each other number of rows would be compiled anew.
    longest = runner.lengths[int(find_buckets(features.lengths, runner.lengths).max())]
    most = 1 << (rows_at_once(model.config, longest).bit_length() - 1)
    outputs = runner.run('attention', _make_forward(model.module), features, most=most, title='attention')
    rows = np.split(features.tokens, features.offsets[1:-1])
    return [
        Attention([model.tokenizer.pieces[i] for i in ids], np.ascontiguousarray(weights[..., : len(ids), : len(ids)]))
        for ids, weights in zip(rows, outputs['attention'], strict=True)
    ]


def _make_forward(module: nn.Module) -> Forward:
    def forward(params: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        return {'attention': jnp.moveaxis(apply_encoder(module, params, batch)[PROBABILITIES], 1, 0)}  # [B, L, H, S, S]

    return forward
