"""The config.json of ModernBERT (arXiv 2412.13663; models/modernbert in transformers), Ettin and mmBERT."""

from collections.abc import Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.model.config import BertConfig

_FIX = 'give a directory of a ModernBERT, an Ettin or an mmBERT'

# BertConfig fields that have the same value in all models of the family.
FIXED = {
    'norm': 'layernorm',
    'pre_norm': True,
    'first_attention_norm': False,
    'qk_norm': False,
    'position': 'rope',
    'pooler': 'transform',
    'num_segments': 0,
    'causal': False,
    'nsp': False,
}
ACTIVATIONS = {'gelu': 'geglu', 'silu': 'swiglu'}  # {activation: our `mlp`}
# {our field: its key in config.json}
KEYS = {
    'layer_norm_eps': 'norm_eps',
    'norm_bias': 'norm_bias',
    'projection_bias': 'attention_bias',
    'dropout': 'mlp_dropout',
    'attention_dropout': 'attention_dropout',
    'mlp': 'hidden_activation',
    'pooling': 'classifier_pooling',
    'tie_embeddings': 'tie_word_embeddings',
    'attention_window': 'local_attention',
    'global_every': 'global_attn_every_n_layers',
    'rope_theta': 'global_rope_theta',
    'rope_local_theta': 'local_rope_theta',
}
_BIASES = ('attention_bias', 'mlp_bias', 'classifier_bias')  # must be equal; `projection_bias` in BertConfig
# {optional key of config.json: its default}
DEFAULTS = {
    'norm_eps': 1e-5,
    'norm_bias': False,
    **dict.fromkeys(_BIASES, False),
    'max_position_embeddings': 8192,
    'mlp_dropout': 0.0,
    'attention_dropout': 0.0,
    'classifier_pooling': 'cls',
    'tie_word_embeddings': True,
    'local_attention': 128,
    'global_attn_every_n_layers': 3,
    'global_rope_theta': 160_000.0,
    'local_rope_theta': 10_000.0,
}
_FULL, _SLIDING = 'full_attention', 'sliding_attention'
_THETAS = {'rope_theta': _FULL, 'rope_local_theta': _SLIDING}  # {our field: kind of layer}


def _layer_types(num_layers: int, global_every: int) -> list[str]:
    return [_FULL if global_every and i % global_every == 0 else _SLIDING for i in range(num_layers)]


def _global_every(values: Mapping[str, Any], where: str) -> int:
    """Returns the distance between layers that attend to all positions, or 0 if there is no such layer."""
    num_layers, types = values.get('num_hidden_layers'), values.get('layer_types')
    if types is None:
        return values['global_attn_every_n_layers']
    fits = isinstance(num_layers, int) and isinstance(types, list) and len(types) == num_layers
    found = next((n for n in range(num_layers + 1) if types == _layer_types(num_layers, n)), None) if fits else None
    if found is None:
        expected = f'{num_layers} names: {_FULL!r} for the first and every n-th layer after it, else {_SLIDING!r}'
        raise UserError(where, f'layer_types {types!r}', expected, _FIX)
    return found


def _thetas(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the bases of the rotary embeddings, {our field: base}."""
    if values.get('rope_scaling'):
        raise UserError(where, f'rope_scaling {values["rope_scaling"]!r}', 'rotations without scaling', _FIX)
    rope = values.get('rope_parameters') or {}
    if not isinstance(rope, dict) or not all(k in (_FULL, _SLIDING) and _is_plain(facts) for k, facts in rope.items()):
        expected = f"a rope_theta and the rope_type 'default' for {_FULL} and {_SLIDING}"
        raise UserError(where, f'rope_parameters {rope!r}', expected, _FIX)
    return {ours: rope.get(kind, {}).get('rope_theta', values[KEYS[ours]]) for ours, kind in _THETAS.items()}


def _is_plain(facts: Any) -> bool:
    """Returns whether a rotary embedding has no parameter except its base."""
    if not isinstance(facts, dict) or not facts.keys() <= {'rope_type', 'rope_theta'}:
        return False
    return facts.get('rope_type', 'default') == 'default'


def read_fields(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns fields of BertConfig that replace the fields in KEYS. `values` include DEFAULTS.

    Raises a UserError if the model has features that bertjax lacks.
    """
    for key, expected in (('classifier_activation', values.get('hidden_activation', 'gelu')), ('decoder_bias', True)):
        if values.get(key, expected) != expected:
            raise UserError(where, f'{key} {values[key]!r}', repr(expected), _FIX)
    biases = [values[key] for key in _BIASES]
    if any(bias != biases[0] for bias in biases):
        found = ', '.join(f'{key} {bias!r}' for key, bias in zip(_BIASES, biases, strict=True))
        raise UserError(where, found, 'the same value for all', _FIX)
    if values['local_attention'] == 0:
        raise UserError(where, 'local_attention 0', 'at least 1', _FIX)
    thetas, global_every = _thetas(values, where), _global_every(values, where)
    if global_every == 1:
        return {**thetas, 'attention_window': 0, 'global_every': BertConfig.global_every}
    return {**thetas, 'global_every': global_every}


def write_values(config: BertConfig) -> dict[str, Any]:
    """Returns the entries of config.json that extend or replace the fields in KEYS."""
    every = config.global_every if config.attention_window else 1
    return {
        'local_attention': config.attention_window or 128,
        'rope_parameters': {
            kind: {'rope_type': 'default', 'rope_theta': getattr(config, ours)} for ours, kind in _THETAS.items()
        },
        **dict.fromkeys(_BIASES, config.projection_bias),
        'classifier_activation': next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.mlp),
        'decoder_bias': True,
        'layer_types': _layer_types(config.num_layers, every),
        'global_attn_every_n_layers': every or config.num_layers,
        'embedding_dropout': config.dropout_elsewhere,
        'mlp_dropout': config.dropout_elsewhere,
        'classifier_dropout': config.dropout_elsewhere,
    }


def misfit(config: BertConfig) -> tuple[str, str] | None:
    """Returns (name, expected value) of the first field whose value does not fit a ModernBERT; None if all fit."""
    for name, value in FIXED.items():
        if getattr(config, name) != value:
            return name, repr(value)
    mlps = ACTIVATIONS.values()
    return None if config.mlp in mlps else ('mlp', 'one of ' + ', '.join(mlps))
