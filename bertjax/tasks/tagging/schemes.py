"""Detects the tagging scheme of a file, and checks tags."""

import re
from collections.abc import Sequence

from bertjax.errors import UserError
from bertjax.metrics.entities import ENDS, IOE, WITH_ENDS, EntitySpan, spans, to_scheme

# {name of a scheme in other programs: its name in this package}.
ALIASES = {'bio': 'iob2', 'iobes': 'bioes', 'bieos': 'bioes', 'bioul': 'bilou', 'bmeso': 'bmes'}
_IOB = ('iob2', 'iob1')
ENTITIES = (*_IOB, *WITH_ENDS, *IOE)
SCHEMES = ('auto', *ENTITIES, 'plain', *ALIASES)
_TAG = re.compile(r'O|[BIESLUM](-.+)?')
_MAX_DEVIATIONS = 0.01  # the fraction of a file's entities that may deviate from a detected scheme
_MAX_LOCATIONS = 10  # the maximum number of locations of deviating entities in the message


def check_tags(tags: Sequence[str], locations: Sequence[str], scheme: str) -> None:
    """Raises a UserError if a tag has an invalid form, such as X-PER. In the scheme 'plain', only '' is invalid.

    `locations` has the location of each tag, 'file:line'. `detect_scheme` checks whether the tags fit the scheme.
    """
    for tag, location in zip(tags, locations, strict=True):
        if tag and (scheme == 'plain' or _TAG.fullmatch(tag)):
            continue
        fix = 'set config.task.tag_column to the column of the tags (config.task.tags for rows of JSON or Arrow)'
        if scheme != 'plain':
            fix += ", or set config.task.scheme='plain' if the tags do not mark entities"
        expected = 'a tag' if scheme == 'plain' else 'O, B-TYPE or I-TYPE (or E, S, L, U or M instead of B)'
        raise UserError(location, f'the tag {tag[:40]!r}', expected, fix)


def detect_scheme(
    sentences: Sequence[Sequence[str]], locations: Sequence[Sequence[str]], where: str, scheme: str
) -> str:
    """Returns the scheme of a file, and prints the locations of the first entities that deviate from it.

    Args:
      sentences, locations: The tags of each sentence, and the location of each tag, 'file:line'.
      scheme: One of ENTITIES, or 'auto' for the scheme that fits most entities, '' if there are none.

    Raises:
      UserError: `scheme` is 'auto', and no scheme fits 99 % of the entities.
    """
    entities = [spans(tags) for tags in sentences]
    total = sum(map(len, entities))
    candidates: Sequence[str] = (scheme,)
    if scheme == 'auto':
        candidates = ENTITIES if any(tag[:1] in ENDS for tags in sentences for tag in tags) else _IOB
    deviations = {name: _find_deviations(sentences, entities, locations, name) for name in candidates}
    best = min(deviations, key=lambda name: len(deviations[name]))
    if scheme == 'auto' and not total:
        return ''
    if deviations[best]:
        (location, tags), name, count = deviations[best][0], best.upper(), len(deviations[best])
        if scheme == 'auto' and count > _MAX_DEVIATIONS * total:
            found = f'an entity with the tags {tags}, one of {count:,} that are not {name}'
            expected = f'99 % of the {total:,} entities of {where} in the same scheme ({name} fits best)'
            accept = f'set config.task.scheme, for example to {best}, to accept entities that deviate from the scheme'
            raise UserError(location, found, expected, f'correct the tags, or {accept}')
        first = [location.removeprefix(where).strip(':[]') for location, _ in deviations[best][:_MAX_LOCATIONS]]
        locations = ', '.join(first) + (' …' if count > _MAX_LOCATIONS else '')
        print(f'{where}: read as {name}; {count:,} of {total:,} entities deviate from this scheme, at {locations}')
    return best


def _find_deviations(
    sentences: Sequence[Sequence[str]],
    entities: Sequence[Sequence[EntitySpan]],
    locations: Sequence[Sequence[str]],
    scheme: str,
) -> list[tuple[str, str]]:
    """Returns the location and the tags of each entity whose tags deviate from the scheme."""
    deviations = []
    for tags, sentence_entities, tag_locations in zip(sentences, entities, locations, strict=True):
        expected = to_scheme(tags, scheme) if sentence_entities else tags
        for _, start, end in sentence_entities:
            if list(tags[start:end]) != expected[start:end]:
                deviations.append((tag_locations[start], ' '.join(tags[start:end])[:60]))
    return deviations
