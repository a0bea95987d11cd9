"""Reads relations from rows in TACRED's format, or from texts with marked entities."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import check_text, quote_names

MARKS = ('<<', '>>', '[[', ']]')  # the marks around the subject and the object, as in SciBERT's ChemProt files
_ROLES = ('subj', 'obj')


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
        for offset, mark in sort_marks(self.entities):
            text += self.text[position:offset] + (f' {MARKS[mark]}' if mark % 2 else f'{MARKS[mark]} ')
            position = offset
        return text + self.text[position:]

    def mention(self, role: int) -> str:
        """Returns the text of an entity. Role 0 is the subject, and role 1 is the object."""
        entity = self.entities[role]
        return self.text[entity.start : entity.end]


def sort_marks(entities: Sequence[MarkedEntity]) -> list[tuple[int, int]]:
    """Returns (character offset, index in MARKS) for the four marks of two entities, in the order of the text.

    At the same character, closing marks precede opening marks. If the entities are nested, the marks of the outer
    entity enclose those of the inner entity.
    """
    sort_keys = {}
    for role, entity in enumerate(entities):
        sort_keys[entity.start, 2 * role] = (entity.start, 1, -entity.end, role)
        sort_keys[entity.end, 2 * role + 1] = (entity.end, 0, -entity.start, -role)
    return sorted(sort_keys, key=sort_keys.__getitem__)


def parse_relation(record: Record, text: str, label: str | None = None, *, keep_fields: bool = True) -> Relation:
    """Parses a record.

    A record in TACRED's format (Zhang et al. 2017) has `token`, a list of tokens, and the inclusive token positions
    `subj_start`, `subj_end`, `obj_start` and `obj_end`. Any other record has a text in which MARKS enclose the
    entities. Both kinds of records may have `subj_type` and `obj_type`.

    Args:
      text: The name of the field with the marked text.
      label: The name of the relation; None if unknown.
      keep_fields: Whether to store all fields of the record in the result.
    """
    where, fields = record
    if 'token' in fields:
        plain, entities = _parse_tokens(fields, where)
    elif isinstance(fields.get(text), str):
        plain, entities = parse_marked_text(check_text(fields[text], where), where)
    else:
        fix = 'name the field of the marked texts in config.task.text_a'
        raise UserError(where, f'the fields {quote_names(fields)}', f'token and subj_start …, or {text}', fix)
    kinds = [kind if isinstance(kind := fields.get(f'{role}_type'), str) else '' for role in _ROLES]
    first, second = (dataclasses.replace(entity, type=kind) for entity, kind in zip(entities, kinds, strict=True))
    return Relation(plain, (first, second), label, where, fields if keep_fields else None)


def _parse_tokens(fields: Mapping[str, Any], where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    tokens = fields['token']
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        expected = 'a list of one or more strings'
        raise UserError(f'{where}, token', f'a {type(tokens).__name__}', expected, 'correct the record')
    starts = [0, *itertools.accumulate(len(token) + 1 for token in tokens)]
    entities = []
    for role in _ROLES:
        names = (f'{role}_start', f'{role}_end')
        for name in names:
            if type(fields.get(name)) is not int or not 0 <= fields[name] < len(tokens):
                found = f'{name} {fields[name]!r}' if name in fields else f'no {name}'
                raise UserError(where, found, f'a number from 0 to {len(tokens) - 1}', 'correct the record')
        first, last = (fields[name] for name in names)
        if first > last:
            found = f'{role}_start {first} after {role}_end {last}'
            raise UserError(where, found, 'the first and the last token of the entity', 'correct the record')
        if not ''.join(tokens[first : last + 1]).strip():
            raise UserError(where, f'an empty {role}', 'an entity with text', 'correct the record')
        entities.append(MarkedEntity(starts[first], starts[last] + len(tokens[last])))
    return check_text(' '.join(tokens), where), (entities[0], entities[1])


def parse_marked_text(text: str, where: str) -> tuple[str, tuple[MarkedEntity, MarkedEntity]]:
    """Returns a marked text without its marks, and its two entities.

    Raises:
      UserError: The text has no entity, or several, between << and >> or between [[ and ]].
    """
    pairs = [_find_marks(text, opening, closing, where) for opening, closing in (MARKS[:2], MARKS[2:])]
    cuts = sorted(itertools.chain(*pairs))
    shift = lambda offset: offset - sum(min(end, offset) - start for start, end in cuts if start < offset)  # noqa: E731
    begins, ends = zip(*cuts, strict=True)
    plain = ''.join(text[a:b] for a, b in zip((0, *ends), (*begins, len(text)), strict=True))
    first, second = (MarkedEntity(shift(opening[1]), shift(closing[0])) for opening, closing in pairs)
    return plain, (first, second)


def _find_marks(text: str, opening: str, closing: str, where: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns (start, end) of the opening and the closing mark, including the white space beside the entity."""
    a, b = re.escape(opening), re.escape(closing)
    # Marks that white space separates from the entity have priority, because the text itself may contain >>. An entity
    # within a line has priority over an entity that spans several lines.
    patterns = rf'({a}\s+)\S.*?(\s+{b})', rf'({a}\s*)\S.*?(\s*{b})'
    for flags, pattern in itertools.product((0, re.DOTALL), patterns):
        matches = list(re.finditer(pattern, text, flags))
        if len(matches) == 1:
            return matches[0].span(1), matches[0].span(2)
    count = f'{len(matches)} entities' if matches else 'no entity'
    raise UserError(where, f'{count} between {opening} and {closing}', 'exactly one', 'correct the record')
