"""The base configs that recipes begin with and change: of a pre-training, a task, a distillation, a finished model."""

import dataclasses
import types
from typing import Any, get_args

from ml_collections import ConfigDict, config_dict

from bertjax.config.distillation import DistillationKeys, TaskDistillationKeys
from bertjax.config.finetuning import FinetuningKeys, SweepKeys
from bertjax.config.pretraining import PhaseKeys, PretrainingKeys
from bertjax.config.suggestions import suggestion
from bertjax.config.using import USING
from bertjax.errors import UserError
from bertjax.model.config import SIZES
from bertjax.tasks.registry import KINDS, options


def pretraining_config(size: str = 'base', **changes: Any) -> ConfigDict:
    """BERT's own recipe, in one phase; `changes` replace top-level keys. See `config.pretraining.PretrainingKeys`."""
    config = as_config(PretrainingKeys())
    config.model.update(SIZES[size])
    for key, value in changes.items():
        config[key] = value
    return config


def phase(**values: Any) -> ConfigDict:
    """One entry of config.phases, see `config.pretraining.PhaseKeys`: `steps` (a duration; percentages are of
    config.steps), and what is not the run's own."""
    return _changed(as_config(PhaseKeys()), values)


def two_phases(**second: Any) -> tuple[ConfigDict, ConfigDict]:
    """BERT's: 90 % of the steps at 128 positions, then 512 for the position embeddings (paper, appendix A.2)."""
    return (
        phase(steps='90%', seq_len=128, max_predictions=20),
        phase(steps='10%', seq_len=512, max_predictions=80, **second),
    )


def finetuning_config(kind: str, **task: Any) -> ConfigDict:
    """The base of every recipe for a task, see `config.finetuning.FinetuningKeys`.

    Args:
      kind: of the task.
      **task: its options that differ from their defaults, config.task.
    """
    usual = {name: option.default for name, option in options(kind).items()} if kind in KINDS else {}
    return as_config(FinetuningKeys(task={'kind': kind, **usual, **task}))


def sweep(**values: tuple) -> ConfigDict:
    """config.sweep, see `config.finetuning.SweepKeys`."""
    return _changed(as_config(SweepKeys()), values)


def distillation(config: ConfigDict, **values: Any) -> ConfigDict:
    """A recipe of a pre-training or of a task in which a student learns from a teacher: `config` with config.distill,
    of which `values` replace some keys. See `config.distillation.DistillationKeys`."""
    config.run = 'distill'
    keys = TaskDistillationKeys() if 'task' in config else DistillationKeys()
    config.distill = _changed(as_config(keys), values)
    return config


def using_config(verb: str, **options: Any) -> ConfigDict:
    """The base of every recipe for a verb that uses a finished model; `options` replace keys of config.VERB. See
    `config.using`."""
    config = as_config(USING[verb]())
    _changed(config[verb], options)
    return config


def as_config(record: Any) -> ConfigDict:
    """The ConfigDict of a dataclass of keys, without groups that are None; a key whose field is declared with several
    types takes all of them."""
    config = ConfigDict()
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if field.metadata.get('group') and value is None:
            continue
        if dataclasses.is_dataclass(value):
            value = as_config(value)
        elif isinstance(field.type, types.UnionType):
            kinds = [kind for kind in get_args(field.type) if kind is not types.NoneType]
            value = config_dict.FieldReference(value, field_type=kinds[0] if len(kinds) == 1 else object)
        config[field.name] = ConfigDict(value) if isinstance(value, dict) else value
    return config


def _changed(config: ConfigDict, values: dict[str, Any]) -> ConfigDict:
    """The same config with some values; a key that it does not have is added, for `check_ranges` to name."""
    for key, value in values.items():
        config[key] = value
    return config


def parse_argument(argument: str, **defaults: Any) -> types.SimpleNamespace:
    """Typed arguments of a recipe, from the text after the colon of `--config=FILE.py:ARGUMENT`.

    `large,seq=512,cased` sets the first key of `defaults` to 'large', `seq` to the integer 512 and the boolean `cased`
    to True. A value takes the type of its default.

    Raises:
      UserError: an unknown name, a value of another type, or a bare word where none fits.
    """
    values = dict(defaults)
    kinds = {name: f'{name} ({type(default).__name__}, default {default!r})' for name, default in defaults.items()}
    known = ', '.join(kinds.values()) or 'no argument at all'
    for position, item in enumerate(filter(None, argument.split(','))):
        name, given, text = item.partition('=')
        if not given:
            if isinstance(defaults.get(name), bool):
                values[name] = True
                continue
            first = next(iter(defaults), None)
            if position > 0 or first is None or isinstance(defaults[first], bool):
                fix = suggestion(name, defaults) or 'write NAME=VALUE, or the name of a boolean'
                raise UserError('--config=FILE:ARGUMENT', f'{item!r}', known, fix)
            name, text = first, item
        if name not in defaults:
            fix = suggestion(name, defaults) or 'see the docstring of the recipe'
            raise UserError('--config=FILE:ARGUMENT', f'unknown name {name!r}', known, fix)
        values[name] = _convert(name, text, defaults[name])
    return types.SimpleNamespace(**values)


def _convert(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
        return type(default)(text)
    except (KeyError, ValueError):
        kind = type(default).__name__
        raise UserError(
            '--config=FILE:ARGUMENT', f'{name}={text}', f'a value of type {kind}', f'for example {name}={default}'
        ) from None
