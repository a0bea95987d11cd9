"""Questions of SQuAD: from JSON in the layout of v1.1 and v2.0, from JSON lines, from tensorflow-datasets."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from bertjax.errors import UserError
from bertjax.tasks.reading.sources import read_dataset
from bertjax.tasks.reading.texts import checked_text, read_text

_KINDS = {str: 'a string', int: 'a whole number', bool: 'true or false', list: 'a list', dict: 'an object'}
_FORM = 'the layout of SQuAD, {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers"}]}]}]}'
_MEND = 'correct the file, or take the original'


@dataclasses.dataclass(frozen=True)
class Question:
    """A question about a text.

    Attributes:
      id: unique in its file.
      question, context: texts as given.
      answers: texts that annotators marked; none where the context has no answer; None where unknown.
      starts: the character of the context where each answer begins.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    starts: tuple[int, ...] = ()


def read_questions(path: epath.PathLike, *, answerable: bool, labels: str) -> list[Question]:
    """Reads a file, plain or gzipped: see `parse_questions`.

    Raises:
      UserError: no such file, damaged, not UTF-8, or not in the layout.
    """
    return parse_questions(read_text(path), str(path), answerable=answerable, labels=labels)


def parse_questions(text: str, where: str, *, answerable: bool, labels: str) -> list[Question]:
    """The questions of SQuAD's JSON.

    Args:
      text: the JSON.
      where: its file, for messages, which add the path within (JSON has no lines).
      answerable: whether every labelled question must have an answer (v1.1).
      labels: 'needed'; 'optional', where all questions have answers or none does; 'ignored'.

    Raises:
      UserError: not JSON, or not in the layout.
    """
    root = load_json(text, where)
    if not isinstance(root, dict):
        raise UserError(where, f'a JSON {type(root).__name__}', _FORM, _MEND)
    questions: list[Question] = []
    seen: dict[str, str] = {}
    unlabelled = ''
    for paragraph, place in _paragraphs(root, where):
        context = _field(paragraph, place, 'context', str)
        for i, qa in enumerate(_field(paragraph, place, 'qas', list)):
            at = f'{place}.qas[{i}]'
            question = _question(_typed(qa, at, dict), at, context, labels)
            if answerable and question.answers == ():
                if labels == 'needed':
                    raise UserError(
                        f'{at}.answers', 'no answer', 'at least one, as in SQuAD 1.1',
                        "for questions without answer there is SQuAD 2.0: config.task.version='2.0'",
                    )  # fmt: skip
                question = dataclasses.replace(question, answers=None)
            if question.answers is None:
                unlabelled = unlabelled or at
            first = seen.setdefault(question.id, at)
            if first != at:
                found = f'{question.id!r}, which {first.removeprefix(where + ":")} has already'
                raise UserError(f'{at}.id', found, 'an id of its own', _MEND)
            questions.append(question)
    if not questions:
        raise UserError(where, 'no question', _FORM, _MEND)
    if unlabelled and labels == 'optional' and any(question.answers is not None for question in questions):
        raise UserError(f'{unlabelled}.answers', 'none', 'answers of all questions, or of no question', _MEND)
    return questions


def parse_lines(text: str, where: str) -> list[Question]:
    """The questions of JSON lines {"question": …, "context": …}; "id" may be given, else it is the number of the line.

    Raises:
      UserError: a line of another form, or no line.
    """
    questions: list[Question] = []
    seen: dict[str, str] = {}
    for number, line in enumerate(text.split('\n'), 1):
        if not line.strip():
            continue
        at = f'{where}:{number}'
        row = load_json(line, where, number)
        if not isinstance(row, dict):
            found, form = f'a JSON {type(row).__name__}', 'an object {"question": "…", "context": "…"}'
            raise UserError(at, found, form, 'write one question a line')
        name = row.get('id', str(number))
        question = Question(
            _typed(name, f'{at}.id', str), *(_field(row, at, key, str) for key in ('question', 'context'))
        )
        first = seen.setdefault(question.id, at)
        if first != at:
            raise UserError(
                f'{at}.id',
                f'{question.id!r} as in line {first.rpartition(":")[2]}',
                'an id of its own',
                'leave ids out, or make them different',
            )
        questions.append(question)
    if not questions:
        raise UserError(
            where, 'nothing', 'SQuAD\'s JSON, or lines {"question": "…", "context": "…"}', 'give a question'
        )
    return questions


