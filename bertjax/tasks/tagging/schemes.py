"""Detects the tagging scheme of a column file, and what is wrong with its tags."""

import re
from collections.abc import Iterator, Sequence

from bertjax.errors import UserError
from bertjax.metrics.entities import split_tag

SCHEMES = ('auto', 'iob1', 'iob2', 'plain')
_IOB = re.compile(r'O|[BI](-.+)?')
_OTHER_SCHEMES = ('E-', 'S-', 'L-', 'U-', 'M-')


def check_tags(tags: Sequence[str], numbers: Sequence[int], where: str, scheme: str) -> None:
    """Raises UserError at the first invalid one of a sentence's `tags`, which are on the lines `numbers`."""
    for tag, number in zip(tags, numbers, strict=True):
        if tag and (scheme == 'plain' or _IOB.fullmatch(tag)):
            continue
        mend = 'choose its column with config.task.tag_column'
        if scheme != 'plain':
            mend += ", or set config.task.scheme='plain' for tags that mark no entities"
            if tag.startswith(_OTHER_SCHEMES):
                mend = 'convert the tags to IOB2'
        expected = 'a tag' if scheme == 'plain' else 'O, B-TYPE or I-TYPE'
        raise UserError(f'{where}:{number}', f'the tag {tag!r}', expected, mend)


def _beginnings(tags: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(index, prefix) of each word that begins an entity and does not follow a word of the same type."""
    inside = None
    for i, tag in enumerate(tags):
        prefix, type = split_tag(tag)
        if prefix != 'O' and type != inside:
            yield i, prefix
        inside = None if prefix == 'O' else type


def find_scheme(sentences: Sequence[Sequence[str]], numbers: Sequence[Sequence[int]], where: str) -> str:
    """'iob1' where entities begin with I, 'iob2' where they begin with B, '' without entities.

    Args:
      sentences: their tags.
      numbers: their lines in the file `where`.

    Raises:
      UserError: some entities begin with I and some with B.
    """
    lines: dict[str, list[int]] = {'I': [], 'B': []}
    for tags, of in zip(sentences, numbers, strict=True):
        for i, prefix in _beginnings(tags):
            lines[prefix].append(of[i])
    if lines['I'] and lines['B']:
        few, many = sorted(lines, key=lambda prefix: len(lines[prefix]))
        raise UserError(
            f'{where}:{lines[few][0]}',
            f'an entity that begins with {few}, as {len(lines[few]):,} do',
            f'{many}, as in line {lines[many][0]} and {len(lines[many]):,} in all',
            'correct the tags, or name the scheme with config.task.scheme=iob2 or iob1: '
            'then entities begin wherever conlleval lets them begin',
        )
    return 'iob1' if lines['I'] else 'iob2' if lines['B'] else ''


def report_strays(
    sentences: Sequence[Sequence[str]], numbers: Sequence[Sequence[int]], where: str, scheme: str
) -> None:
    """Prints how many entities begin in a way that is invalid in the named `scheme`."""
    wrong = {'iob1': 'B', 'iob2': 'I'}[scheme]
    strays = [
        of[i] for tags, of in zip(sentences, numbers, strict=True) for i, prefix in _beginnings(tags) if prefix == wrong
    ]
    if strays:
        print(
            f'{where}: {len(strays):,} entities begin with {wrong}, which {scheme.upper()} does not have (the first in '
            f'line {strays[0]}); they are read as conlleval reads them'
        )
