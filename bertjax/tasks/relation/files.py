"""Records of relations: TACRED's rows of tokens with the places of two entities, or texts in which they are marked."""

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
from bertjax.tasks.reading.texts import Blank, Line, checked_text, peeked, quoted

MARKS = ('<<', '>>', '[[', ']]')  # around the first and the second entity, as in the ChemProt of BERT's descendants
_ROLES = ('subj', 'obj')
_LABELS = ('relation', 'label')


@dataclasses.dataclass(frozen=True)
class MarkedEntity:
    """One of the two.

    Attributes:
      start, end: characters of the text, up to but not including `end`.
      type: such as PERSON; '' where unknown.
    """

    start: int
    end: int
    type: str = ''


@dataclasses.dataclass(frozen=True)
class Relation:
    """A sentence and two entities in it.

    Attributes:
      text: without marks.
      entities: subject and object; in a text with marks the first and the second kind of mark.
      label: the relation; None where unknown.
      where: 'file:line'; left out of repr and equality, as `fields`.
      fields: all that its row has, of a record to be predicted.
    """

    text: str
    entities: tuple[MarkedEntity, MarkedEntity]
    label: str | None
    where: str = dataclasses.field(default='', repr=False, compare=False)
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)

    second = None  # what is said of texts is said of this one, see labels.py:Labelled

    @property
    def first(self) -> str:
        """The text with its marks."""
        shown, at = '', 0
        for boundary in boundaries(self.entities):
            mark = MARKS[2 * boundary.role + boundary.closes]
            shown += self.text[at : boundary.at] + (f' {mark}' if boundary.closes else f'{mark} ')
            at = boundary.at
        return shown + self.text[at:]

    def mention(self, role: int) -> str:
        """The words of an entity."""
        entity = self.entities[role]
        return self.text[entity.start : entity.end]


@dataclasses.dataclass(frozen=True)
class Boundary:
    """Where an entity begins or ends.

    Attributes:
      at: character of the text.
      role: 0 of the subject, 1 of the object.
      closes: whether it ends there.
      order: of boundaries in the text: an end before what begins there, and an inner entity inside the outer one.
    """

    at: int
    role: int
    closes: bool
    order: tuple[int, ...]


def boundaries(entities: Sequence[MarkedEntity]) -> list[Boundary]:
    """The four of two entities, in the order of the text."""
    found = []
    for role, entity in enumerate(entities):
        found.append(Boundary(entity.start, role, False, (entity.start, 1, -entity.end, role)))
        found.append(Boundary(entity.end, role, True, (entity.end, 0, -entity.start, -role)))
    return sorted(found, key=lambda boundary: boundary.order)


def relations_of(
    rows: Iterable[layout.Record], text: str, label: str, *, labels: str, kept: bool = False
) -> Iterator[Relation]:
    """The records of rows.

    A row has `token` with `subj_start`, `subj_end`, `obj_start`, `obj_end` (the last is included), and `subj_type` and
    `obj_type` if they are known, as TACRED's (Zhang et al. 2017); or a text with both entities marked by MARKS.

    Args:
      rows: of a file.
      text: the field of a marked text.
      label: the field of the relation; '' for `relation` or `label`.
      labels: 'needed', 'optional', or 'ignored' where they are to be predicted.
      kept: whether the row's fields are kept.

    Raises:
      UserError: a row without one of these, or with places outside its tokens.
    """
    names = (label,) if label else _LABELS
    for where, fields in rows:
        if 'token' in fields:
            plain, entities = _of_tokens(fields, where)
        elif isinstance(fields.get(text), str):
            plain, entities = marked_text(checked_text(fields[text], where), where)
        else:
            fix = 'name the field of the marked texts in config.task.text_a'
            raise UserError(where, f'the fields {quoted(fields)}', f'token and subj_start …, or {text}', fix)
        name = next((name for name in names if fields.get(name) is not None), None)
        found = None if name is None or labels == 'ignored' else fields[name]
        if found is not None and not isinstance(found, str | int):
            raise UserError(where, f'{name} {found!r}', 'the name of a relation', 'correct the record')
        if found is None and labels == 'needed':
            raise UserError(where, 'no label', ' or '.join(names), 'correct or remove the record')
        yield Relation(plain, entities, None if found is None else str(found).strip(), where, fields if kept else None)


def _of_tokens(fields: Mapping[str, Any], where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
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
            found = f'{role}_start {first} behind {role}_end {last}'
            raise UserError(where, found, 'the first and the last token of the entity', 'correct the record')
        kind = fields.get(f'{role}_type')
        kind = kind if isinstance(kind, str) else ''
        entities.append(MarkedEntity(starts[first], starts[last] + len(tokens[last]), kind))
    return checked_text(' '.join(tokens), where), (entities[0], entities[1])


def marked_text(text: str, where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    """A text without its marks, and where the entities are in it.

    Raises:
      UserError: not exactly one entity in each kind of marks.
    """
    places = [_marked(text, *MARKS[2 * role : 2 * role + 2], where) for role in (0, 1)]
    cuts = sorted(cut for place in places for cut in ((place[0], place[1]), (place[2], place[3])))
    moved = lambda at: at - sum(min(end, at) - start for start, end in cuts if start < at)  # noqa: E731
    begins, ends = zip(*cuts, strict=True)
    plain = ''.join(text[a:b] for a, b in zip((0, *ends), (*begins, len(text)), strict=True))
    first, second = (MarkedEntity(moved(place[1]), moved(place[2])) for place in places)
    return plain, (first, second)


def _marked(text: str, opening: str, closing: str, where: str) -> tuple[int, int, int, int]:
    """Where the opening mark begins and ends, and the closing one, with the blanks inside."""
    a, b = re.escape(opening), re.escape(closing)
    # With blanks inside if there is one: a text may have >> of its own.
    for pattern in (rf'({a}\s+)\S.*?(\s+{b})', rf'({a}\s*)\S.*?(\s*{b})'):
        found = list(re.finditer(pattern, text))
        if len(found) == 1:
            match = found[0]
            return *match.span(1), *match.span(2)
    what = f'{len(found)} entities' if found else 'no entity'
    raise UserError(where, f'{what} between {opening} and {closing}', 'exactly one', 'correct the record')


def read_relations(lines: Iterable[Line], where: str, text: str) -> Iterator[Relation | Blank]:
    """Records to be predicted, from the lines of a user's file: JSON (lines), or a marked text a line.

    Args:
      lines: of it.
      where: its name.
      text: see `relations_of`.
    """
    lines, begin = peeked(lines)
    format = FORMATS.get(bare_suffix(where), 'lines')
    if format == 'lines' and begin and is_object(begin[-1]):
        format = 'jsonl'
    print(f'{where}: read as {"marked texts, one a line" if format == "lines" else format}')
    if format == 'lines':
        return _plain(lines, where)
    rows = parse_records(lines, where, format, blank='skipped')
    return relations_of(rows, text, '', labels='ignored', kept=True)


def _plain(lines: Iterable[Line], where: str) -> Iterator[Relation | Blank]:
    for number, line in lines:
        here = f'{where}:{number}'
        if line.strip():
            text, entities = marked_text(line, here)
            yield Relation(text, entities, None, here)
        else:
            yield Blank(here)
