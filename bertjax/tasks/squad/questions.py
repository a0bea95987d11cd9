"""Parses SQuAD questions from JSON in the layout of v1.1 and v2.0, or from rows with one question each."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.records import parse_records
from bertjax.tasks.reading.texts import Blank, Line, check_text, has_blank, peek_lines, quote_names

_KINDS = {str: 'a string', int: 'a whole number', bool: 'true or false', list: 'a list', dict: 'an object'}
_FORM = 'the layout of SQuAD, {"data": [{"paragraphs": [{"context", "qas": [{"id", "question", "answers"}]}]}]}'
_NUMBER = re.compile(r'\d+(?=]?$)')  # the number at the end of a location such as 'file:3' or 'file[3]'
_FIX = 'correct the file, or use the original'


@dataclasses.dataclass(frozen=True)
class SquadQuestion:
    """A question about a text.

    Attributes:
      id: the identifier, which is unique in a split.
      question, context: the texts, as in the file.
      answers: the annotators' answers, without blank ones; () if the context has no answer; None if unknown.
      starts: the `answer_start` of each answer, as in the file.
      impossible: whether the file marks the question as unanswerable.
      fields: all fields of the row, if it is read for prediction.
      where: the location, such as 'file:line', 'file[row]' or 'file:path in JSON'.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...] | None = None
    starts: tuple[int, ...] = ()
    impossible: bool = dataclasses.field(default=False, repr=False, compare=False)
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)
    where: str = dataclasses.field(default='', repr=False, compare=False)


def parse_squad_json(text: str, where: str, *, labeled: bool = True) -> list[SquadQuestion]:
    """Parses SQuAD's JSON. The caller must pass the result to `check_questions`.

    If `labeled` is False, answers are ignored, and the caller must pass the result to `check_ids` instead.
    """
    root = load_json(text, where)
    if not isinstance(root, dict):
        raise UserError(where, f'a JSON {type(root).__name__}', _FORM, _FIX)
    questions: list[SquadQuestion] = []
    for a, article in enumerate(json_field(root, where, 'data', list, dot=':')):
        at = f'{where}:data[{a}]'
        for p, paragraph in enumerate(json_field(article, at, 'paragraphs', list)):
            location = f'{at}.paragraphs[{p}]'
            context = json_field(paragraph, location, 'context', str)
            for i, qa in enumerate(json_field(paragraph, location, 'qas', list)):
                questions.append(_question(qa, f'{location}.qas[{i}]', context, labeled=labeled))
    if not questions:
        raise UserError(where, 'no question', _FORM, _FIX)
    return questions


def check_questions(questions: Iterable[SquadQuestion], *, answerable: bool, needed: bool) -> list[SquadQuestion]:
    """Returns the questions of a split after checking their ids and answers.

    Args:
      questions: The questions of all files of the split.
      answerable: Whether every labeled question must have an answer, as in v1.1.
      needed: Whether every question must have a label; otherwise, all questions or none must have labels.

    Raises:
      UserError: Two questions have the same id, or a question lacks required answers.
    """
    questions = list(check_ids(questions))
    # Empty `answers` mean 'unknown' if every question must have an answer, or if the split has no labels, that is, no
    # question has an answer or is marked as impossible.
    has_labels = any(question.answers or question.impossible for question in questions)
    for i, question in enumerate(questions):
        if question.answers is None or (question.answers == () and (answerable or not has_labels)):
            if needed:
                found = 'no answer' if has_labels else 'no answer in any question'
                expected = 'answers, or "is_impossible": true'
                fix = 'for prediction only, put unlabeled questions into config.task.test_file'
                if question.answers is None:  # the field is missing or null
                    raise UserError(question.where, "no 'answers'", f"'answers' with {expected}", f'{_FIX}; {fix}')
                if answerable:
                    expected = 'at least one, as in SQuAD 1.1'
                    fix = "for questions without an answer, set config.task.version='2.0'"
                raise UserError(f'{question.where}.answers', found, expected, fix)
            questions[i] = dataclasses.replace(question, answers=None)
    unlabeled = next((question.where for question in questions if question.answers is None), '')
    if unlabeled and any(question.answers is not None for question in questions):
        fix = f"{_FIX}; for questions without an answer, set config.task.version='2.0'" if answerable else _FIX
        raise UserError(f'{unlabeled}.answers', 'none', 'answers, as for other questions', fix)
    return questions


def check_ids(questions: Iterable[SquadQuestion | Blank]) -> Iterator[SquadQuestion | Blank]:
    """Yields the questions, and raises a UserError if two have the same id. All ids are kept in memory."""
    seen: dict[str, str] = {}  # {id: location}
    for question in questions:
        if isinstance(question, SquadQuestion):
            first = seen.setdefault(question.id, question.where)
            if first != question.where:
                found = f'the id {question.id!r}, as in {first.rpartition("/")[2]}'
                raise UserError(question.where, found, 'a different id', 'give every question its own id')
        yield question


