"""Detection of the tagging scheme of a file, and of invalid tags."""

import re
from collections.abc import Sequence

from bertjax.errors import UserError
from bertjax.metrics.entities import ENDS, IOE, WITH_ENDS, EntitySpan, spans, to_scheme

# Names of the schemes in other programs -> our names.
ALIASES = {'bio': 'iob2', 'iobes': 'bioes', 'bieos': 'bioes', 'bioul': 'bilou', 'bmeso': 'bmes'}
_IOB = ('iob2', 'iob1')
ENTITIES = (*_IOB, *WITH_ENDS, *IOE)
SCHEMES = ('auto', *ENTITIES, 'plain', *ALIASES)
_TAG = re.compile(r'O|[BIESLUM](-.+)?')
_MAX_STRAYS = 0.01  # share of the entities of a file that may deviate from its scheme
_MAX_PLACES = 10


def check_tags(tags: Sequence[str], places: Sequence[str], scheme: str) -> None:
    """Raises UserError for the first invalid tag of a sentence; `places` are the places of its tags."""
    for tag, place in zip(tags, places, strict=True):
        if tag and (scheme == 'plain' or _TAG.fullmatch(tag)):
            continue
        fix = 'choose its column with config.task.tag_column'
        if scheme != 'plain':
            fix += ", or set config.task.scheme='plain' for tags that mark no entities"
        expected = 'a tag' if scheme == 'plain' else 'O, B-TYPE or I-TYPE (or one of E, S, L, U, M, and a type)'
        raise UserError(place, f'the tag {tag[:40]!r}', expected, fix)


def detect_scheme(sentences: Sequence[Sequence[str]], places: Sequence[Sequence[str]], where: str, scheme: str) -> str:
    """Returns the scheme of a file, and prints the entities that deviate from it; `spans` defines their bounds.

    Args:
      sentences: The tags of each sentence.
      places: The place of each tag, 'file:line'.
      where: The name of the file.
      scheme: The name of the scheme; 'auto' for the scheme of most entities.

    Returns:
      One of ENTITIES; '' for a file without entities, if `scheme` is 'auto'.

    Raises:
      UserError: No scheme fits 99 % of the entities, if `scheme` is 'auto'.
    """
    entities = [spans(tags) for tags in sentences]
    total = sum(map(len, entities))
    strays = {name: _find_strays(sentences, entities, places, name) for name in _candidate_schemes(sentences, scheme)}
    best = min(strays, key=lambda name: len(strays[name]))
    if scheme == 'auto' and not total:
        return ''
    if strays[best]:
        place, tags = strays[best][0]
        if scheme == 'auto' and len(strays[best]) > _MAX_STRAYS * total:
            raise UserError(
                place,
                f'an entity with the tags {tags}, one of {len(strays[best]):,} that are not {best.upper()}',
                f'99 % of the {total:,} entities of {where} in one scheme ({best.upper()} comes closest)',
                f'correct the tags, or name the scheme with config.task.scheme, such as {best}: '
                'then entities begin and end wherever their tags let them',
            )
        first_places = ', '.join(place.removeprefix(where).strip(':[]') for place, _ in strays[best][:_MAX_PLACES])
        more = ' …' if len(strays[best]) > _MAX_PLACES else ''
        print(
            f'{where}: read as {best.upper()}; {len(strays[best]):,} of {total:,} entities are not written so, at '
            f'{first_places}{more}: they begin and end where their tags let them'
        )
    return best


def _candidate_schemes(sentences: Sequence[Sequence[str]], scheme: str) -> Sequence[str]:
    if scheme != 'auto':
        return (scheme,)
    ends = any(tag[:1] in ENDS for tags in sentences for tag in tags)
    return ENTITIES if ends else _IOB


def _find_strays(
    sentences: Sequence[Sequence[str]],
    entities: Sequence[Sequence[EntitySpan]],
    places: Sequence[Sequence[str]],
    scheme: str,
) -> list[tuple[str, str]]:
    """Returns the place and the tags of each entity whose tags deviate from the scheme."""
    strays = []
    for tags, sentence_entities, tag_places in zip(sentences, entities, places, strict=True):
        expected = to_scheme(tags, scheme) if sentence_entities else tags
        for _, start, end in sentence_entities:
            if list(tags[start:end]) != expected[start:end]:
                strays.append((tag_places[start], ' '.join(tags[start:end])[:60]))
    return strays
