"""Converts configs to and from their plain form, the dicts, lists and scalars of config.json."""

import dataclasses
import json
from typing import Any

import ml_collections


def to_plain(config: Any) -> Any:
    """Returns the plain form of a config or of settings, with sorted keys and without groups that are None."""
    if dataclasses.is_dataclass(config):
        values = {field.name: (getattr(config, field.name), field.metadata) for field in dataclasses.fields(config)}
        config = {name: value for name, (value, about) in values.items() if value is not None or not about.get('group')}
    if isinstance(config, ml_collections.ConfigDict | dict):
        return {key: to_plain(config[key]) for key in sorted(config)}
    if isinstance(config, (tuple, list)):
        return [to_plain(item) for item in config]
    return config


def from_plain(plain: Any) -> Any:
    """Converts a plain form, such as the content of config.json, back to a config."""
    if isinstance(plain, dict):
        return ml_collections.ConfigDict({key: from_plain(value) for key, value in plain.items()})
    return tuple(map(from_plain, plain)) if isinstance(plain, list) else plain


def dump(config: Any) -> str:
    """Returns a config as the text of a config.json."""
    return json.dumps(to_plain(config), indent=2, sort_keys=True, ensure_ascii=False) + '\n'


def flatten(config: Any, prefix: str = '') -> dict[str, Any]:
    """Flattens a config or its plain form to {'model.width': 128, 'phases[0].steps': '90%', ...}."""
    config = to_plain(config)
    flat: dict[str, Any] = {}
    if isinstance(config, dict):
        for key, value in config.items():
            flat |= flatten(value, f'{prefix}.{key}' if prefix else key)
    elif isinstance(config, list) and any(isinstance(item, dict) for item in config):
        for i, item in enumerate(config):
            flat |= flatten(item, f'{prefix}[{i}]')
    else:
        flat[prefix] = config
    return flat
