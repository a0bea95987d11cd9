"""Checks the tags of a file, and finds their scheme."""

import re
from collections.abc import Sequence

from bertjax.errors import UserError
from bertjax.metrics.entities import ENDS, LETTERS, EntitySpan, spans, to_scheme

# {name of a scheme in other programs: its name in this package}.
ALIASES = {'bio': 'iob2', 'iobes': 'bioes', 'bieos': 'bioes', 'bioul': 'bilou', 'bmeso': 'bmes'}
_IOB = ('iob2', 'iob1')
ENTITIES = tuple(LETTERS)
SCHEMES = ('auto', *ENTITIES, 'plain', *ALIASES)
_TAG = re.compile(r'O|[BIESLUM](-.+)?')
_MAX_DEVIATIONS = 0.01  # the fraction of a file's entities that may deviate from a detected scheme
_MAX_LOCATIONS = 10  # the maximum number of locations of deviating entities in the message


def find_scheme(sentences: Sequence[Sequence[str]], locations: Sequence[Sequence[str]], where: str, scheme: str) -> str:
    """Checks the tags of a file, and returns its scheme. Prints where the first deviating entities are.

    Args:
      sentences, locations: The tags of each sentence, and the location of each tag, 'file:line'.
      scheme: One of SCHEMES. For 'auto', the result is the scheme that fits most entities, '' if there are none.

    Raises:
      UserError: A tag has an invalid form, such as X-PER; in the scheme 'plain', only '' is invalid. Or `scheme` is
        'auto', and no scheme fits 99 % of the entities.
    """
    scheme = ALIASES.get(scheme, scheme)
    # The O after each sentence separates its entities from those of the next sentence.
    tags = [tag for sentence in sentences for tag in (*sentence, 'O')]
    tag_locations = [location for sentence in locations for location in (*sentence, '')]
    for tag, location in zip(tags, tag_locations, strict=True):
        _check_tag(tag, location, scheme)
    if scheme == 'plain':
        return scheme
    entities, candidates = spans(tags), (scheme,)
    if scheme == 'auto':
        candidates = ENTITIES if any(tag[:1] in ENDS for tag in tags) else _IOB
    deviations = {name: _find_deviations(tags, entities, name) for name in candidates}
    best = min(deviations, key=lambda name: len(deviations[name]))
    if scheme == 'auto' and not entities:
        return ''
    if deviations[best]:
        name, count, total = best.upper(), len(deviations[best]), len(entities)
        if scheme == 'auto' and count > _MAX_DEVIATIONS * total:
            _, start, end = deviations[best][0]
            found = f'an entity with the tags {" ".join(tags[start:end])[:60]}, one of {count:,} that are not {name}'
            expected = f'99 % of the {total:,} entities of {where} in the same scheme ({name} fits best)'
            accept = f'set config.task.scheme, for example to {best}, to accept entities that deviate from the scheme'
            raise UserError(tag_locations[start], found, expected, f'correct the tags, or {accept}')
        first = [
            tag_locations[span.start].removeprefix(where).strip(':[]') for span in deviations[best][:_MAX_LOCATIONS]
        ]
        listed = ', '.join(first) + (' …' if count > _MAX_LOCATIONS else '')
        print(f'{where}: read as {name}; {count:,} of {total:,} entities deviate from this scheme, at {listed}')
    return best


def _check_tag(tag: str, location: str, scheme: str) -> None:
    if tag and (scheme == 'plain' or _TAG.fullmatch(tag)):
        return
    fix = 'set config.task.tag_column to the column of the tags (config.task.tags for rows of JSON or Arrow)'
    if scheme != 'plain':
        fix += ", or set config.task.scheme='plain' if the tags do not mark entities"
    expected = 'a tag' if scheme == 'plain' else 'O, B-TYPE or I-TYPE (or E, S, L, U or M instead of B)'
    raise UserError(location, f'the tag {tag[:40]!r}', expected, fix)


def _find_deviations(tags: Sequence[str], entities: Sequence[EntitySpan], scheme: str) -> list[EntitySpan]:
    """Returns the entities whose tags deviate from the scheme."""
    expected = to_scheme(tags, scheme)
    return [span for span in entities if tags[span.start : span.end] != expected[span.start : span.end]]
