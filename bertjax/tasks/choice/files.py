"""Reads multiple-choice questions from the files of SWAG and CODAH, or from rows with a list of endings."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Column, Record, TableLayout
from bertjax.tasks.reading.records import FORMATS, NESTED, Files, read_records
from bertjax.tasks.reading.texts import Blank, check_text, has_blank

# {layout: suffixes of its files}.
LAYOUTS = {'swag': ('.csv', *FORMATS), 'codah': ('.tsv',), 'jsonl': NESTED}
_ENDINGS = tuple(f'ending{i}' for i in range(4))
# {layout of a table: its columns}.
_COLUMNS = {
    'swag': ('gold-source', 'sent1', 'sent2', *_ENDINGS, 'label'),
    'codah': ('category', 'prompt', *_ENDINGS, 'label'),
}


@dataclasses.dataclass(frozen=True)
class ChoiceQuestion:
    """A context and C endings. Exactly one ending is correct.

    Attributes:
      where: the location, such as 'file:line'.
      context: the first sequence of the input.
      start: the common start of all endings; '' if there is none.
      endings: the C endings.
      label: the index of the correct ending; None if unknown.
      group: the group of the question in the report: SWAG's gold-source, or CODAH's category; else ''.
      fields: all fields of the row if the question is read for prediction; else None.
    """

    where: str
    context: str
    start: str
    endings: tuple[str, ...]
    label: int | None
    group: str = ''
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)


def read_questions(files: Files, layout: str, *, labels_required: bool = True) -> list[ChoiceQuestion]:
    """Reads the questions of files.

    Args:
      layout: 'swag' for the format of github.com/rowanz/swagaf, where test.csv has no `label`; 'codah' for the format
        of github.com/Websail-NU/CODAH, which has no header and no quoting; 'jsonl' for objects, see `parse_questions`.
      labels_required: Whether every question must have a label; otherwise, an empty label, NaN or -1 means 'unknown'.
    """
    names = _COLUMNS.get(layout, ())
    optional = ('gold-source',) if labels_required else ('gold-source', 'label')
    columns = tuple(Column((name,), required=name not in optional) for name in names)
    table = TableLayout(columns, names if layout == 'codah' else ())
    return list(parse_questions(read_records(files, layout=table), labels_required=labels_required))


def parse_questions(
    records: Iterable[Record], *, labels_required: bool, prediction: bool = False
) -> Iterator[ChoiceQuestion | Blank]:
    """Yields the questions of records with SWAG's or CODAH's columns, or with a list of endings.

    The second form is {"prompt": text, "endings": [texts], "label": number}. It may also have "start", the common start
    of all endings. The number of endings may vary between questions. Each question is yielded as soon as its record is
    read. For a `prediction`, labels are ignored, `fields` is the record, and a record with a blank text yields a
    `Blank`. For `labels_required`, see `read_questions`.
    """
    for where, fields in records:
        prompt = 'sent1' if 'sent1' in fields else 'prompt'
        if _ENDINGS[0] in fields:
            if fields.get(name := f'ending{len(_ENDINGS)}'):
                fix = "give JSON lines with a list 'endings' to configs/swag.py:jsonl"
                raise UserError(where, f'the column {name}', f'only the columns {_ENDINGS[0]} to {_ENDINGS[-1]}', fix)
            names, expected = (prompt, *_ENDINGS), 'text in the columns sent1, ' + ', '.join(_ENDINGS)
            endings = [*map(fields.get, _ENDINGS)]
            group = str(fields.get('gold-source', fields.get('category')) or '')
        else:
            names, expected = (prompt, 'endings'), '{"prompt": "text", "endings": ["text", "text"]}'
            endings, group = fields.get('endings'), ''
        if prediction and has_blank([fields[name] for name in names if name in fields]):
            yield Blank(where, 'an empty text', fields)
            continue
        context = fields.get(prompt)
        start = fields.get('sent2', fields.get('start')) or ''
        texts = [context, start, *endings] if isinstance(endings, list) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise UserError(where, json.dumps(fields, ensure_ascii=False)[:80], expected, 'correct the record')
        if len(endings) < 2:
            raise UserError(where, f'{len(endings)} endings', 'two or more', 'add endings to choose from')
        for name, text in {'context': context, **{f'ending {i}': text for i, text in enumerate(endings)}}.items():
            if not text.strip():
                raise UserError(where, f'an empty {name}', 'text', 'correct or remove the row')
        check_text(' '.join(texts), where)
        label = (
            None if prediction else _label(fields.get('label'), len(endings), where, labels_required=labels_required)
        )
        yield ChoiceQuestion(where, context, start, tuple(endings), label, group, fields if prediction else None)


def _label(value: Any, endings: int, where: str, *, labels_required: bool) -> int | None:
    label = value.strip() if isinstance(value, str) else json.dumps(value)
    expected = f'0 to {endings - 1}'
    if not labels_required and label in ('', 'null', 'NaN', 'nan', '-1'):
        return None
    if label in ('', 'null', 'NaN'):
        raise UserError(where, 'no label', f'{expected} as label', 'correct the row')
    if label not in map(str, range(endings)):
        raise UserError(where, f'the label {label[:40]!r}', expected, 'correct the row')
    return int(label)
