"""Entities in tag sequences: their spans, tag schemes, and scores as in conlleval."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bertjax.metrics.classification import ClassScores, scores_from_counts


class EntitySpan(NamedTuple):
    """An entity, which consists of the words from `start` to `end` (exclusive)."""

    type: str
    start: int
    end: int


# {scheme: the letters of the first word, a middle word, the last word, and the only word of an entity}. For the
# exceptions of IOB1 and IOE1, see `to_scheme`.
LETTERS = {'iob2': 'BIIB', 'iob1': 'BIIB', 'bioes': 'BIES', 'bilou': 'BILU', 'bmes': 'BMES'}
LETTERS |= {'ioe2': 'IIEE', 'ioe1': 'IIEE'}  # mirror images of IOB2 and IOB1
WITH_ENDS = ('bioes', 'bilou', 'bmes')  # the schemes that mark both the start and the end of an entity
ENDS = 'ESLUM'  # the letters that occur only in WITH_ENDS, IOE1 and IOE2
_SYNONYMS = {'M': 'I', 'L': 'E', 'U': 'S'}


def split_tag(tag: str) -> tuple[str, str]:
    """Splits a tag such as 'B-PER' into ('B', 'PER'). The type may contain hyphens. The type of 'B' is ''."""
    prefix, _, type = tag.partition('-')
    return prefix, type


def spans(tags: Sequence[str], plain: bool = False) -> list[EntitySpan]:
    """Returns the entities of a sentence. The tags may follow any scheme and may be an invalid sequence.

    If `plain` is True, the tags follow no scheme, and each word is an entity of its own.

    An entity begins at a B or S. It also begins at an I or E that is first in the sentence or follows O, the end of an
    entity, or a tag of another type. It ends with an E or S, before an O, before the next entity, and at the end of the
    sentence. M counts as I, L as E, and U as S.

    The rules for B, I and O come from conlleval, and those for E and S from seqeval.
    """
    if plain:
        return [EntitySpan(tag, i, i + 1) for i, tag in enumerate(tags)]
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


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Converts tags to IOB2, where each entity begins with B. Valid IOB2 tags do not change."""
    return to_scheme(tags, 'iob2')


def to_scheme(tags: Sequence[str], scheme: str) -> list[str]:
    """Converts tags to a scheme. Tags that are valid in the scheme do not change.

    Args:
      tags: The tags of a sentence, in any scheme.
      scheme: A key of LETTERS. In 'iob1', an entity begins with B only if it directly follows another entity of its
        type. In 'ioe1', an entity ends with E only if another entity of its type directly follows.
    """
    new = ['O'] * len(tags)
    entities = spans(tags)
    starts, ends = ({(span.type, span[side]) for span in entities} for side in (1, 2))
    for type, start, end in entities:
        first, middle, last, only = LETTERS[scheme]
        if scheme == 'iob1' and (type, start) not in ends:
            first = only = 'I'
        if scheme == 'ioe1' and (type, end) not in starts:
            last = only = 'I'
        letters = only if end - start == 1 else first + middle * (end - start - 2) + last
        new[start:end] = [f'{letter}-{type}' if type else letter for letter in letters]
    return new


def score_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], plain: bool = False
) -> dict[str, ClassScores]:
    """Returns the scores of each entity type, {type: scores}, sorted by type, from the tags of each sentence.

    A predicted entity is right if it has the words and the type of a true entity. For `plain`, see `spans`.
    """
    counts: dict[str, list[int]] = {}
    for true, guessed in zip(gold, predicted, strict=True):
        true_spans, predicted_spans = set(spans(true, plain)), set(spans(guessed, plain))
        for i, group in enumerate((true_spans & predicted_spans, true_spans, predicted_spans)):
            for span in group:
                counts.setdefault(span.type, [0, 0, 0])[i] += 1
    return {type: scores_from_counts(*counts[type]) for type in sorted(counts)}


def total_score(scores: dict[str, ClassScores]) -> ClassScores:
    """Returns the micro average over the types: the scores of the summed counts."""
    return scores_from_counts(
        *(sum(getattr(score, count) for score in scores.values()) for count in ('right', 'true', 'predicted'))
    )


def tag_accuracy(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Returns the fraction of words with the correct tag. There must be at least one word."""
    right = words = 0
    for true, guessed in zip(gold, predicted, strict=True):
        right += sum(a == b for a, b in zip(true, guessed, strict=True))
        words += len(true)
    return right / words
