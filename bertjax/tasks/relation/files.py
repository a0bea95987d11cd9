"""Reads relations from rows in TACRED's format, or from texts with marked entities."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading import layout
from bertjax.tasks.reading.json_rows import begins_objects
from bertjax.tasks.reading.records import FORMATS, parse_records
from bertjax.tasks.reading.texts import Blank, Line, check_text, peek_lines, quote_names

MARKS = ('<<', '>>', '[[', ']]')  # the marks around the subject and the object, as in SciBERT's ChemProt files
_ROLES = ('subj', 'obj')
_LABELS = ('relation', 'label')


@dataclasses.dataclass(frozen=True)
class MarkedEntity:
    """One of the two entities of a relation.

    Attributes:
      start, end: the character offsets in the text; `end` is exclusive.
      type: the type of the entity, such as PERSON; '' if unknown.
    """

    start: int
    end: int
    type: str = ''


@dataclasses.dataclass(frozen=True)
class Relation:
    """A sentence with two entities.

    Attributes:
      text: the text without marks.
      entities: the subject and the object. In a marked text, << and >> mark the subject, and [[ and ]] the object.
      label: the name of the relation; None if unknown.
      where: the location, such as 'file:line'.
      fields: all fields of the row if it has named fields; None for a row of train.
    """

    text: str
    entities: tuple[MarkedEntity, MarkedEntity]
    label: str | None
    where: str = dataclasses.field(default='', repr=False, compare=False)
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)

    second = None  # required by sentence/labels.py:LabeledRecord; a relation has no second text

    @property
    def first(self) -> str:
        """The text with marks around its entities."""
        text, position = '', 0
        for boundary in boundaries(self.entities):
            mark = MARKS[2 * boundary.role + boundary.closes]
            text += self.text[position : boundary.position] + (f' {mark}' if boundary.closes else f'{mark} ')
            position = boundary.position
        return text + self.text[position:]

    def mention(self, role: int) -> str:
        """Returns the text of an entity. Role 0 is the subject, and role 1 is the object."""
        entity = self.entities[role]
        return self.text[entity.start : entity.end]


class Boundary(NamedTuple):
    """The start of an entity, or its end if `closes` is True. Role 0 is the subject, and role 1 is the object."""

    position: int  # the character offset in the text
    role: int
    closes: bool


def boundaries(entities: Sequence[MarkedEntity]) -> list[Boundary]:
    """Returns the four boundaries of two entities, in the order of the text.

    At the same character, ends precede starts. If the entities are nested, the outer one starts first and ends last.
    """
    sort_keys = {}
    for role, entity in enumerate(entities):
        sort_keys[Boundary(entity.start, role, False)] = (entity.start, 1, -entity.end, role)
        sort_keys[Boundary(entity.end, role, True)] = (entity.end, 0, -entity.start, -role)
    return sorted(sort_keys, key=sort_keys.__getitem__)


def parse_relations(
    rows: Iterable[layout.Record], text: str, label: str, *, labels: str, keep_fields: bool = False
) -> Iterator[Relation]:
    """Yields a `Relation` for each row.

    A row in TACRED's format (Zhang et al. 2017) has `token`, the inclusive token positions `subj_start`, `subj_end`,
    `obj_start` and `obj_end`. Any other row has a text in which MARKS enclose the entities. Both may have `subj_type`
    and `obj_type`.

    Args:
      text: The name of the field with the marked text.
      label: The name of the field with the relation; '' for `relation` or `label`.
      labels: Whether labels are 'needed', 'optional' or 'ignored'. An empty label counts as missing.
      keep_fields: Whether to store all fields of the row in the record.
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
        kinds = [kind if isinstance(kind := fields.get(f'{role}_type'), str) else '' for role in _ROLES]
        first, second = (dataclasses.replace(entity, type=kind) for entity, kind in zip(entities, kinds, strict=True))
        name = next((name for name in names if fields.get(name) is not None), None)
        value = '' if name is None or labels == 'ignored' else fields[name]
        if not isinstance(value, str | int):
            raise UserError(where, f'{name} {value!r}', 'the name of a relation', 'correct the record')
        relation = str(value).strip() or None
        if relation is None and labels == 'needed':
            raise UserError(where, 'no label', ' or '.join(names), 'correct or remove the record')
        yield Relation(plain, (first, second), relation, where, fields if keep_fields else None)


