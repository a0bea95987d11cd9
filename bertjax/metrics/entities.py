"""Entities in sequences of tags: spans, the schemes of tags, and scores as conlleval counts them."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class EntitySpan(NamedTuple):
    """An entity: words `start` up to, not including, `end`."""

    type: str
    start: int
    end: int


# The letters of the schemes that mark ends too: the first word, a middle one, the last, and the only word of an entity.
WITH_ENDS = {'bioes': 'BIES', 'bilou': 'BILU', 'bmes': 'BMES'}
IOE = ('ioe2', 'ioe1')  # the mirror images of IOB: E is the last word of an entity
ENDS = 'ESLUM'  # those of them that IOB has not
_ALIKE = {'M': 'I', 'L': 'E', 'U': 'S'}


def split_tag(tag: str) -> tuple[str, str]:
    """'B-PER' -> ('B', 'PER'); types may contain hyphens, and may be missing ('B')."""
    prefix, _, type = tag.partition('-')
    return prefix, type


def spans(tags: Sequence[str]) -> list[EntitySpan]:
    """The entities of a sentence, in any scheme and in invalid sequences.

    An entity begins at B and S, and at an I or E that follows O, an end or another type; it ends with E and S, before O
    and before the next entity. M is read as I, L as E, U as S. B, I and O are read so by conlleval too, which knows no
    S, L, U and M, and no entity that begins after E; E and S by seqeval.
    """
    found: list[EntitySpan] = []
    start, inside = 0, None
    for i, tag in enumerate([*tags, 'O']):
        prefix, type = split_tag(tag)
        prefix = _ALIKE.get(prefix, prefix)
        begins = prefix in ('B', 'S') or (prefix in ('I', 'E') and type != inside)
        if inside is not None and (begins or prefix == 'O'):
            found.append(EntitySpan(inside, start, i))
            inside = None
        if begins:
            start, inside = i, type
        if prefix in ('E', 'S'):
            found.append(EntitySpan(type, start, i + 1))
            inside = None
    return found


def _with_prefix(prefix: str, type: str) -> str:
    return f'{prefix}-{type}' if type else prefix


def to_iob2(tags: Sequence[str]) -> list[str]:
    """The same entities, each beginning with B. Valid IOB2 is unchanged."""
    return to_scheme(tags, 'iob2')


def to_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """The same entities in a scheme: 'iob2'; 'iob1' (B only where one directly follows another of the same type);
    'ioe2' (E at every end); 'ioe1' (E only where one of the same type directly follows); or of WITH_ENDS. What is valid
    in the scheme is unchanged."""
    new = ['O'] * len(tags)
    found = spans(tags)
    starts, ends = ({(span.type, span[side]) for span in found} for side in (1, 2))
    for type, start, end in found:
        first, middle, last, only = WITH_ENDS.get(scheme, 'IIEE' if scheme in IOE else 'BIIB')
        if scheme == 'iob1' and (type, start) not in ends:
            first = only = 'I'
        if scheme == 'ioe1' and (type, end) not in starts:
            last = only = 'I'
        letters = only if end - start == 1 else first + middle * (end - start - 2) + last
        new[start:end] = [_with_prefix(letter, type) for letter in letters]
    return new


@dataclasses.dataclass(frozen=True)
class EntityScore:
    """Counts of entities: true ones, predicted ones, and those in both with the same words and type.

    Precision, recall and F1 are 0 where the denominator is 0, as in conlleval and seqeval.
    """

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are right."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """Share of the true entities that were found."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.right / (self.gold + self.found) if self.gold + self.found else 0.0


def score_entities(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, EntityScore]:
    """Scores by entity type, sorted by name.

    Args:
      gold, predicted: the tags of each sentence, of equal lengths.

    Raises:
      ValueError: sentences of different lengths, or different numbers of them.
    """
    counts: dict[str, list[int]] = {}
    for true, guessed in zip(gold, predicted, strict=True):
        if len(true) != len(guessed):
            raise ValueError(f'{len(guessed)} predicted tags for {len(true)} words')
        there, found = set(spans(true)), set(spans(guessed))
        for i, group in enumerate((there, found, there & found)):
            for span in group:
                counts.setdefault(span.type, [0, 0, 0])[i] += 1
    return {type: EntityScore(*counts[type]) for type in sorted(counts)}


def total_score(scores: dict[str, EntityScore]) -> EntityScore:
    """Micro average: the summed counts of all types."""
    parts = [(score.gold, score.found, score.right) for score in scores.values()]
    return EntityScore(*(sum(column) for column in zip(*parts, strict=True))) if parts else EntityScore(0, 0, 0)


def tag_accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float | None:
    """Share of words with the right tag; None without words."""
    right = words = 0
    for true, guessed in zip(gold, predicted, strict=True):
        right += sum(a == b for a, b in zip(true, guessed, strict=True))
        words += len(true)
    return right / words if words else None