def parse_input(text: str, where: str) -> list[Question]:
    """Questions without labels: SQuAD's JSON, or JSON lines as of `parse_lines`."""
    line = text.lstrip().partition('\n')[0]
    # SQuAD's JSON has "data" in its first line, or is spread over many lines.
    try:
        lines = 'data' not in json.loads(line)
    except (ValueError, TypeError, RecursionError):
        lines = '"question"' in line and '"data"' not in line
    if lines or not text.strip():
        return parse_lines(text, where)
    return parse_questions(text, where, answerable=False, labels='ignored')


def load_json(text: str, where: str, line: int = 1) -> Any:
    """The value of a JSON text that begins at the given line of its file.

    Raises:
      UserError: with line and column of the error.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20] or 'the end of the file'
        raise UserError(
            f'{where}:{error.lineno + line - 1}:{error.colno}', f'{near!r} ({error.msg})', 'JSON', _MEND
        ) from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; too deeply nested
        raise UserError(where, f'JSON that cannot be read ({error})', _FORM, _MEND) from None


def _paragraphs(root: Mapping[str, Any], where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(paragraph, its path)."""
    for a, article in enumerate(_field(root, where, 'data', list, dot=False)):
        place = f'{where}:data[{a}]'
        for p, paragraph in enumerate(_field(_typed(article, place, dict), place, 'paragraphs', list)):
            yield _typed(paragraph, f'{place}.paragraphs[{p}]', dict), f'{place}.paragraphs[{p}]'


def _question(qa: Mapping[str, Any], at: str, context: str, labels: str) -> Question:
    name, question = (_field(qa, at, key, str) for key in ('id', 'question'))
    impossible = _typed(qa.get('is_impossible', False), f'{at}.is_impossible', bool)
    if labels == 'ignored' or (labels == 'optional' and 'answers' not in qa and not impossible):
        return Question(name, question, context)
    answers = [] if impossible and 'answers' not in qa else _field(qa, at, 'answers', list)
    if impossible and answers:
        raise UserError(f'{at}.answers', f'{len(answers)}, and is_impossible', 'one or the other', _MEND)
    texts, starts = [], []
    for i, answer in enumerate(answers):
        place = f'{at}.answers[{i}]'
        texts.append(_field(_typed(answer, place, dict), place, 'text', str))
        starts.append(_field(answer, place, 'answer_start', int))
        if starts[-1] < 0:
            raise UserError(f'{place}.answer_start', f'{starts[-1]:,}', 'a character of the context, from 0', _MEND)
    return Question(name, question, context, tuple(texts), tuple(starts))


def _field(parent: Mapping[str, Any], at: str, name: str, kind: type, *, dot: bool = True) -> Any:
    """parent[name], which must be of this type."""
    if name not in parent:
        there = ', '.join(map(repr, list(parent)[:8])) or 'nothing'
        raise UserError(at, f'no {name!r} among {there}', f'{name!r} with {_KINDS[kind]}', _MEND)
    return _typed(parent[name], f'{at}.{name}' if dot else f'{at}:{name}', kind)


def _typed(value: Any, at: str, kind: type) -> Any:
    if type(value) is not kind:
        shown = json.dumps(value)
        raise UserError(at, shown if len(shown) < 60 else shown[:57] + '…', _KINDS[kind], _MEND)
    return checked_text(value, at) if kind is str else value


def prepared_questions(version: str, split: str) -> list[Question]:
    """The questions of tensorflow-datasets' squad/v1.1 or squad/v2.0, prepared on this machine.

    Args:
      version: '1.1' or '2.0'.
      split: 'train' or 'validation'.

    Raises:
      UserError: it is not prepared.
    """
    return [
        Question(
            row['id'],
            row['question'],
            row['context'],
            tuple(row['answers']['text']),
            tuple(row['answers']['answer_start']),
        )
        for row in read_dataset(f'squad/v{version}', split)
    ]
