"""Questions with several endings: the files of SWAG and of CODAH, and JSON lines."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.paths import at_most_one, data_directory, existing_files
from bertjax.tasks.reading.json_rows import objects_of_lines
from bertjax.tasks.reading.tables import Column, Layout, number_lines, read_table
from bertjax.tasks.reading.texts import checked_text, read_text
from bertjax.text.hash_split import hash64, hash_threshold

LAYOUTS = ('swag', 'codah', 'jsonl')
SPLITS = ('train', 'dev', 'test')
_ENDINGS = tuple(f'ending{i}' for i in range(4))


@dataclasses.dataclass(frozen=True)
class Question:
    """A context and C endings, one of which is right.

    Attributes:
      where: 'file:line'.
      context: the first sequence.
      start: the common beginning of all second sequences; '' for none.
      endings: C texts.
      label: number of the right ending; None where unknown.
      group: by which the report breaks down the accuracy: SWAG's gold-source, CODAH's category.
    """

    where: str
    context: str
    start: str
    endings: tuple[str, ...]
    label: int | None
    group: str = ''


def read_swag(path: epath.Path, *, labelled: bool) -> list[Question]:
    """A CSV of github.com/rowanz/swagaf, with columns by name; test.csv has no `label`.

    Raises:
      UserError: see tables.py:read_table; a wrong label, an empty text.
    """
    names = ('sent1', 'sent2', *_ENDINGS)
    columns = [Column((name,)) for name in names]
    layout = Layout((*columns, Column(('label',), required=labelled), Column(('gold-source',), required=False)))
    questions = []
    for where, (context, start, *endings, label, group) in read_table(path, layout):
        questions.append(_question(where, context, start, endings, label, group or ''))
    return questions


def read_codah(path: epath.Path) -> list[Question]:
    """A TSV of github.com/Websail-NU/CODAH: category, prompt, four endings, label; no header and no quoting.

    Raises:
      UserError: see tables.py:read_table; a wrong label, an empty text.
    """
    names = ('category', 'prompt', *_ENDINGS, 'label')
    layout = Layout(tuple(Column((name,)) for name in names), bare=names)
    questions = []
    for where, (group, prompt, *endings, label) in read_table(path, layout):
        questions.append(_question(where, prompt, '', endings, label, group))
    return questions


def read_json_lines(text: str, where: str, *, labelled: bool) -> list[Question]:
    """Objects {"prompt": text, "endings": [texts], "label": number}, optionally with "start", the beginning that all
    endings share.

    The number of endings may differ from question to question.

    Raises:
      UserError: any other object, fewer than two endings, a wrong label.
    """
    questions: list[Question] = []
    lines = [(number, line) for number, line in number_lines(text) if line.strip()]
    for line, record in objects_of_lines(lines, where):
        prompt, start, endings = record.get('prompt'), record.get('start', ''), record.get('endings')
        texts = isinstance(endings, list) and all(isinstance(ending, str) for ending in endings)
        if not (isinstance(prompt, str) and isinstance(start, str) and texts):
            expected = '{"prompt": "text", "endings": ["text", "text"]}'
            raise UserError(line, json.dumps(record, ensure_ascii=False)[:80], expected, 'correct the line')
        if len(endings) < 2:
            raise UserError(line, f'{len(endings)} endings', 'two or more', 'add endings to choose from')
        for text in (prompt, start, *endings):
            checked_text(text, line)
        label = json.dumps(record.get('label')) if labelled else None
        questions.append(_question(line, prompt, start, endings, label, ''))
    if not questions:
        raise UserError(where, 'no question', 'one a line', 'check the file')
    return questions


def _question(where: str, context: str, start: str, endings: Sequence[str], label: str | None, group: str) -> Question:
    names = ['context', *(f'ending {i}' for i in range(len(endings)))]
    for name, text in zip(names, (context, *endings), strict=True):
        if not text.strip():
            raise UserError(where, f'an empty {name}', 'text', 'correct or remove the row')
    if label is not None and label.strip() not in map(str, range(len(endings))):
        raise UserError(where, f'the label {label[:40]!r}', f'0 to {len(endings) - 1}', 'correct the row')
    return Question(where, context, start, tuple(endings), None if label is None else int(label), group)


def has_labels(path: epath.Path) -> bool:
    """Whether a test file has labels, by the header of a CSV or the first of JSON lines; a .tsv always has."""
    if path.suffix == '.csv':
        layout = Layout((Column(('sent1',)), Column(('label',), required=False)))
        return next(read_table(path, layout)).values[1] is not None
    return path.suffix == '.tsv' or '"label"' in read_text(path).lstrip().partition('\n')[0]


def find_file(data: str, split: str, suffix: str) -> epath.Path | None:
    """The file of a split in the folder, such as val.csv for dev; None if there is none.

    Raises:
      UserError: several.
    """
    names = ('dev', 'val', 'valid') if split == 'dev' else (split,)
    found = list(existing_files(folder(data), (f'{name}.{suffix}' for name in names)))
    return at_most_one(found, data, split, 'move the others away')


def folder(data: str) -> epath.Path:
    """config.data.

    Raises:
      UserError: it is not given, or does not exist.
    """
    mend = 'give --config.data=DIR; tensorflow-datasets does not have these data sets'
    return data_directory(data, 'a folder with the files', mend)


def split_by_hash(questions: Sequence[Question], split: str, dev_share: float, test_share: float) -> list[Question]:
    """The questions of one split of a file that has no splits of its own.

    The split of a question depends on its context only, so that questions with the same context stay together: the
    first 8 bytes of the SHA-256 of the lower-cased context with single blanks, as a fraction of their range.
    """
    test, dev = hash_threshold(test_share), hash_threshold(test_share + dev_share)
    chosen = []
    for question in questions:
        digest = hashlib.sha256(' '.join(question.context.lower().split()).encode()).digest()
        side = 'test' if hash64(digest) < test else 'dev' if hash64(digest) < dev else 'train'
        if side == split:
            chosen.append(question)
    return chosen
