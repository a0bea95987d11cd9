"""Questions with several endings: the files of SWAG and of CODAH, and JSON lines."""

import csv
import dataclasses
import hashlib
import io
import json
from collections.abc import Iterator, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.tasks.columns import read_text, split_lines

LAYOUTS = ('swag', 'codah', 'jsonl')
SPLITS = ('train', 'dev', 'test')
_ENDINGS = tuple(f'ending{i}' for i in range(4))
_SWAG = ('sent1', 'sent2', *_ENDINGS)
_CODAH_COLUMNS = 7


@dataclasses.dataclass(frozen=True)
class Question:
    """A context and C endings, one of which is right.

    Attributes:
      where: 'file:line'.
      context: the first sequence.
      start: how the second begins, whatever the ending; '' for nothing.
      endings: C texts.
      label: number of the right one; None where unknown.
      group: what the report counts apart: SWAG's gold-source, CODAH's category.
    """

    where: str
    context: str
    start: str
    endings: tuple[str, ...]
    label: int | None
    group: str = ''


def read_swag(text: str, where: str, *, labelled: bool) -> list[Question]:
    """A CSV of github.com/rowanz/swagaf, whose columns go by their names; a test file has no `label`.

    Raises:
      UserError: a column that is missing, a row with other fields than the header, a wrong label, an empty text.
    """
    rows = _csv_rows(text, where)
    first, header = next(rows, (1, []))
    needed = (*_SWAG, 'label') if labelled else _SWAG
    missing = [name for name in needed if name not in header]
    if missing:
        mend = 'take the official file'
        if any(name.startswith('distractor') for name in header):
            mend = 'take train.csv and val.csv, not train_full.csv and val_full.csv'
        found = f'the columns {", ".join(header)}' if header else 'no header'
        raise UserError(f'{where}:{first}', found[:200], f'also {", ".join(missing)}', mend)
    questions = []
    for number, fields in rows:
        line = f'{where}:{number}'
        if len(fields) != len(header):
            mend = 'mend the row: a text with commas or quotes stands in quotes, with its own quotes doubled'
            raise UserError(line, f'{len(fields)} fields', f'{len(header)}, as in the header', mend)
        row = dict(zip(header, fields, strict=True))
        endings = tuple(row[name] for name in _ENDINGS)
        label = _label(row['label'], len(endings), line) if labelled else None
        questions.append(_question(line, row['sent1'], row['sent2'], endings, label, row.get('gold-source', '')))
    return _some(questions, where)


