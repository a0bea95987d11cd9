"""What each head looks at, as figures: means over all positions of all texts (Clark et al. 2019, arXiv 1906.04341,
section 3)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

# name -> (title, what it is, unit of the figure)
MEASURES = {
    'entropy': ('entropy', 'of a position’s weights, in nats: 0 for all on one, ln S for all alike', 'nats'),
    'distance': ('distance', 'mean number of positions from where it looks from to where it looks', 'positions'),
    'cls': ('[CLS]', 'share on the first token', 'share'),
    'sep': ('[SEP]', 'share on the separators', 'share'),
    'previous': ('previous', 'share on the position before, of those that have one', 'share'),
    'next': ('next', 'share on the position behind, of those that have one', 'share'),
    'same': ('same', 'share on the position itself', 'share'),
    'cls_entropy': ('entropy of [CLS]', 'of the weights of [CLS] itself, in nats', 'nats'),
}


def head_sums(weights: jax.Array, mask: jax.Array, separators: jax.Array) -> dict[str, jax.Array]:
    """Sums over the positions of a batch, and of how many.

    Args:
      weights: float32 [L, B, H, S, S], queries before keys; those of a position add up to 1.
      mask: float32 [B, S], 1 for positions (pieces, or words and special tokens) and 0 for padding behind them.
      separators: float32 [B, S], 1 for [SEP].

    Returns:
      {a name of MEASURES: float32 [L, H]}, and `positions` and `texts`, int32 [].
    """
    S = weights.shape[-1]
    at = jnp.arange(S)
    apart = jnp.abs(at[:, None] - at).astype(weights.dtype)

    def over(values: jax.Array, rows: jax.Array) -> jax.Array:
        """[L, B, H, Q], the queries that count [B, Q] -> [L, H]."""
        return jnp.einsum('LBHQ,BQ->LH', values, rows, precision='highest')

    some = weights > 0
    entropy = -jnp.where(some, weights * jnp.log(jnp.where(some, weights, 1)), 0).sum(-1)  # [L, B, H, Q]
    distance = jnp.einsum('LBHQS,QS->LBHQ', weights, apart, precision='highest')
    to_sep = jnp.einsum('LBHQS,BS->LBHQ', weights, separators, precision='highest')
    diagonal = lambda offset: jnp.diagonal(weights, offset, -2, -1)  # [L, B, H, S - abs(offset)]  # noqa: E731
    first = mask * (at == 0)
    return {
        'entropy': over(entropy, mask),
        'distance': over(distance, mask),
        'cls': over(weights[..., 0], mask),
        'sep': over(to_sep, mask),
        'previous': over(diagonal(-1), mask[:, 1:]),
        'next': over(diagonal(1), mask[:, 1:]),  # a position has a next one where the next one is there
        'same': over(diagonal(0), mask),
        'cls_entropy': over(entropy, first),
        'positions': mask.sum().astype(jnp.int32),
        'texts': first.sum().astype(jnp.int32),
    }


def head_means(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The sums of `head_sums` over a corpus -> {a name of MEASURES: float64 [L, H]}."""
    positions, texts = float(sums['positions']), float(sums['texts'])
    counts = {'cls_entropy': texts, 'previous': positions - texts, 'next': positions - texts}
    return {name: sums[name] / max(counts.get(name, positions), 1.0) for name in MEASURES}


def head_rows(means: Mapping[str, np.ndarray]) -> list[dict[str, float]]:
    """A row a head, `layer` and `head` from 1, with its figures."""
    layers, heads = means['entropy'].shape
    return [
        {'layer': i + 1, 'head': j + 1, **{name: round(float(means[name][i, j]), 6) for name in MEASURES}}
        for i in range(layers)
        for j in range(heads)
    ]
