"""How far each layer moved between two checkpoints of one encoder: its parameters, its states, its attention."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.convert.trees import flat_paths
from bertjax.errors import UserError
from bertjax.loading.load_model import LoadedModel
from bertjax.model.stacking import STACKED, unstack_layers

# Parts of a block, by the beginning of their parameters' paths.
PARTS = ('attention/query', 'attention/key', 'attention/value', 'attention/output', 'mlp/up', 'mlp/down')
NORMS, WHOLE = 'norms', 'whole'
_NOTHING = 1e-30  # a smaller weight counts as 0: half of the smallest normal number is 0 on some devices


def check_comparable(before: LoadedModel, after: LoadedModel) -> None:
    """Refuses two models whose layers do not stand beside each other.

    Raises:
      UserError: encoders of other sizes, or other tokenizers.
    """
    shape = lambda model: {path: x.shape for path, x in _encoder(model.params).items()}  # noqa: E731
    fix = 'name the checkpoint that the fine-tuning started from'
    if shape(before) != shape(after):
        sizes = lambda m: f'{m.config.num_layers} layers, width {m.config.width}'  # noqa: E731
        found = f'an encoder of {sizes(before)}, or with other embeddings'
        raise UserError('config.attention.compare', found, f'one as in {after.where}: {sizes(after)}', fix)
    if before.tokenizer.fingerprint != after.tokenizer.fingerprint:
        raise UserError('config.attention.compare', 'another tokenizer', f'that of {after.where}', fix)


def parameter_changes(before: Any, after: Any) -> list[dict[str, float]]:
    """The relative distance ‖after - before‖ / ‖before‖ (Euclidean) of the parameters of each layer.

    Returns:
      a row a layer, the embeddings first (number 0): `layer`; `whole`, of all parameters of the layer; of a block also
      each of PARTS (weights and bias together) and `norms`.
    """
    old, new = _encoder(before), _encoder(after)
    sums: dict[tuple[int, str], np.ndarray] = {}
    for path, x in old.items():
        x, y = np.asarray(x, np.float64), np.asarray(new[path], np.float64)
        place, _, rest = path.partition('/')
        if not place.startswith((f'{STACKED}_', 'embeddings')):  # the last norm of pre-LN is of no layer
            continue
        layer = int(place.removeprefix(f'{STACKED}_')) + 1 if place.startswith(STACKED) else 0
        kind = next((part for part in PARTS if rest.startswith(f'{part}/')), NORMS)
        for name in (WHOLE, kind) if layer else (WHOLE,):
            sums[layer, name] = sums.get((layer, name), 0) + np.array([np.square(y - x).sum(), np.square(x).sum()])
    rows: dict[int, dict[str, float]] = {}
    for (layer, name), (moved, was) in sums.items():
        # What was 0 has no size to compare with: any small one gives a very large distance.
        rows.setdefault(layer, {'layer': layer})[name] = _rounded(np.sqrt(moved / max(was, 1e-30)))
    return [{'layer': layer, **_in_order(rows[layer])} for layer in sorted(rows)]


def _in_order(row: Mapping[str, float]) -> dict[str, float]:
    return {name: row[name] for name in (WHOLE, *PARTS, NORMS) if name in row}


def _encoder(params: Any) -> dict[str, Any]:
    """Parameters by path, the blocks beside each other; embeddings, and a last norm, outside of blocks."""
    tree = unstack_layers(params) if STACKED in params['encoder'] else params
    return flat_paths(tree['encoder'])


def change_sums(
    before: Mapping[str, jax.Array], after: Mapping[str, jax.Array], mask: jax.Array
) -> dict[str, jax.Array]:
    """Sums over the tokens of a batch of how far states and attention of two models are from each other.

    Args:
      before, after: `hidden` [L + 1, B, S, D] and `probabilities` [L, B, H, S, S], see `attention.apply_encoder`.
      mask: float32 [B, S], 1 for tokens.

    Returns:
      `cosine` [L + 1], 1 - cos of each token's two states, the embeddings first; `cosine_cls` [L + 1], of [CLS] alone;
      `divergence` [L, H], the Jensen-Shannon divergence of a token's two distributions over the others, in bits: 0
      for equal ones, 1 for those that have nothing in common. All float32; `positions` and `texts`, int32 [].
    """
    x, y = before['hidden'].astype(jnp.float32), after['hidden'].astype(jnp.float32)
    norms = jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1)
    cosine = 1 - (x * y).sum(-1) / jnp.maximum(norms, 1e-12)  # [L + 1, B, S]
    p, q = before['probabilities'], after['probabilities']
    middle = (p + q) / 2

    def divergence(x: jax.Array) -> jax.Array:
        """Kullback-Leibler's, of a distribution from the middle, in bits."""
        some = x > _NOTHING
        return jnp.where(some, x * jnp.log2(jnp.where(some, x, 1) / jnp.where(some, middle, 1)), 0).sum(-1)

    both = (divergence(p) + divergence(q)) / 2  # [L, B, H, Q]
    return {
        'cosine': jnp.einsum('LBS,BS->L', cosine, mask, precision='highest'),
        'cosine_cls': jnp.einsum('LB,B->L', cosine[..., 0], mask[:, 0], precision='highest'),
        'divergence': jnp.einsum('LBHQ,BQ->LH', both, mask, precision='highest'),
        'positions': mask.sum().astype(jnp.int32),
        'texts': mask[:, 0].sum().astype(jnp.int32),
    }


def change_means(sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The sums of `change_sums` over a corpus as means, float64."""
    counts = {'cosine_cls': 'texts'}
    names = ('cosine', 'cosine_cls', 'divergence')
    return {name: np.asarray(sums[name], np.float64) / sums[counts.get(name, 'positions')] for name in names}


def change_rows(parameters: list[dict[str, float]], means: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """A row a layer, the embeddings first: `parameters`, `hidden`, `hidden_cls`; of a block `attention` and
    `attention_of_heads`, too."""
    rows = []
    for i, own in enumerate(parameters):
        row: dict[str, Any] = {'layer': own['layer'], 'parameters': {k: v for k, v in own.items() if k != 'layer'}}
        row |= {'hidden': _rounded(means['cosine'][i]), 'hidden_cls': _rounded(means['cosine_cls'][i])}
        if i:
            heads = means['divergence'][i - 1]
            row |= {'attention': _rounded(heads.mean()), 'attention_of_heads': [_rounded(x) for x in heads]}
        rows.append(row)
    return rows


def _rounded(x: float) -> float:
    return round(max(float(x), 0.0), 8)