def _parse_tokens(fields: Mapping[str, Any], where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    tokens = fields['token']
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise UserError(f'{where}, token', f'a {type(tokens).__name__}', 'a list of strings', 'correct the record')
    starts = [0, *itertools.accumulate(len(token) + 1 for token in tokens)]
    entities = []
    for role in _ROLES:
        positions = []
        for name in (f'{role}_start', f'{role}_end'):
            position = fields.get(name)
            if type(position) is not int or not 0 <= position < len(tokens):
                found = f'{name} {position!r}' if name in fields else f'no {name}'
                raise UserError(where, found, f'a number from 0 to {len(tokens) - 1}', 'correct the record')
            positions.append(position)
        first, last = positions
        if first > last:
            found = f'{role}_start {first} after {role}_end {last}'
            raise UserError(where, found, 'the first and the last token of the entity', 'correct the record')
        entities.append(MarkedEntity(starts[first], starts[last] + len(tokens[last])))
    return check_text(' '.join(tokens), where), (entities[0], entities[1])


def parse_marked_text(text: str, where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    """Returns a marked text without its marks, and its two entities.

    Raises:
      UserError: The text has no entity, or several, between << and >> or between [[ and ]].
    """
    bounds = [_find_marks(text, *MARKS[2 * role : 2 * role + 2], where) for role in (0, 1)]
    cuts = sorted(cut for bound in bounds for cut in ((bound[0], bound[1]), (bound[2], bound[3])))
    shift = lambda offset: offset - sum(min(end, offset) - start for start, end in cuts if start < offset)  # noqa: E731
    begins, ends = zip(*cuts, strict=True)
    plain = ''.join(text[a:b] for a, b in zip((0, *ends), (*begins, len(text)), strict=True))
    first, second = (MarkedEntity(shift(bound[1]), shift(bound[2])) for bound in bounds)
    return plain, (first, second)


def _find_marks(text: str, opening: str, closing: str, where: str) -> tuple[int, int, int, int]:
    """Returns the start and the end of the opening mark, then the start and the end of the closing mark.

    Here, a mark includes the white space that separates the mark from the entity.
    """
    a, b = re.escape(opening), re.escape(closing)
    # Marks that white space separates from the entity have priority, because the text itself may contain >>. An entity
    # within a line has priority over an entity that spans several lines.
    patterns = rf'({a}\s+)\S.*?(\s+{b})', rf'({a}\s*)\S.*?(\s*{b})'
    for flags, pattern in itertools.product((0, re.DOTALL), patterns):
        matches = list(re.finditer(pattern, text, flags))
        if len(matches) == 1:
            return *matches[0].span(1), *matches[0].span(2)
    count = f'{len(matches)} entities' if matches else 'no entity'
    raise UserError(where, f'{count} between {opening} and {closing}', 'exactly one', 'correct the record')


def read_relations(lines: Iterable[Line], where: str, text: str) -> Iterator[Relation | Blank]:
    """Yields records for prediction from an input file.

    The file has rows in any text format (see `parse_relations`), or a marked text per line. In the second case, a blank
    line yields a `Blank`.
    """
    lines, first_lines = peek_lines(lines)
    format = FORMATS.get(bare_suffix(where), 'lines')
    if format == 'lines' and first_lines and begins_objects(first_lines[-1]):
        format = 'jsonl'
    print(f'{where}: read as {"marked texts, one per line" if format == "lines" else format}')
    if format == 'lines':
        return _read_marked_lines(lines, where)
    rows = parse_records(lines, where, format, blank='skipped')
    return parse_relations(rows, text, '', labels='ignored', keep_fields=True)


def _read_marked_lines(lines: Iterable[Line], where: str) -> Iterator[Relation | Blank]:
    blanks: list[Blank] = []
    for number, line in lines:
        location = f'{where}:{number}'
        if not line.strip():
            blanks.append(Blank(location))
            continue
        yield from blanks  # so blank lines at the end of the file are dropped
        blanks = []
        yield Relation(*parse_marked_text(line, location), None, location)
