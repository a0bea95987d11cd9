"""Make the base configs that recipes change, for pre-training, tasks, distillation and finished models."""

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
    """Returns the recipe of BERT in one phase; `changes` replace top-level keys.

    See `config.pretraining.PretrainingKeys`.
    """
    config = as_config(PretrainingKeys())
    config.model.update(SIZES[size])
    for key, value in changes.items():
        config[key] = value
    return config


def phase(**values: Any) -> ConfigDict:
    """Returns an entry of config.phases: `steps`, a duration (percentages of config.steps), and the keys that differ
    from those of the run. See `config.pretraining.PhaseKeys`."""
    return _changed(as_config(PhaseKeys()), values)


def two_phases(**second: Any) -> tuple[ConfigDict, ConfigDict]:
    """Returns BERT's phases: 90 % of the steps with 128 positions, the rest with 512 to train the position embeddings
    (arXiv 1810.04805, appendix A.2)."""
    return (
        phase(steps='90%', seq_len=128, max_predictions=20),
        phase(steps='10%', seq_len=512, max_predictions=80, **second),
    )


def finetuning_config(kind: str, **task: Any) -> ConfigDict:
    """Returns the base of every recipe for a task; see `config.finetuning.FinetuningKeys`.

    Args:
      kind: The kind of the task.
      **task: The options of config.task that differ from their defaults.
    """
    defaults = {name: option.default for name, option in options(kind).items()} if kind in KINDS else {}
    return as_config(FinetuningKeys(task={'kind': kind, **defaults, **task}))


def sweep(**values: tuple) -> ConfigDict:
    """Returns config.sweep; see `config.finetuning.SweepKeys`."""
    return _changed(as_config(SweepKeys()), values)


def distillation(config: ConfigDict, **values: Any) -> ConfigDict:
    """Adds config.distill to a recipe of a pre-training or a task, so that a student learns from a teacher.

    `values` replace keys of config.distill; see `config.distillation.DistillationKeys`.
    """
    config.run = 'distill'
    keys = TaskDistillationKeys() if 'task' in config else DistillationKeys()
    config.distill = _changed(as_config(keys), values)
    return config


def using_config(verb: str, **options: Any) -> ConfigDict:
    """Returns the base of every recipe for a verb that uses a finished model; `options` replace keys of config.VERB.

    See `config.using`.
    """
    config = as_config(USING[verb]())
    _changed(config[verb], options)
    return config


def as_config(record: Any) -> ConfigDict:
    """Returns the ConfigDict of a dataclass of keys, without groups that are None.

    A key whose field declares several types accepts all of them.
    """
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
    """Sets values of a config and returns it; an unknown key is added too, so that `check_ranges` reports it."""
    for key, value in values.items():
        config[key] = value
    return config


def parse_argument(argument: str, **defaults: Any) -> types.SimpleNamespace:
    """Parses the typed arguments of a recipe from the text after the colon of `--config=FILE.py:ARGUMENT`.

    `large,seq=512,cased` sets the first key of `defaults` to 'large', `seq` to the integer 512 and the boolean `cased`
    to True. A value takes the type of its default.

    Raises:
      UserError: A name is unknown, a value has another type, or a bare word is not allowed.
    """
    values = dict(defaults)
    kinds = {name: f'{name} ({type(default).__name__}, default {default!r})' for name, default in defaults.items()}
    known = ', '.join(kinds.values()) or 'no argument at all'
    for position, item in enumerate(filter(None, argument.split(','))):
        name, equals, text = item.partition('=')
        if not equals:
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