def _csv_rows(text: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """(number of its first line, fields) of each row that is not blank."""
    reader = csv.reader(io.StringIO(text, newline=''), strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        mend = 'put the text in quotes and double the quotes in it, as in \'He said ""no"".\''
        raise UserError(f'{where}:{line}', f'a row that cannot be read ({error})', 'CSV', mend) from None


def read_codah(text: str, where: str) -> list[Question]:
    """A TSV of github.com/Websail-NU/CODAH: category, prompt, four endings, label; no header and no quoting.

    Raises:
      UserError: another number of columns, a wrong label, an empty text.
    """
    questions = []
    for number, row in enumerate(split_lines(text), 1):
        if not row.strip():
            continue
        line, fields = f'{where}:{number}', row.split('\t')
        if len(fields) != _CODAH_COLUMNS:
            expected = f'{_CODAH_COLUMNS}: category, prompt, four endings, label'
            raise UserError(line, f'{len(fields)} columns', expected, 'mend the row; columns are separated by tabs')
        group, prompt, *endings, label = fields
        questions.append(_question(line, prompt, '', tuple(endings), _label(label, len(endings), line), group))
    return _some(questions, where)


def read_json_lines(text: str, where: str, *, labelled: bool) -> list[Question]:
    """Objects {"prompt": text, "endings": [texts], "label": number}, and as one likes "start", with which every ending
    begins.

    Raises:
      UserError: what is no such object, another number of endings than in the first line, a wrong label.
    """
    questions: list[Question] = []
    for number, row in enumerate(split_lines(text), 1):
        if not row.strip():
            continue
        line = f'{where}:{number}'
        try:
            record = json.loads(row)
        except ValueError as error:
            raise UserError(line, f'no JSON ({error})', 'an object in one line', 'mend the line') from None
        found = record if isinstance(record, dict) else {}
        prompt, start, endings = found.get('prompt'), found.get('start', ''), found.get('endings')
        texts = isinstance(endings, list) and all(isinstance(ending, str) for ending in endings)
        if not (isinstance(prompt, str) and isinstance(start, str) and texts):
            expected = '{"prompt": "text", "endings": ["text", "text"]}'
            raise UserError(line, row[:80], expected, 'mend the line')
        if questions and len(endings) != len(questions[0].endings):
            expected = f'{len(questions[0].endings)}, as in {questions[0].where}'
            raise UserError(line, f'{len(endings)} endings', expected, 'predict files with other numbers by themselves')
        if len(endings) < 2:
            raise UserError(line, f'{len(endings)} endings', 'two or more', 'add endings to choose from')
        label = _label(str(found.get('label')), len(endings), line) if labelled else None
        questions.append(_question(line, prompt, start, tuple(endings), label, ''))
    return _some(questions, where)


def _question(
    where: str, context: str, start: str, endings: tuple[str, ...], label: int | None, group: str
) -> Question:
    names = ['context', *(f'ending {i}' for i in range(len(endings)))]
    for name, text in zip(names, (context, *endings), strict=True):
        if not text.strip():
            raise UserError(where, f'an empty {name}', 'text', 'mend or remove the row')
    return Question(where, context, start, endings, label, group)


def _label(text: str, choices: int, where: str) -> int:
    if text.strip() in map(str, range(choices)):
        return int(text)
    raise UserError(where, f'the label {text[:40]!r}', f'0 to {choices - 1}', 'mend the row')


def _some(questions: list[Question], where: str) -> list[Question]:
    if not questions:
        raise UserError(where, 'no question', 'one a row', 'check the file')
    return questions


def has_labels(path: epath.Path) -> bool:
    """Whether a test file has labels: in the header of a CSV, in the first line of JSON lines; a .tsv always."""
    text = read_text(path)
    if path.suffix == '.csv':
        return 'label' in next(_csv_rows(text, str(path)), (1, []))[1]
    return path.suffix == '.tsv' or '"label"' in text.lstrip().partition('\n')[0]


def find_file(data: str, split: str, suffix: str) -> epath.Path | None:
    """The file of a split in the folder, such as val.csv for dev; None where none is."""
    names = ('dev', 'val', 'valid') if split == 'dev' else (split,)
    return next((path for name in names if (path := folder(data) / f'{name}.{suffix}').exists()), None)


def folder(data: str) -> epath.Path:
    """config.data.

    Raises:
      UserError: it is not given, or not there.
    """
    path = epath.Path(data).expanduser()
    if not data or not path.is_dir():
        mend = 'give --config.data=DIR; tensorflow-datasets does not have these data sets'
        raise UserError('config.data', repr(data), 'a folder with the files', mend)
    return path


def split_by_hash(questions: Sequence[Question], split: str, dev_share: float, test_share: float) -> list[Question]:
    """The questions of one split of a file that has none of its own.

    Where a question goes depends on its context alone, so that questions with the same stay together: SHA-256 of the
    lower-cased context with single blanks, its first 8 bytes as a share of all.
    """
    chosen = []
    for question in questions:
        digest = hashlib.sha256(' '.join(question.context.lower().split()).encode()).digest()
        share = int.from_bytes(digest[:8], 'big') / 2**64
        side = 'test' if share < test_share else 'dev' if share < test_share + dev_share else 'train'
        if side == split:
            chosen.append(question)
    return chosen
