"""Entities in sequences of tags: spans, tag schemes, and the scores of conlleval."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class EntitySpan(NamedTuple):
    """An entity: the words `start` to `end`, exclusive."""

    type: str
    start: int
    end: int


# The letters of schemes that also mark ends: for the first, a middle, the last, and the only word of an entity.
WITH_ENDS = {'bioes': 'BIES', 'bilou': 'BILU', 'bmes': 'BMES'}
IOE = ('ioe2', 'ioe1')  # the mirror images of IOB: E marks the last word of an entity
ENDS = 'ESLUM'  # the letters that IOB does not have
_SYNONYMS = {'M': 'I', 'L': 'E', 'U': 'S'}


def split_tag(tag: str) -> tuple[str, str]:
    """Splits 'B-PER' into ('B', 'PER'); types may contain hyphens, and may be missing ('B')."""
    prefix, _, type = tag.partition('-')
    return prefix, type


def spans(tags: Sequence[str]) -> list[EntitySpan]:
    """Returns the entities of a sentence, in any scheme and even in invalid sequences.

    An entity begins at B and S, and at an I or E that follows O, an end or another type. It ends with E and S, before
    O, and before the next entity. M counts as I, L as E, U as S. The rules for B, I and O are those of conlleval, which
    has no S, L, U and M and no entity that begins after E; the rules for E and S are those of seqeval.
    """
    entities: list[EntitySpan] = []
    start, inside = 0, None
    for i, tag in enumerate([*tags, 'O']):
        prefix, type = split_tag(tag)
        prefix = _SYNONYMS.get(prefix, prefix)
        begins = prefix in ('B', 'S') or (prefix in ('I', 'E') and type != inside)
        if inside is not None and (begins or prefix == 'O'):
            entities.append(EntitySpan(inside, start, i))
            inside = None
        if begins:
            start, inside = i, type
        if prefix in ('E', 'S'):
            entities.append(EntitySpan(type, start, i + 1))
            inside = None
    return entities


def _with_prefix(prefix: str, type: str) -> str:
    return f'{prefix}-{type}' if type else prefix


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Converts tags to IOB2, where each entity begins with B. Valid IOB2 is unchanged."""
    return to_scheme(tags, 'iob2')


def to_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Converts tags to a scheme; tags that are valid in the scheme are unchanged.

    Args:
      tags: The tags of a sentence in any scheme.
      scheme: 'iob2'; 'iob1' (B only if the entity directly follows one of the same type); 'ioe2' (E at every end);
        'ioe1' (E only if an entity of the same type directly follows); or a key of WITH_ENDS.
    """
    new = ['O'] * len(tags)
    entities = spans(tags)
    starts, ends = ({(span.type, span[side]) for span in entities} for side in (1, 2))
    for type, start, end in entities:
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
    """Counts of entities, and the scores that follow from them.

    Precision, recall and F1 are 0 if the denominator is 0, as in conlleval and seqeval.

    Attributes:
      gold: The number of true entities.
      found: The number of predicted entities.
      right: The number of predicted entities that equal a true one in words and type.
    """

    gold: int
    found: int
    right: int

    @property
    def precision(self) -> float:
        """The share of the predicted entities that are right."""
        return self.right / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """The share of the true entities that were predicted."""
        return self.right / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.right / (self.gold + self.found) if self.gold + self.found else 0.0


def score_entities(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, EntityScore]:
    """Returns the scores by entity type, sorted by name.

    Args:
      gold, predicted: The tags of each sentence, of equal lengths.

    Raises:
      ValueError: The numbers of sentences, or the lengths of a sentence, differ.
    """
    counts: dict[str, list[int]] = {}
    for true, guessed in zip(gold, predicted, strict=True):
        if len(true) != len(guessed):
            raise ValueError(f'{len(guessed)} predicted tags for {len(true)} words')
        true_spans, predicted_spans = set(spans(true)), set(spans(guessed))
        for i, group in enumerate((true_spans, predicted_spans, true_spans & predicted_spans)):
            for span in group:
                counts.setdefault(span.type, [0, 0, 0])[i] += 1
    return {type: EntityScore(*counts[type]) for type in sorted(counts)}


def total_score(scores: dict[str, EntityScore]) -> EntityScore:
    """Returns the micro average: the summed counts of all types."""
    parts = [(score.gold, score.found, score.right) for score in scores.values()]
    return EntityScore(*(sum(column) for column in zip(*parts, strict=True))) if parts else EntityScore(0, 0, 0)


def tag_accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float | None:
    """Returns the share of words with the right tag; None without words."""
    right = words = 0
    for true, guessed in zip(gold, predicted, strict=True):
        right += sum(a == b for a, b in zip(true, guessed, strict=True))
        words += len(true)
    return right / words if words else None
