"""Computes statistics of attention heads, as means over a corpus (Clark et al. 2019, arXiv 1906.04341, section 3)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

# {name: (title, description, unit)}
MEASURES = {
    'entropy': ('entropy', 'entropy of the weights, in nats: 0 if one position has all the weight', 'nats'),
    'distance': ('distance', 'mean distance from query to key, in positions', 'positions'),
    'cls': ('[CLS]', 'weight on the first token', 'share'),
    'sep': ('[SEP]', 'weight on the separators', 'share'),
    'previous': ('previous', 'weight on the previous position (the first position is excluded)', 'share'),
    'next': ('next', 'weight on the next position (the last position is excluded)', 'share'),
    'same': ('same', 'weight on the position itself', 'share'),
    'cls_entropy': ('entropy of [CLS]', 'entropy of the weights of [CLS], in nats', 'nats'),
}


def head_sums(weights: jax.Array, mask: jax.Array, separators: jax.Array) -> dict[str, jax.Array]:
    """Sums the measures over the positions of a batch.

    Args:
      weights: float32 [L, B, H, S, S] (layers, texts, heads, queries, keys). The weights of a query sum to 1.
      mask: float32 [B, S], 1 for positions (pieces, or words and special tokens) and 0 for padding.
      separators: float32 [B, S], 1 for [SEP].

    Returns:
      A dict with the sum of each measure in MEASURES, float32 [L, H], and the counts `positions` and `texts`, int32 [].
    """
    S = weights.shape[-1]
    positions = jnp.arange(S)
    distances = jnp.abs(positions[:, None] - positions).astype(weights.dtype)

    def total(values: jax.Array, queries: jax.Array) -> jax.Array:
        """Sums values [L, B, H, Q] over the texts and queries to [L, H]. `queries` [B, Q] is 0 for excluded queries."""
        return jnp.einsum('LBHQ,BQ->LH', values, queries, precision='highest')

    is_positive = weights > 0
    entropy = -jnp.where(is_positive, weights * jnp.log(jnp.where(is_positive, weights, 1)), 0).sum(-1)  # [L, B, H, Q]
    distance = jnp.einsum('LBHQS,QS->LBHQ', weights, distances, precision='highest')
    to_sep = jnp.einsum('LBHQS,BS->LBHQ', weights, separators, precision='highest')
    diagonal = lambda offset: jnp.diagonal(weights, offset, -2, -1)  # [L, B, H, S - abs(offset)]  # noqa: E731
    first = mask * (positions == 0)
    return {
        'entropy': total(entropy, mask),
        'distance': total(distance, mask),
        'cls': total(weights[..., 0], mask),
        'sep': total(to_sep, mask),
        'previous': total(diagonal(-1), mask[:, 1:]),
        'next': total(diagonal(1), mask[:, 1:]),  # The last query before the padding has no next position.
        'same': total(diagonal(0), mask),
        'cls_entropy': total(entropy, first),
        'positions': mask.sum().astype(jnp.int32),
        'texts': first.sum().astype(jnp.int32),
    }


def head_means(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts the sums of `head_sums` over a corpus to means: {name in MEASURES: float64 [L, H]}."""
    positions, texts = float(sums['positions']), float(sums['texts'])
    counts = {'cls_entropy': texts, 'previous': positions - texts, 'next': positions - texts}
    return {name: sums[name] / max(counts.get(name, positions), 1.0) for name in MEASURES}


def head_rows(means: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    """Makes a row per head with `layer` and `head`, counted from 1, and the measures."""
    layers, heads = means['entropy'].shape
    return [
        {'layer': i + 1, 'head': j + 1, **{name: round(float(means[name][i, j]), 6) for name in MEASURES}}
        for i in range(layers)
        for j in range(heads)
    ]
