"""Writes docs/keys.md: tables of all config keys, made from their declarations.

python -m bertjax.config.tables > docs/keys.md
"""

import re
from collections.abc import Iterable, Mapping

from bertjax.config.distillation import TaskDistillationKeys
from bertjax.config.finetuning import FinetuningKeys
from bertjax.config.inference import INFERENCE_KEYS, TextKeys
from bertjax.config.plain import to_plain
from bertjax.config.pretraining import PhaseKeys, PretrainingKeys
from bertjax.config.schema import TRAINING, Change, Key, keys_of
from bertjax.tasks.registry import KINDS, options

_INTRODUCTION = """# Config keys

Set a key with `--config.KEY=VALUE`, or in a recipe. The defaults come from the base configs; `--help RECIPE` shows
the values of a recipe. `python -m bertjax.config.tables` writes this page.

A pre-training has the keys of "Every training" and "Pre-training". A fine-tuning has the keys of "Every training",
"Fine-tuning" and its task. A verb at the end of the page has the keys of "Using a finished model" and its own. `int`
means a whole number. An empty cell of "values" means any text. A task resumes only with the same training rows;
another `seq_len` can alter them. The column "may change" says whether a resumed run may have another value:

| | |
|---|---|
"""
# {pattern in the description of a range: its replacement}.
_SHORTER = {
    '^a whole number from ': 'int: ',
    '^(a number from|a number(?= above)|one of) ': '',
    r'(?<=\d) to (?=\d)': '–',
    '^True or False$': 'bool',
    '^text$': '',
    '^text that is not empty$': 'not empty',
    r'a number of steps up to [\d,]+\d': 'steps',
    '^a list, each entry text that is not empty$': 'list of texts',
    '^a list, each entry (a )?': 'list: ',
}


def page() -> str:
    """Returns the text of docs/keys.md."""
    shared = {name: key for name, key in keys_of(TextKeys).items() if name != 'run'}
    parts = [_INTRODUCTION + '\n'.join(_row(change.value) for change in Change)]
    pretraining, finetuning = keys_of(PretrainingKeys), keys_of(FinetuningKeys)
    both = {name: key for name, key in pretraining.items() if finetuning.get(name) == key}
    parts += _section('Every training', 'The keys that pre-training and fine-tuning share.', both)
    own = {name: key for name, key in pretraining.items() if name not in both}
    parts += _section('Pre-training', PretrainingKeys.__doc__, own)
    parts += _section('Phases', 'An entry of `phases`.', keys_of(PhaseKeys, 'phases.', TRAINING))
    own = {name: key for name, key in finetuning.items() if name not in both}
    parts += _section('Fine-tuning', FinetuningKeys.__doc__, own)
    tasks: dict[str, str] = {}  # {row: the first task that has it}
    for kind in KINDS:
        known = {f'task.{name}': key for name, key in options(kind).items()}
        first = {name: tasks.setdefault(_key_row(name, key, key.about), kind) for name, key in known.items()}
        about = ' '.join(
            f'As in {task}: {", ".join(f"`{name}`" for name in known if first[name] == task)}.'
            for task in dict.fromkeys(first.values())
            if task != kind
        )
        parts += _section(f'The task {kind}', about, {name: known[name] for name in known if first[name] == kind})
    about = '`distill.num_layers` and the keys below it are for tasks only.'
    parts += _section('Distillation', about, keys_of(TaskDistillationKeys, 'distill.', TRAINING))
    about = (
        '`convert` has only the first two. `minimal_pairs` lacks `max_length`. In `minimal_pairs` and '
        '`mine_negatives`, `config.input` cannot be `-`.'
    )
    parts += _section('Using a finished model', about, shared, changes=False)
    for verb, record in INFERENCE_KEYS.items():
        verb_keys = {name: key for name, key in keys_of(record).items() if name.startswith(f'{verb}.')}
        parts += _section(f'The verb {verb}', '', verb_keys, changes=False)
    return '\n'.join(parts)


def _section(title: str, about: str | None, keys: Mapping[str, Key], *, changes: bool = True) -> list[str]:
    head = ('key', 'default', 'description', 'values', *(['may change'] if changes else []))
    text = ' '.join((about or '').partition('Attributes:')[0].split())
    lines = ['', f'## {title}', '', *([text, ''] if text else [])]
    lines += [_row(head), _row(['---'] * len(head))]
    first_names: dict[str, str] = {}  # {long description: the first key that has it}
    for name, key in keys.items():
        first = first_names.setdefault(key.about, name) if len(key.about) > 40 else name
        lines.append(_key_row(name, key, key.about if first == name else f'see `{first}`', changes=changes))
    return lines


def _key_row(name: str, key: Key, about: str, *, changes: bool = True) -> str:
    words = key.allowed.words
    for pattern, short in _SHORTER.items():
        words = re.sub(pattern, short, words)
    cells = (f'`{name}`', f'`{_format_default(key.default)}`', about, words)
    return _row((*cells, *([key.change.value[0]] if changes else [])))


def _row(cells: Iterable[str]) -> str:
    escaped = [cell.replace('|', '\\|') for cell in cells]
    return f'| {" | ".join(escaped)} |'


def _format_default(value: object) -> str:
    """Formats a default as it is written on the command line."""
    value = to_plain(value)
    if isinstance(value, float):
        return f'{value:g}'
    if isinstance(value, list):
        value = tuple(value)
    return "''" if value == '' else str(value)


if __name__ == '__main__':
    print(page())