def parse_question_row(row: Mapping[str, Any], at: str, *, labeled: bool = True) -> SquadQuestion:
    """Parses a row {"id", "question", "context", "answers": {"text": [...], "answer_start": [...]}}.

    `answers` may also be a list of {"text", "answer_start"}. If a row has no `id`, its id is `at` without the folder.
    If `labeled` is False, as for prediction, answers are ignored, and the id of a row without `id` is the number of the
    line, or the index of the row in a JSON list or a binary file.
    """
    context, answers = json_field(row, at, 'context', str), row.get('answers')
    if not labeled:
        question = _question(row, at, context, labeled=False, default_id=_NUMBER.search(at)[0])
        return dataclasses.replace(question, fields=row)
    if isinstance(answers, dict):
        texts, starts = (json_field(answers, f'{at}.answers', name, list) for name in ('text', 'answer_start'))
        if len(texts) != len(starts):
            found = f'{len(texts)} texts and {len(starts)} answer_start'
            raise UserError(f'{at}.answers', found, 'equal numbers', _FIX)
        listed = [{'text': text, 'answer_start': start} for text, start in zip(texts, starts, strict=True)]
        row = {**row, 'answers': listed}
    return _question(row, at, context, default_id=at.rpartition('/')[2])


def parse_input_rows(rows: Iterable[Record]) -> Iterator[SquadQuestion | Blank]:
    """Yields the unlabeled question of each row, or a `Blank` if its question or context is blank."""
    for at, row in rows:
        is_blank = has_blank([row[name] for name in ('question', 'context') if name in row])
        yield Blank(at, 'an empty text', row) if is_blank else parse_question_row(row, at, labeled=False)


def parse_input(lines: Iterable[Line], where: str) -> Iterator[SquadQuestion | Blank]:
    """Yields unlabeled questions from SQuAD's JSON, or from JSON lines or a list of {"question": …, "context": …}.

    A question in JSON lines is yielded as soon as its line is read. A row with a blank text yields a `Blank`. Questions
    with a blank text in SQuAD's JSON are yielded, because its official script expects an answer for every id.

    Raises:
      UserError: The input is empty or in another format. Or an id occurs twice, except in a stream of JSON lines.
    """
    is_file = isinstance(lines, list)  # not a stream
    lines, first_lines = peek_lines(lines)
    if not first_lines:
        expected = 'SQuAD\'s JSON, or lines {"question": …, "context": …}'
        raise UserError(where, 'an empty input', expected, 'add a question')
    if has_rows(first_lines[0]):
        questions = parse_input_rows(parse_records(lines, where, 'jsonl'))
        return check_ids(questions) if is_file else questions
    text = '\n'.join(line for _, line in lines)
    return check_ids(parse_squad_json(text, where, labeled=False))


def has_rows(line: str) -> bool:
    """Whether `line`, the first line of a text, is a row or starts a list of rows, and is not SQuAD's JSON."""
    if line.lstrip().startswith('['):
        return True
    # The first line of SQuAD's JSON contains "data", which may also be a field of a row, or is incomplete JSON.
    try:
        root = json.loads(line)
        return 'question' in root or 'data' not in root
    except (ValueError, TypeError, RecursionError):
        return '"question"' in line and '"data"' not in line


def load_json(text: str, where: str) -> Any:
    """Parses the JSON text of the file `where`. Raises a UserError with the location of a syntax error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        near = text[error.pos : error.pos + 20] or 'the end of the file'
        raise UserError(f'{where}:{error.lineno}:{error.colno}', f'{near!r} ({error.msg})', 'JSON', _FIX) from None
    except (ValueError, RecursionError) as error:  # a number has thousands of digits, or the nesting is too deep
        raise UserError(where, f'JSON that cannot be parsed ({error})', 'JSON within the parser limits', _FIX) from None


def _question(qa: Any, at: str, context: str, *, labeled: bool = True, default_id: str = '') -> SquadQuestion:
    question = json_field(qa, at, 'question', str)
    name = qa['id'] if 'id' in qa else default_id or json_field(qa, at, 'id', str)
    name = str(name) if type(name) is int else json_value(name, f'{at}.id', str)
    if not labeled:
        return SquadQuestion(name, question, context, where=at)
    impossible = json_value(qa.get('is_impossible') or False, f'{at}.is_impossible', bool)
    if qa.get('answers') is None:
        return SquadQuestion(name, question, context, () if impossible else None, impossible=impossible, where=at)
    texts, starts = [], []
    for i, answer in enumerate(json_field(qa, at, 'answers', list)):
        location = f'{at}.answers[{i}]'
        text = json_field(answer, location, 'text', str)
        if not text.strip():  # some files mark an unanswerable question by a blank answer
            continue
        texts.append(text)
        starts.append(json_field(answer, location, 'answer_start', int))  # find_answer in windows.py corrects it
    if impossible and texts:
        raise UserError(f'{at}.answers', f'{len(texts)} answers and is_impossible', 'one of the two', _FIX)
    return SquadQuestion(name, question, context, tuple(texts), tuple(starts), impossible, where=at)


def json_field(parent: Any, at: str, name: str, kind: type, *, dot: str = '.') -> Any:
    """Returns parent[name], checked to be a `kind`. `dot` separates `at` and `name` in an error message."""
    if name not in json_value(parent, at, dict):
        raise UserError(at, f'no {name!r} among {quote_names(parent)}', f'{name!r} with {_KINDS[kind]}', _FIX)
    return json_value(parent[name], f'{at}{dot}{name}', kind)


def json_value(value: Any, at: str, kind: type) -> Any:
    """Returns `value` after checking that its type is `kind`."""
    if type(value) is not kind:
        found = json.dumps(value)
        raise UserError(at, found if len(found) < 60 else found[:57] + '…', _KINDS[kind], _FIX)
    return check_text(value, at) if kind is str else value
