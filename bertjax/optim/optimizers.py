"""The optimizers: Adam as in BERT's original code, AdamW, StableAdamW, LAMB with a trust ratio per layer, and Muon.

Each optimizer is an optax transformation that returns a direction, which the train step multiplies by -learning_rate.
The learning rate depends on the step of the run, not on the optimizer's count, which skipped updates do not advance.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.optim.masks import decay_mask, is_stacked
from bertjax.optim.muon import scale_adam_rate, scale_by_muon

OPTIMIZERS = ('bert_adam', 'adamw', 'stable_adamw', 'lamb', 'muon')


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Scales updates to m / (sqrt(v) + eps) without bias correction.

    Source: google-research/bert, optimization.py, AdamWeightDecayOptimizer. The first update is (1 - b1) / sqrt(1 - b2)
    times as large as the first update of Adam with bias correction, if `eps` is negligible. BERT's learning rates and
    warm-ups are meant for this form.
    """

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        del params
        mu = jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.mu)
        nu = jax.tree.map(lambda g, v: b2 * v + (1 - b2) * jnp.square(g), grads, state.nu)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(optax.scale_by_adam(b1, b2, eps).init, update)


def scale_by_stable_adam(weight_decay: float, b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Scales updates by Adam, adds the weight decay, and divides the sum by max(1, RMS) for each tensor.

    Source: StableAdamW, arXiv 2304.13013, algorithm 2, with bias correction. The paper divides the learning rate
    instead of the sum. The RMS is the root of the mean of g² / max(v, eps²), where g is the gradient and v is Adam's
    second moment. Each layer of a stacked parameter has its own RMS.
    """
    adam = optax.scale_by_adam(b1, b2, eps)
    smallest = max(eps**2, float(jnp.finfo(jnp.float32).tiny))  # the square of a small eps is 0 in float32

    def update(grads: Any, state: optax.ScaleByAdamState, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        updates, new_state = adam.update(grads, state, params)
        correction = 1 - b2 ** new_state.count.astype(jnp.float32)

        def clipped(path: tuple[Any, ...], decays: bool, u: jax.Array, g: jax.Array, v: jax.Array, p: jax.Array) -> Any:
            axes = tuple(range(1 if is_stacked(path) else 0, g.ndim))
            ratios = jnp.square(g.astype(jnp.float32)) / jnp.maximum(v.astype(jnp.float32) / correction, smallest)
            rms = jnp.sqrt(ratios.mean(axes, keepdims=True))
            u = u + weight_decay * p if decays else u
            return (u / jnp.maximum(rms, 1.0)).astype(u.dtype)

        mask = decay_mask(params)
        return jax.tree_util.tree_map_with_path(clipped, mask, updates, grads, new_state.nu, params), new_state

    return optax.GradientTransformation(adam.init, update)


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """Multiplies the update of each weight tensor by |weight| / |update| (LAMB, arXiv 1904.00962, algorithm 2).

    A stacked parameter has a ratio for each layer, whereas `optax.lamb` would compute one ratio for the whole stack. As
    in NVIDIA's and Google's LAMB, only parameters with weight decay have a ratio. A ratio is 1 if either norm is zero.
    """

    def update(updates: Any, params: Any) -> Any:
        def scaled(path: tuple[Any, ...], decays: bool, u: jax.Array, p: jax.Array) -> jax.Array:
            if not decays:
                return u
            axes = tuple(range(1 if is_stacked(path) else 0, p.ndim))
            p_norm = jnp.sqrt(jnp.sum(jnp.square(p.astype(jnp.float32)), axes, keepdims=True))
            u_norm = jnp.sqrt(jnp.sum(jnp.square(u.astype(jnp.float32)), axes, keepdims=True))
            ratio = jnp.where((p_norm > 0) & (u_norm > 0), p_norm / jnp.where(u_norm > 0, u_norm, 1.0), 1.0)
            return (u * ratio).astype(u.dtype)

        return jax.tree_util.tree_map_with_path(scaled, decay_mask(params), updates, params)

    return optax.stateless(update)


def make_optimizer(
    name: str,
    *,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float,
    momentum: float,
    adam_lr_ratio: float,
    dtype: str = 'float32',
) -> optax.GradientTransformation:
    """Builds a chain of gradient clipping, moments, decoupled weight decay and a scaling for LAMB or Muon.

    The arguments except `dtype` are the keys of config.optimizer (see `config.run.Optimizer`). StableAdamW and LAMB
    scale the update including its decay. Muon's matrix products take operands of `dtype`.
    """
    moments = {
        'bert_adam': scale_by_bert_adam,
        'muon': functools.partial(scale_by_muon, momentum, dtype=dtype),
        'stable_adamw': functools.partial(scale_by_stable_adam, weight_decay),
    }.get(name, optax.scale_by_adam)
    decay = 0.0 if name == 'stable_adamw' else weight_decay  # stable_adamw adds the decay before it divides
    scale = {'lamb': scale_by_layer_trust_ratio, 'muon': functools.partial(scale_adam_rate, adam_lr_ratio)}
    # The chain always has four parts, so a checkpoint can be restored after clipping is switched on or off.
    return optax.chain(
        optax.clip_by_global_norm(clip_norm) if clip_norm > 0 else optax.identity(),
        moments(b1, b2, eps),
        optax.add_decayed_weights(decay, mask=decay_mask),
        scale.get(name, optax.identity)(),
    )
