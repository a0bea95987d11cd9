"""Declares config keys as fields of dataclasses.

    batch_size: int = key(32, ROWS, 'rows per update, over all devices', TRAINING)

`recipes.as_config` converts such a dataclass to the ConfigDict of a recipe, and `from_config` converts a config to the
frozen settings of a run. Value checks, the rules for resuming, --help and docs/keys.md get the keys from `keys_of`.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bertjax.config.ranges import FLAG, Range, check_value, text

Record = TypeVar('Record')


class Change(enum.Enum):
    """Whether a resumed run may change a key. docs/keys.md shows the word and the meaning of each member."""

    STATE = 'never', 'the key decides the shape or the meaning of the saved state'
    TRAINING = 'unfinished', 'the change is reported; a finished run refuses it'
    RUN = 'yes', 'the change is reported; a sweep or a finished task refuses it'
    MACHINE = 'everywhere', 'the change is reported; a sweep or a benchmark allows it as well'
    OUTPUT = 'export', 'the export at the end of the run uses the new value; a sweep refuses the change'
    VERB = 'always', 'no training depends on the key'  # so the change is not reported, like that of OUTPUT


STATE, TRAINING, RUN, MACHINE, OUTPUT, VERB = Change


class Trained(enum.Enum):
    """The source of the value of a key in the verbs evaluate, predict, export and baseline."""

    RUN = "the run's config.json"
    SAME = "the run's config.json; another value on the command line is refused or reported"
    COMMAND_LINE = "the run's config.json, unless the command line sets the key"
    RECIPE = 'the command line and its recipe'


_, SAME, COMMAND_LINE, RECIPE = Trained


@dataclasses.dataclass(frozen=True)
class Key:
    """The declaration of a key.

    Attributes:
      default: The value in a base config.
      allowed: The values that the key may have.
      about: One line of documentation.
      change: Whether a resumed run may have another value.
      trained: The source of the value in some verbs, see `Trained`.
      named: Whether the argument of a recipe sets the key without its name, as in configs/glue.py:rte.
      used_with: The name of another key, followed by its values for which this key has an effect. The other key must
        have an effect, too. A name without values means all values except 0 and ''. () means that this key always has
        an effect.
    """

    default: Any
    allowed: Range
    about: str
    change: Change = Change.RUN
    trained: Trained = Trained.RUN
    named: bool = False
    used_with: tuple[Any, ...] = ()


def key(
    default: Any,
    allowed: Range | None = None,
    about: str = '',
    change: Change | None = None,
    trained: Trained | None = None,
    *,
    used_with: tuple[Any, ...] = (),
    **metadata: Any,
) -> Any:
    """Returns a dataclass field that declares a config key; see Key.

    Args:
      allowed: The range; None allows True and False if the default is a bool, and any text if it is a string.
      about: One line of documentation; '' means the field's entry in the docstring of its class.
      change, trained: None means the value that the group of the key declares, or else the default of Key.
      used_with: The other key must be in the same group.
      **metadata: Further entries of the field's metadata.
    """
    declared = {'range': allowed, 'about': about, 'change': change, 'trained': trained, 'used_with': used_with}
    return dataclasses.field(default=default, metadata={**declared, **metadata})


def group(default: Any, *, record: type | None = None, entry: type | None = None, **metadata: Any) -> Any:
    """Returns a dataclass field for a group of keys, or for a list of groups of the class `entry`.

    Args:
      default: An instance with the default of each key, or () for a list of groups. None means that only some recipes
        have the group. Its class is then `record`.
      **metadata: `change` and `trained` for the keys of the group that do not declare these themselves.
    """
    record = record or entry or type(default)
    return dataclasses.field(default=default, metadata={'group': record, 'is_list': entry is not None, **metadata})


def override(record: type, name: str, default: Any = None, **metadata: Any) -> Any:
    """Returns a copy of the field `name` of `record`, updated with `metadata` and, unless it is None, `default`."""
    (field,) = (field for field in dataclasses.fields(record) if field.name == name)
    about = metadata.get('about') or _about(record, field)
    default = field.default if default is None else default
    return dataclasses.field(default=default, metadata={**field.metadata, **metadata, 'about': about})


def subset(record: type, keep: Callable[[dataclasses.Field], bool], **defaults: Any) -> Any:
    """Returns an instance of a new dataclass with the fields of `record` that `keep` accepts.

    `defaults` replace the defaults of some of these fields.
    """
    fields = [
        (field.name, field.type, override(record, field.name, defaults.get(field.name)))
        for field in dataclasses.fields(record)
        if keep(field)
    ]
    return dataclasses.make_dataclass(f'{record.__name__}Keys', fields, frozen=True)()


def keys_of(
    record: Any, prefix: str = '', change: Change | None = None, trained: Trained | None = None
) -> dict[str, Key]:
    """Returns {name: key} for a dataclass. The name of a key in a group is 'GROUP.KEY'.

    Fields without a default and groups that are None have no key.

    Args:
      record: The class, or an instance whose values are the defaults.
      change, trained: The values for keys that do not declare these themselves; None means the defaults of Key.
    """
    keys: dict[str, Key] = {}
    for field in dataclasses.fields(record):
        default = field.default if isinstance(record, type) else getattr(record, field.name)
        group_class, is_list = field.metadata.get('group'), field.metadata.get('is_list')
        if default is dataclasses.MISSING or (group_class and default is None):
            continue
        options = {
            name: value
            for name, default_option in (('change', change), ('trained', trained), ('named', False))
            if (value := field.metadata.get(name) or default_option)
        }
        name = f'{prefix}{field.metadata.get("key", field.name)}'
        if group_class and not is_list:
            keys |= keys_of(default, f'{name}.', **options)
        else:
            if used_with := field.metadata.get('used_with'):
                options['used_with'] = (f'{prefix}{used_with[0]}', *used_with[1:])
            keys[name] = Key(default, _range(record, field), _about(record, field), **options)
    return keys


def _range(record: Any, field: dataclasses.Field) -> Range:
    if field.metadata.get('range'):
        return field.metadata['range']
    if field.metadata.get('is_list'):
        return Range('a list of dicts of keys', lambda value: value in ([], ()))
    if isinstance(field.default, bool):
        return FLAG
    if isinstance(field.default, str):
        return text()
    name = getattr(record, '__name__', type(record).__name__)
    raise TypeError(f'{name}.{field.name} declares no range: see bertjax/config/schema.py')


def _about(record: Any, field: dataclasses.Field) -> str:
    """Returns the documentation of a field: its `about`, or its entry in the docstring of its class or a base class.

    An entry may document several fields: `text_a, text_b: names of columns.`
    """
    if field.metadata.get('about'):
        return field.metadata['about']
    for kind in (record if isinstance(record, type) else type(record)).__mro__:
        for entry in re.split(r'\n {2,6}(?=\w[\w, ]*: )', (kind.__doc__ or '').partition('Attributes:')[2]):
            names, _, about = entry.partition(': ')
            if field.name in names.strip().split(', ') and not about.startswith('see '):
                return ' '.join(about.split('\n\n')[0].split())
    return ''


def check_fields(record: Any, prefix: str) -> None:
    """Raises a UserError for the first field of a dataclass whose value is outside its range."""
    for field in dataclasses.fields(record):
        if field.default is not dataclasses.MISSING:
            name = field.metadata.get('key', f'{prefix}.{field.name}')
            check_value(name, getattr(record, field.name), _range(type(record), field), field.default)


def from_config(record: type[Record], config: Mapping[str, Any]) -> Record:
    """Makes frozen settings, an instance of `record`, from a config. A key that the config lacks keeps its default."""
    values = {}
    for field in dataclasses.fields(record):
        if field.name not in config:
            continue
        value, group_class = config[field.name], field.metadata.get('group')
        if field.metadata.get('is_list'):
            value = tuple(from_config(group_class, entry) for entry in value)
        elif group_class:
            value = from_config(group_class, value)
        elif hasattr(value, 'items'):
            value = dict(value)
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return record(**values)
