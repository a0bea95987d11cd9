"""Records of relations: TACRED's rows of tokens with the positions of two entities, or texts with marks."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading import layout
from bertjax.tasks.reading.json_rows import is_object
from bertjax.tasks.reading.records import FORMATS, parse_records
from bertjax.tasks.reading.texts import Blank, Line, check_text, peek_lines, quote_names

MARKS = ('<<', '>>', '[[', ']]')  # around the first and the second entity, as in the ChemProt of BERT's descendants
_ROLES = ('subj', 'obj')
_LABELS = ('relation', 'label')


@dataclasses.dataclass(frozen=True)
class MarkedEntity:
    """One of the two entities of a relation.

    Attributes:
      start, end: the character offsets in the text; `end` is exclusive.
      type: the type, such as PERSON; '' if unknown.
    """

    start: int
    end: int
    type: str = ''


@dataclasses.dataclass(frozen=True)
class Relation:
    """A sentence and two entities in it.

    Attributes:
      text: the text without marks.
      entities: the subject and the object; in a text with marks, the entities in the first and second kind of marks.
      label: the name of the relation; None if unknown.
      where: 'file:line'; excluded from repr and equality, as `fields` is.
      fields: all fields of the row, for a record to be predicted.
    """

    text: str
    entities: tuple[MarkedEntity, MarkedEntity]
    label: str | None
    where: str = dataclasses.field(default='', repr=False, compare=False)
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)

    second = None  # a part of the interface labels.py:Labelled: the record has one text

    @property
    def first(self) -> str:
        """The text with its marks."""
        text, position = '', 0
        for boundary in boundaries(self.entities):
            mark = MARKS[2 * boundary.role + boundary.closes]
            text += self.text[position : boundary.at] + (f' {mark}' if boundary.closes else f'{mark} ')
            position = boundary.at
        return text + self.text[position:]

    def mention(self, role: int) -> str:
        """Returns the words of an entity; role 0 is the subject, 1 the object."""
        entity = self.entities[role]
        return self.text[entity.start : entity.end]


@dataclasses.dataclass(frozen=True)
class Boundary:
    """The start or the end of an entity.

    Attributes:
      at: the character offset in the text.
      role: 0 for the subject, 1 for the object.
      closes: whether the entity ends there.
      order: the sort key of boundaries: an end precedes a start at the same character, and entities nest.
    """

    at: int
    role: int
    closes: bool
    order: tuple[int, ...]


def boundaries(entities: Sequence[MarkedEntity]) -> list[Boundary]:
    """Returns the four boundaries of two entities, in the order of the text."""
    result = []
    for role, entity in enumerate(entities):
        result.append(Boundary(entity.start, role, False, (entity.start, 1, -entity.end, role)))
        result.append(Boundary(entity.end, role, True, (entity.end, 0, -entity.start, -role)))
    return sorted(result, key=lambda boundary: boundary.order)


def parse_relations(
    rows: Iterable[layout.Record], text: str, label: str, *, labels: str, kept: bool = False
) -> Iterator[Relation]:
    """Yields the records of rows.

    A row has `token` with `subj_start`, `subj_end`, `obj_start` and `obj_end` (inclusive), and optionally `subj_type`
    and `obj_type`, as TACRED's rows have (Zhang et al. 2017); or a text with both entities marked by MARKS.

    Args:
      rows: The rows of a file.
      text: The name of the field of a marked text.
      label: The name of the field of the relation; '' for `relation` or `label`.
      labels: 'needed', 'optional', or 'ignored' if the labels are to be predicted.
      kept: Whether a record keeps all fields of its row.

    Raises:
      UserError: A row lacks one of these fields, or a position is outside its tokens.
    """
    names = (label,) if label else _LABELS
    for where, fields in rows:
        if 'token' in fields:
            plain, entities = _parse_tokens(fields, where)
        elif isinstance(fields.get(text), str):
            plain, entities = parse_marked_text(check_text(fields[text], where), where)
        else:
            fix = 'name the field of the marked texts in config.task.text_a'
            raise UserError(where, f'the fields {quote_names(fields)}', f'token and subj_start …, or {text}', fix)
        name = next((name for name in names if fields.get(name) is not None), None)
        value = None if name is None or labels == 'ignored' else fields[name]
        if value is not None and not isinstance(value, str | int):
            raise UserError(where, f'{name} {value!r}', 'the name of a relation', 'correct the record')
        if value is None and labels == 'needed':
            raise UserError(where, 'no label', ' or '.join(names), 'correct or remove the record')
        yield Relation(plain, entities, None if value is None else str(value).strip(), where, fields if kept else None)


def _parse_tokens(fields: Mapping[str, Any], where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    tokens = fields['token']
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise UserError(f'{where}, token', f'a {type(tokens).__name__}', 'a list of strings', 'correct the record')
    starts = [0, *itertools.accumulate(len(token) + 1 for token in tokens)]
    entities = []
    for role in _ROLES:
        places = []
        for name in (f'{role}_start', f'{role}_end'):
            place = fields.get(name)
            if type(place) is not int or not 0 <= place < len(tokens):
                found = f'{name} {place!r}' if name in fields else f'no {name}'
                raise UserError(where, found, f'a number from 0 to {len(tokens) - 1}', 'correct the record')
            places.append(place)
        first, last = places
        if first > last:
            found = f'{role}_start {first} after {role}_end {last}'
            raise UserError(where, found, 'the first and the last token of the entity', 'correct the record')
        kind = fields.get(f'{role}_type')
        kind = kind if isinstance(kind, str) else ''
        entities.append(MarkedEntity(starts[first], starts[last] + len(tokens[last]), kind))
    return check_text(' '.join(tokens), where), (entities[0], entities[1])


def parse_marked_text(text: str, where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    """Returns a text without its marks, and the entities in it.

    Raises:
      UserError: There is not exactly one entity in each kind of marks.
    """
    places = [_find_marks(text, *MARKS[2 * role : 2 * role + 2], where) for role in (0, 1)]
    cuts = sorted(cut for place in places for cut in ((place[0], place[1]), (place[2], place[3])))
    shift = lambda offset: offset - sum(min(end, offset) - start for start, end in cuts if start < offset)  # noqa: E731
    begins, ends = zip(*cuts, strict=True)
    plain = ''.join(text[a:b] for a, b in zip((0, *ends), (*begins, len(text)), strict=True))
    first, second = (MarkedEntity(shift(place[1]), shift(place[2])) for place in places)
    return plain, (first, second)


def _find_marks(text: str, opening: str, closing: str, where: str) -> tuple[int, int, int, int]:
    """Returns the start and end of the opening mark and of the closing one, including the blanks inside."""
    a, b = re.escape(opening), re.escape(closing)
    # Marks with blanks inside are preferred, because the text itself may contain >>.
    for pattern in (rf'({a}\s+)\S.*?(\s+{b})', rf'({a}\s*)\S.*?(\s*{b})'):
        matches = list(re.finditer(pattern, text))
        if len(matches) == 1:
            return *matches[0].span(1), *matches[0].span(2)
    count = f'{len(matches)} entities' if matches else 'no entity'
    raise UserError(where, f'{count} between {opening} and {closing}', 'exactly one', 'correct the record')


def read_relations(lines: Iterable[Line], where: str, text: str) -> Iterator[Relation | Blank]:
    """Yields records for prediction from the lines of a user's file: JSON, JSON lines, or one marked text per line.

    Args:
      lines: The lines of the file.
      where: The name of the file.
      text: See `parse_relations`.
    """
    lines, first_lines = peek_lines(lines)
    format = FORMATS.get(bare_suffix(where), 'lines')
    if format == 'lines' and first_lines and is_object(first_lines[-1]):
        format = 'jsonl'
    print(f'{where}: read as {"marked texts, one per line" if format == "lines" else format}')
    if format == 'lines':
        return _read_marked_lines(lines, where)
    rows = parse_records(lines, where, format, blank='skipped')
    return parse_relations(rows, text, '', labels='ignored', kept=True)


def _read_marked_lines(lines: Iterable[Line], where: str) -> Iterator[Relation | Blank]:
    for number, line in lines:
        place = f'{where}:{number}'
        if line.strip():
            text, entities = parse_marked_text(line, place)
            yield Relation(text, entities, None, place)
        else:
            yield Blank(place)
