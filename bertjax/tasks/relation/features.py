"""Marks the two entities of each sentence, and converts the sentences to sequences of at most seq_len tokens."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bertjax.errors import UserError
from bertjax.tasks.relation.files import MARKS, Relation, sort_marks
from bertjax.text.special import is_unused
from bertjax.text.tokenizer import Tokenizer

STARTS = 'starts'  # a row array: the positions of the first tokens of the opening marks, subject and object
# The values of config.task.markers, which are methods of marking the entities:
# 'entity' puts marks around each entity (arXiv 1906.03158).
# 'typed' also adds the type after the opening mark (arXiv 2102.01373), for example @ * person * Ann @.
# 'mask' replaces the words of an entity by the opening mark and the type, so that the model cannot memorize names. In
#   Zhang et al. 2017, the mask is a single token.
# 'words' puts MARKS around each entity, as in the benchmarks of SciBERT.
MARKERS = ('entity', 'typed', 'mask', 'words')
TYPED = ('typed', 'mask')  # the methods that require the types of both entities
_PUNCTUATION = ('@', '@', '#', '#')
_TYPES = ('*', '^')
_OUTSIDE = 1e6  # larger than any distance in a text


def role_marks(tokenizer: Tokenizer, markers: str) -> list[np.ndarray]:
    """Returns the tokens of four marks: the opening and the closing mark of the subject, then of the object.

    'typed' uses the punctuation marks of arXiv 2102.01373, and 'words' uses MARKS. 'entity' and 'mask' use four
    [unusedN] tokens, or the marks of 'typed' if the vocabulary has fewer than four such tokens.
    """
    slots = [i for i, piece in enumerate(tokenizer.pieces) if is_unused(piece)][:4]
    if markers in ('entity', 'mask') and len(slots) == 4:
        return [np.int32([slot]) for slot in slots]
    return tokenizer.encode([tokenizer.word_prefix + mark for mark in (MARKS if markers == 'words' else _PUNCTUATION)])


def describe_marks(tokenizer: Tokenizer, markers: str) -> str:
    """Returns a one-line description of the marks of the entities."""
    marks = [tokenizer.decode(mark).strip() for mark in role_marks(tokenizer, markers)]
    if markers == 'mask':
        return f'entities are replaced by {marks[0]} and {marks[2]} and their types'
    types = (' * type *', ' ^ type ^') if markers == 'typed' else ('', '')
    return f'entities are marked by {marks[0]}{types[0]} … {marks[1]} and {marks[2]}{types[1]} … {marks[3]}'


_MARK, _TYPE, _ENTITY, _CONTEXT = 'mark', 'type', 'entity', 'context'


def encode_relations(
    records: Sequence[Relation], tokenizer: Tokenizer, seq_len: int, markers: str
) -> Iterator[tuple[np.ndarray, Sequence[int], np.ndarray, bool]]:
    """Yields four values for each record.

    The values are the tokens, without [CLS] and [SEP]; the positions of the two opening marks; a boolean array
    that is True for the tokens of marks and types; and whether the sequence is complete, that is, not truncated.

    A sequence longer than `seq_len` is truncated in three steps, as far as needed. The first step removes tokens before
    the first entity and after the last entity, the farthest tokens first. The second step removes the middle of the
    text between the entities. The third step removes the last tokens of the entities and of their types.

    Raises:
      UserError: `seq_len` is too small for the marks.
    """
    marks, max_tokens = role_marks(tokenizer, markers), seq_len - 2
    record_parts = [_move_spaces(_parts(record, markers), tokenizer.word_prefix) for record in records]
    texts = [part.text for parts in record_parts for part in parts if part.kind != _MARK]
    encoded = iter(tokenizer.encode(texts))
    for record, parts in zip(records, record_parts, strict=True):
        pieces = [marks[part.mark] if part.kind == _MARK else next(encoded) for part in parts]
        tokens, lengths = np.concatenate(pieces), [len(piece) for piece in pieces]
        begins = np.cumsum([0, *lengths])
        starts = [begins[[part.mark for part in parts].index(2 * role)] for role in (0, 1)]
        fixed = np.repeat([part.kind in (_MARK, _TYPE) for part in parts], lengths)
        if len(tokens) > max_tokens:
            positions = _select_positions(parts, lengths, max_tokens, record.where)
            yield tokens[positions], np.searchsorted(positions, starts), fixed[positions], False
        else:
            yield tokens, starts, fixed, True


class _Part(NamedTuple):
    """A part of a sequence. A mark has `mark`, its index in `role_marks`. A type, entity or context has `text`."""

    kind: str
    text: str = ''
    mark: int = -1


def _parts(record: Relation, markers: str) -> list[_Part]:
    parts: list[_Part] = []
    position = open_entities = 0
    for offset, mark in sort_marks(record.entities):
        role, closes = divmod(mark, 2)
        if not (open_entities and markers == 'mask'):
            parts.append(_Part(_ENTITY if open_entities else _CONTEXT, record.text[position:offset]))
        position = offset
        open_entities += -1 if closes else 1
        if closes and markers == 'mask':
            continue
        parts.append(_Part(_MARK, mark=mark))
        if not closes and markers in TYPED:
            kind = record.entities[role].type.lower().replace('_', ' ')
            sign = _TYPES[role] if markers == 'typed' else ''
            parts.append(_Part(_TYPE, f'{sign} {kind} {sign}'))
    return [*parts, _Part(_CONTEXT, record.text[position:])]


def _move_spaces(parts: Sequence[_Part], prefix: str) -> list[_Part]:
    """Moves a space before a mark to the word after the mark. `prefix` is `Tokenizer.word_prefix`; '' changes nothing.

    Without this, a byte-level BPE would read the word as a continuation of the mark, and the space as a separate piece.
    """
    # A word after a mark at the start of the text also gets the space.
    moved, space = [], '' if parts[0].text else prefix
    for part in parts:
        if part.kind == _MARK or not prefix:
            moved.append(part)
            continue
        text = part.text.rstrip(' ')
        needs_space = text and text[0] != ' ' and (space or part.kind == _TYPE)
        moved.append(part._replace(text=prefix + text if needs_space else text))
        # After a type, the entity is a new word. A part without text does not change `space`.
        if part.text:
            space = prefix if part.kind == _TYPE or len(text) < len(part.text) else ''
    return moved


def _select_positions(parts: Sequence[_Part], lengths: Sequence[int], max_tokens: int, where: str) -> np.ndarray:
    """Returns the ascending positions of the tokens to keep: the `max_tokens` tokens with the lowest costs."""
    costs = []
    marked = [i for i, part in enumerate(parts) if part.kind == _MARK]
    for i, (part, length) in enumerate(zip(parts, lengths, strict=True)):
        offset = np.arange(length, dtype=np.float64)
        if part.kind == _MARK:
            costs.append(np.full(length, -1.0))
        elif part.kind in (_TYPE, _ENTITY):
            costs.append(offset / (length + 1))
        elif i < marked[0]:
            costs.append(_OUTSIDE + offset[::-1])
        elif i > marked[-1]:
            costs.append(_OUTSIDE + offset)
        else:
            costs.append(1 + np.minimum(offset, offset[::-1]))
    if sum(lengths[i] for i in marked) > max_tokens:
        fix, found = 'raise config.seq_len', f'marks that do not fit in {max_tokens + 2} pieces'
        raise UserError(where, found, 'enough pieces for the marks and some text', fix)
    return np.sort(np.argsort(np.concatenate(costs), kind='stable')[:max_tokens])
