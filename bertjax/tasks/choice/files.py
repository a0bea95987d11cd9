"""Reads multiple-choice questions from the files of SWAG and CODAH, or from rows with a list of endings."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Column, Record, TableLayout
from bertjax.tasks.reading.records import FORMATS, NESTED, Files, read_records, read_rows
from bertjax.tasks.reading.texts import check_text
from bertjax.text.hash_split import hash64, hash_threshold

# {layout: suffixes of its files}.
LAYOUTS = {'swag': ('.csv', *FORMATS), 'codah': ('.tsv',), 'jsonl': NESTED}
_ENDINGS = tuple(f'ending{i}' for i in range(4))
# {layout: columns}, in the order: group, context, start of the endings (only SWAG), endings, label.
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


def read_table(files: Files, layout: str, *, labeled: bool = True) -> list[ChoiceQuestion]:
    """Reads the questions of tables.

    Args:
      layout: 'swag' for the format of github.com/rowanz/swagaf, where test.csv has no `label`; 'codah' for the format
        of github.com/Websail-NU/CODAH, which has no header and no quoting.
    """
    optional = {'gold-source'} if labeled else {'gold-source', 'label'}
    columns = tuple(Column((name,), required=name not in optional) for name in _COLUMNS[layout])
    questions = []
    for row in read_rows(files, TableLayout(columns, _COLUMNS[layout] if layout == 'codah' else ())):
        _check_endings(row.fields, row.where)
        group, context, *start, a, b, c, d, label = row.values
        known = (label or '') if labeled else None
        questions.append(_question(row.where, context, ''.join(filter(None, start)), (a, b, c, d), known, group or ''))
    return questions


def parse_questions(records: Iterable[Record], *, labeled: bool, keep_fields: bool = False) -> Iterator[ChoiceQuestion]:
    """Yields the questions of objects with SWAG's columns, or {"prompt": text, "endings": [texts], "label": number}.

    An object may also have "start", the common start of all endings. The number of endings may vary between questions.
    Each question is yielded as soon as its object is read. With `keep_fields`, `fields` is the object.
    """
    for line, record in records:
        if _ENDINGS[0] in record:
            _check_endings(record, line)
            prompt, start, endings = record.get('sent1'), record.get('sent2') or '', [*map(record.get, _ENDINGS)]
            expected = 'text in the columns sent1, ' + ', '.join(_ENDINGS)
        else:
            prompt, start, endings = record.get('prompt'), record.get('start') or '', record.get('endings')
            expected = '{"prompt": "text", "endings": ["text", "text"]}'
        valid_endings = isinstance(endings, list) and all(isinstance(ending, str) for ending in endings)
        if not (isinstance(prompt, str) and isinstance(start, str) and valid_endings):
            raise UserError(line, json.dumps(record, ensure_ascii=False)[:80], expected, 'correct the record')
        if len(endings) < 2:
            raise UserError(line, f'{len(endings)} endings', 'two or more', 'add endings to choose from')
        for text in (prompt, start, *endings):
            check_text(text, line)
        label = json.dumps(record.get('label')) if labeled else None
        yield _question(line, prompt, start, endings, label, '', record if keep_fields else None)


def _check_endings(fields: Mapping[str, Any], where: str) -> None:
    """Raises a UserError if a row with SWAG's columns has more than four endings."""
    if fields.get(name := f'ending{len(_ENDINGS)}'):
        fix = "give JSON lines with a list 'endings' to configs/swag.py:jsonl"
        raise UserError(where, f'the column {name}', f'only the columns {_ENDINGS[0]} to {_ENDINGS[-1]}', fix)


def _question(
    where: str,
    context: str | None,
    start: str,
    endings: Sequence[str | None],
    label: str | None,
    group: str,
    fields: Mapping[str, Any] | None = None,
) -> ChoiceQuestion:
    names = ['context', *(f'ending {i}' for i in range(len(endings)))]
    for name, text in zip(names, (context, *endings), strict=True):
        if not (text or '').strip():
            raise UserError(where, f'an empty {name}', 'text', 'correct or remove the row')
    label = None if label is None else label.strip().strip('"')
    if label in ('', 'null'):
        raise UserError(where, 'no label', f'0 to {len(endings) - 1} as label', 'correct the row')
    if label is not None and label not in map(str, range(len(endings))):
        raise UserError(where, f'the label {label[:40]!r}', f'0 to {len(endings) - 1}', 'correct the row')
    return ChoiceQuestion(where, context, start, tuple(endings), None if label is None else int(label), group, fields)


def has_labels(files: Files) -> bool:
    """Whether the first row of the files has a label. An empty label and -1 mean that the label is unknown."""
    label = next(read_records(files)).fields.get('label')
    return str(label if label is not None else '').strip() not in ('', '-1')


def split_by_hash(
    questions: Sequence[ChoiceQuestion], split: str, dev_share: float, test_share: float
) -> list[ChoiceQuestion]:
    """Returns the questions of a single file that belong to a split.

    The split of a question depends only on its context, so that questions with the same context are in the same split.
    The context is lower-cased, and its white space is replaced by single spaces. The first 8 bytes of the SHA-256 hash
    of the result, scaled to [0, 1), select the split. The shares are the expected fractions of distinct contexts.
    """
    test, dev = hash_threshold(test_share), hash_threshold(test_share + dev_share)

    def split_of(question: ChoiceQuestion) -> str:
        digest = hashlib.sha256(' '.join(question.context.lower().split()).encode()).digest()
        return 'test' if hash64(digest) < test else 'dev' if hash64(digest) < dev else 'train'

    return [question for question in questions if split_of(question) == split]
