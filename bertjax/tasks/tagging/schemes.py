"""Detects the tagging scheme of a file, and what is wrong with its tags."""

import re
from collections.abc import Sequence

from bertjax.errors import UserError
from bertjax.metrics.entities import ENDS, IOE, WITH_ENDS, EntitySpan, spans, to_scheme

# Names of the same schemes, as other programs have them.
ALIASES = {'bio': 'iob2', 'iobes': 'bioes', 'bieos': 'bioes', 'bioul': 'bilou', 'bmeso': 'bmes'}
_IOB = ('iob2', 'iob1')
ENTITIES = (*_IOB, *WITH_ENDS, *IOE)
SCHEMES = ('auto', *ENTITIES, 'plain', *ALIASES)
_TAG = re.compile(r'O|[BIESLUM](-.+)?')
_STRAYS = 0.01  # share of the entities of a file that may be written in another way
_SHOWN = 10


def check_tags(tags: Sequence[str], places: Sequence[str], scheme: str) -> None:
    """Raises UserError at the first invalid one of a sentence's `tags`, which stand at `places`."""
    for tag, place in zip(tags, places, strict=True):
        if tag and (scheme == 'plain' or _TAG.fullmatch(tag)):
            continue
        fix = 'choose its column with config.task.tag_column'
        if scheme != 'plain':
            fix += ", or set config.task.scheme='plain' for tags that mark no entities"
        expected = 'a tag' if scheme == 'plain' else 'O, B-TYPE or I-TYPE (or one of E, S, L, U, M, and a type)'
        raise UserError(place, f'the tag {tag[:40]!r}', expected, fix)


def file_scheme(sentences: Sequence[Sequence[str]], places: Sequence[Sequence[str]], where: str, scheme: str) -> str:
    """The scheme of a file; prints which entities are not written in it. They begin and end where `spans` says.

    Args:
      sentences: their tags.
      places: of each tag, 'file:line'.
      where: the file.
      scheme: its name; 'auto' for the one that most entities are written in.

    Returns:
      one of ENTITIES; with 'auto' '' for a file without entities.

    Raises:
      UserError: with 'auto', no scheme explains 99 % of the entities.
    """
    found = [spans(tags) for tags in sentences]
    total = sum(map(len, found))
    strays = {name: _strays(sentences, found, places, name) for name in _possible(sentences, scheme)}
    best = min(strays, key=lambda name: len(strays[name]))
    if scheme == 'auto' and not total:
        return ''
    if strays[best]:
        place, tags = strays[best][0]
        if scheme == 'auto' and len(strays[best]) > _STRAYS * total:
            raise UserError(
                place,
                f'an entity with the tags {tags}, one of {len(strays[best]):,} that are not {best.upper()}',
                f'99 % of the {total:,} entities of {where} in one scheme ({best.upper()} comes closest)',
                f'correct the tags, or name the scheme with config.task.scheme, such as {best}: '
                'then entities begin and end wherever their tags let them',
            )
        shown = ', '.join(place.removeprefix(where).strip(':[]') for place, _ in strays[best][:_SHOWN])
        more = ' …' if len(strays[best]) > _SHOWN else ''
        print(
            f'{where}: read as {best.upper()}; {len(strays[best]):,} of {total:,} entities are not written so, at '
            f'{shown}{more}: they begin and end where their tags let them'
        )
    return best


def _possible(sentences: Sequence[Sequence[str]], scheme: str) -> Sequence[str]:
    if scheme != 'auto':
        return (scheme,)
    ends = any(tag[:1] in ENDS for tags in sentences for tag in tags)
    return ENTITIES if ends else _IOB


def _strays(
    sentences: Sequence[Sequence[str]],
    found: Sequence[Sequence[EntitySpan]],
    places: Sequence[Sequence[str]],
    scheme: str,
) -> list[tuple[str, str]]:
    """Place and tags of each entity that the scheme writes in another way."""
    strays = []
    for tags, entities, of in zip(sentences, found, places, strict=True):
        written = to_scheme(tags, scheme) if entities else tags
        for _, start, end in entities:
            if list(tags[start:end]) != written[start:end]:
                strays.append((of[start], ' '.join(tags[start:end])[:60]))
    return strays
