"""A sentence with two entities as a sequence of at most S tokens in which the entities are marked."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.data.features import FeatureBuilder, Features
from bertjax.errors import UserError
from bertjax.tasks.relation.files import MARKS, Relation, boundaries
from bertjax.text.special import is_unused
from bertjax.text.tokenizer import Tokenizer

STARTS = 'starts'  # of a row: the positions of the tokens that begin the marks of subject and object
# How the entities are shown: values of config.task.markers.
MARKERS = ('entity', 'typed', 'mask', 'words')
_PUNCTUATION = ('@', '@', '#', '#')
_TYPES = ('*', '^')
_OUTSIDE = 1e6  # more than any place in a text


def role_marks(tokenizer: Tokenizer, markers: str) -> list[np.ndarray]:
    """The tokens that open and close the subject, then the object.

    'typed' has the punctuation of its paper, 'words' MARKS; the others the first four [unusedN] slots of the
    vocabulary, which mean nothing yet, or the same punctuation where there are no four.
    """
    slots = [i for i, piece in enumerate(tokenizer.pieces) if is_unused(piece)][:4]
    if markers in ('entity', 'mask') and len(slots) == 4:
        return [np.int32([slot]) for slot in slots]
    return tokenizer.encode(MARKS if markers == 'words' else _PUNCTUATION)


def describe_marks(tokenizer: Tokenizer, markers: str) -> str:
    """How the entities are shown, in a line."""
    shown = [' '.join(tokenizer.pieces[i] for i in mark) for mark in role_marks(tokenizer, markers)]
    if markers == 'mask':
        return f'entities are shown as {shown[0]} and {shown[2]} with their types, without their words'
    types = (' * type *', ' ^ type ^') if markers == 'typed' else ('', '')
    return f'entities stand between {shown[0]}{types[0]} … {shown[1]} and {shown[2]}{types[1]} … {shown[3]}'


def relation_features(
    records: Sequence[Relation], labels: np.ndarray | None, tokenizer: Tokenizer, *, seq_len: int, markers: str
) -> Features:
    """`[CLS] … [SEP]` of N records, a row each, with `starts` int32 [N, 2].

    What is longer than S loses first what is farthest from the entities on either side, then the middle of what stands
    between them, and only then ends of the entities.

    Args:
      records: N.
      labels: int32 [N], or None.
      tokenizer: of the model.
      seq_len: S.
      markers: 'entity' puts marks around each (arXiv 1906.03158); 'typed' has the type behind the opening mark
        (arXiv 2102.01373, with punctuation as marks: @ * person * Ann @); 'mask' has the opening mark and the type in
        place of the words, so that no names are learned by heart (after Zhang et al. 2017, whose masks are one token);
        'words' puts the marks of the files around them, as the benchmarks of SciBERT have them.

    Raises:
      UserError: marks that S has no room for.
    """
    builder, cut = FeatureBuilder(), 0
    for row, (tokens, starts, _, whole) in enumerate(_sequences(records, tokenizer, seq_len, markers)):
        cut += not whole
        builder.add_sequence(np.concatenate([[tokenizer.cls_id], tokens, [tokenizer.sep_id]]))
        values = {} if labels is None else {'labels': labels[row]}
        builder.add_row(row, **{STARTS: np.asarray(starts, np.int32) + 1}, **values)
    note = f'{cut:,} of {len(records):,} records are longer than config.seq_len={seq_len} and lose words far from both'
    return builder.build(notes=[note] if cut else [])


def shown_tokens(records: Sequence[Relation], tokenizer: Tokenizer, *, seq_len: int, markers: str) -> np.ndarray:
    """bool [T]: of the tokens of `relation_features`, the marks and the types of the entities, which are no text."""
    each = (shown for _, _, shown, _ in _sequences(records, tokenizer, seq_len, markers))
    return np.concatenate([np.concatenate([[False], shown, [False]]) for shown in each])


_MARK, _TYPE, _ENTITY, _CONTEXT = 'mark', 'type', 'entity', 'context'


def _sequences(
    records: Sequence[Relation], tokenizer: Tokenizer, seq_len: int, markers: str
) -> Iterator[tuple[np.ndarray, Sequence[int], np.ndarray, bool]]:
    """Of each record the tokens between [CLS] and [SEP], where the two opening marks stand, which of the tokens are
    marks or types, and whether none was lost."""
    marks, room = role_marks(tokenizer, markers), seq_len - 2
    shown = [_parts(record, markers) for record in records]
    encoded = iter(tokenizer.encode([part.text for parts in shown for part in parts if part.kind != _MARK]))
    for record, parts in zip(records, shown, strict=True):
        pieces = [marks[part.mark] if part.kind == _MARK else next(encoded) for part in parts]
        tokens, lengths = np.concatenate(pieces), [len(piece) for piece in pieces]
        begins = np.cumsum([0, *lengths])
        starts = [begins[[part.mark for part in parts].index(2 * role)] for role in (0, 1)]
        fixed = np.repeat([part.kind in (_MARK, _TYPE) for part in parts], lengths)
        if len(tokens) > room:
            kept = _most_needed(parts, lengths, room, record.where)
            yield tokens[kept], np.searchsorted(kept, starts), fixed[kept], False
        else:
            yield tokens, starts, fixed, True


class _Part(NamedTuple):
    """A stretch of a sequence: a mark, by its number among the four, or the text of a type, an entity, or between."""

    kind: str
    text: str = ''
    mark: int = -1


def _parts(record: Relation, markers: str) -> list[_Part]:
    """The stretches of a record, in order."""
    parts: list[_Part] = []
    at = inside = 0
    for boundary in boundaries(record.entities):
        if not (inside and markers == 'mask'):
            parts.append(_Part(_ENTITY if inside else _CONTEXT, record.text[at : boundary.at]))
        at = boundary.at
        inside += -1 if boundary.closes else 1
        if boundary.closes and markers == 'mask':
            continue
        parts.append(_Part(_MARK, mark=2 * boundary.role + boundary.closes))
        kind = record.entities[boundary.role].type.lower().replace('_', ' ')
        if not boundary.closes and kind and markers in ('typed', 'mask'):
            around = _TYPES[boundary.role] if markers == 'typed' else ''
            parts.append(_Part(_TYPE, f'{around} {kind} {around}'))
    return [*parts, _Part(_CONTEXT, record.text[at:])]


def _most_needed(parts: Sequence[_Part], lengths: Sequence[int], room: int, where: str) -> np.ndarray:
    """The positions of the `room` tokens that are kept, ascending."""
    costs = []
    marked = [i for i, part in enumerate(parts) if part.kind == _MARK]
    for i, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        place = np.arange(length, dtype=np.float64)
        if part.kind == _MARK:
            costs.append(np.full(length, -1.0))
        elif part.kind in (_TYPE, _ENTITY):
            costs.append(place / (length + 1))
        elif i < marked[0]:
            costs.append(_OUTSIDE + place[::-1])
        elif i > marked[-1]:
            costs.append(_OUTSIDE + place)
        else:
            costs.append(1 + np.minimum(place, place[::-1]))
    if sum(lengths[i] for i in marked) > room:
        fix = 'raise config.seq_len'
        raise UserError(where, f'marks that {room + 2} pieces have no room for', 'some text beside them', fix)
    return np.sort(np.argsort(np.concatenate(costs), kind='stable')[:room])
