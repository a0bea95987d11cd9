"""Computes the changes of each layer between two checkpoints of an encoder: parameters, hidden states and attention."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.convert.trees import flat_paths
from bertjax.errors import UserError
from bertjax.loading.load_model import LoadedModel
from bertjax.model.stacking import STACKED, unstack_layers

# The parts of a block, by the prefixes of their parameter paths.
PARTS = ('attention/query', 'attention/key', 'attention/value', 'attention/output', 'mlp/gate', 'mlp/up', 'mlp/down')
NORMS, ALL_PARTS = 'norms', 'whole'
# Smaller attention weights count as 0, because the divergence would divide by half of the weight, which may underflow.
_MIN_WEIGHT = 1e-30


def check_comparable(before: LoadedModel, after: LoadedModel) -> None:
    """Raises a UserError if two models differ in tokenizers, or in names or shapes of the encoder's parameters."""
    shape = lambda model: {path: x.shape for path, x in _encoder(model.params).items()}  # noqa: E731
    fix = 'name the checkpoint that the fine-tuning started from'
    if shape(before) != shape(after):
        sizes = lambda m: f'{m.config.num_layers} layers, width {m.config.width}'  # noqa: E731
        found = f'an encoder with parameters of other shapes: {sizes(before)}'
        raise UserError('config.attention.compare', found, f'the encoder of {after.where}: {sizes(after)}', fix)
    if before.tokenizer.fingerprint != after.tokenizer.fingerprint:
        raise UserError('config.attention.compare', 'another tokenizer', f'the tokenizer of {after.where}', fix)


def parameter_changes(before: Any, after: Any) -> list[dict[str, float]]:
    """Computes the relative Euclidean distance ‖after - before‖ / ‖before‖ of the parameters of each layer.

    Returns:
      A row per layer, starting with the embeddings, layer 0: `layer`, and `whole`, the distance over all parameters.
      The row of a block also has the distances of its PARTS, kernel and bias together, and of its `norms`.
    """
    old, new = _encoder(before), _encoder(after)
    sums: dict[tuple[int, str], np.ndarray] = {}
    for path, x in old.items():
        x, y = np.asarray(x, np.float64), np.asarray(new[path], np.float64)
        module, _, rest = path.partition('/')
        if not module.startswith((f'{STACKED}_', 'embeddings')):  # The final norm belongs to no layer.
            continue
        layer = int(module.removeprefix(f'{STACKED}_')) + 1 if module.startswith(STACKED) else 0
        kind = next((part for part in PARTS if rest.startswith(f'{part}/')), NORMS)
        for name in (ALL_PARTS, kind) if layer else (ALL_PARTS,):
            sums[layer, name] = sums.get((layer, name), 0) + np.array([np.square(y - x).sum(), np.square(x).sum()])
    rows: dict[int, dict[str, float]] = {}
    for (layer, name), (difference, norm) in sums.items():
        # `max` avoids a division by 0. Parameters that changed from 0 get a very large but finite distance.
        rows.setdefault(layer, {'layer': layer})[name] = _round(np.sqrt(difference / max(norm, 1e-30)))
    names = ('layer', ALL_PARTS, *PARTS, NORMS)
    return [{name: rows[i][name] for name in names if name in rows[i]} for i in sorted(rows)]


def _encoder(params: Any) -> dict[str, Any]:
    """Returns the encoder's parameters by path, with unstacked blocks."""
    tree = unstack_layers(params) if STACKED in params['encoder'] else params
    return flat_paths(tree['encoder'])


def change_sums(
    before: Mapping[str, jax.Array], after: Mapping[str, jax.Array], mask: jax.Array
) -> dict[str, jax.Array]:
    """Sums the differences between two models, in hidden states and in attention, over the tokens of a batch.

    Args:
      before, after: The outputs of `inference.attention.apply_encoder` for the two models: `hidden` [L + 1, B, S, D]
        and `probabilities` [L, B, H, S, S] (layers, texts, heads, queries, keys).
      mask: float32 [B, S], 1 for tokens and 0 for padding.

    Returns:
      A dict of sums and counts:
        cosine, cosine_cls: float32 [L + 1], the sums of 1 - cos(x, y) over all tokens and over [CLS] only. x and y are
          the two models' hidden states of a token. The first entry is for the embeddings.
        divergence: float32 [L, H], the sum over the tokens of the Jensen-Shannon divergence between a token's two
          attention distributions, in bits: 0 for equal and 1 for disjoint distributions.
        positions, texts: int32 [], the numbers of tokens and of texts.
    """
    x, y = before['hidden'].astype(jnp.float32), after['hidden'].astype(jnp.float32)
    norms = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)
    cosine = 1 - (x * y).sum(-1) / jnp.maximum(norms, 1e-12)  # [L + 1, B, S]
    p, q = before['probabilities'], after['probabilities']
    middle = (p + q) / 2

    def divergence(x: jax.Array) -> jax.Array:
        """Computes the Kullback-Leibler divergence of x from the mean of both distributions, in bits."""
        is_positive = x > _MIN_WEIGHT
        ratio = jnp.where(is_positive, x, 1) / jnp.where(is_positive, middle, 1)
        return jnp.where(is_positive, x * jnp.log2(ratio), 0).sum(-1)

    both = (divergence(p) + divergence(q)) / 2  # [L, B, H, Q]
    return {
        'cosine': jnp.einsum('LBS,BS->L', cosine, mask, precision='highest'),
        'cosine_cls': jnp.einsum('LB,B->L', cosine[..., 0], mask[:, 0], precision='highest'),
        'divergence': jnp.einsum('LBHQ,BQ->LH', both, mask, precision='highest'),
        'positions': mask.sum().astype(jnp.int32),
        'texts': mask[:, 0].sum().astype(jnp.int32),
    }


def change_rows(parameters: list[dict[str, float]], sums: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Makes a row per layer, starting with the embeddings, from the sums of `change_sums` over a corpus.

    A row has `layer`, the distances `parameters`, and `hidden` and `hidden_cls`, the means of 1 - cosine over all
    tokens and over [CLS]. The row of a block also has the mean divergences `attention_of_heads`, and `attention`, their
    mean.
    """
    counts = {'cosine': 'positions', 'cosine_cls': 'texts', 'divergence': 'positions'}
    means = {name: np.asarray(sums[name], np.float64) / sums[count] for name, count in counts.items()}
    rows = []
    for i, distances in enumerate(parameters):
        by_part = {name: value for name, value in distances.items() if name != 'layer'}
        row: dict[str, Any] = {'layer': distances['layer'], 'parameters': by_part}
        row |= {'hidden': _round(means['cosine'][i]), 'hidden_cls': _round(means['cosine_cls'][i])}
        if i:
            heads = means['divergence'][i - 1]
            row |= {'attention': _round(heads.mean()), 'attention_of_heads': [_round(x) for x in heads]}
        rows.append(row)
    return rows


def _round(x: float) -> float:
    return round(max(float(x), 0.0), 8)
