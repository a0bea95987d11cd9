"""Dependency trees from CoNLL-U (https://universaldependencies.org/format.html): syntactic words, heads, relations."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

from etils import epath

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Line, read_lines

_COLUMNS = 10
_RANGE = re.compile(r'([1-9][0-9]*)-([1-9][0-9]*)')  # a multiword token: a surface form over several words
_EMPTY = re.compile(r'(0|[1-9][0-9]*)\.[1-9][0-9]*')  # a node of the enhanced graph alone
_FIX = 'correct the line, or leave the sentence out'


@dataclasses.dataclass(frozen=True)
class Tree:
    """A sentence of N words.

    Attributes:
      where: 'file:line' of its first word.
      words: their forms, as the treebank splits them.
      heads: of each word the number of its head, from 1; 0 for a root.
      relations: of each word to its head, subtype and all: 'nsubj:pass'.
    """

    where: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_trees(path: epath.PathLike) -> Iterator[Tree]:
    """The sentences of a file, plain or compressed, each as soon as its lines are read.

    Comments, multiword tokens (`3-4`) and empty nodes (`5.1`) are passed over: only syntactic words have a head.

    Raises:
      UserError: no such file, or a line that is malformed.
    """
    return parse_trees(read_lines(path), str(path))


def parse_trees(lines: Iterable[Line], where: str) -> Iterator[Tree]:
    """See `read_trees`; `where` is the name of the file."""
    rows: dict[int, tuple[int, str, str, str]] = {}  # word -> its line, form, head, relation
    over: dict[int, int] = {}  # last word of each multiword token -> its line
    number = 0
    for number, line in lines:
        if not line.strip():
            yield from _finished(rows, over, where)
            rows, over = {}, {}
        elif line.startswith('#'):
            if rows:
                raise UserError(f'{where}:{number}', 'a comment inside a sentence', 'it before the first word', _FIX)
        else:
            _add(line.split('\t'), rows, over, f'{where}:{number}', number)
    yield from _finished(rows, over, where)


def _add(
    columns: list[str], rows: dict[int, tuple[int, str, str, str]], over: dict[int, int], place: str, line: int
) -> None:
    if len(columns) != _COLUMNS:
        fix = 'separate the columns by tabs' if len(columns) == 1 else _FIX
        raise UserError(place, f'{len(columns)} column(s)', f'{_COLUMNS} between tabs, as CoNLL-U has', fix)
    identifier, following = columns[0], len(rows) + 1
    if _EMPTY.fullmatch(identifier):
        return
    if span := _RANGE.fullmatch(identifier):
        first, last = map(int, span.groups())
        if first != following or last <= first:
            raise UserError(place, f'the multiword token {identifier}', f'one that begins with {following}', _FIX)
        over[last] = line
        return
    if identifier != str(following):
        raise UserError(place, f'the word {identifier!r}', f'word {following}, the next of its sentence', _FIX)
    if not columns[1]:
        raise UserError(place, 'an empty form', 'a word', _FIX)
    rows[following] = (line, columns[1], columns[6], columns[7])


def _finished(rows: Mapping[int, tuple[int, str, str, str]], over: Mapping[int, int], where: str) -> Iterator[Tree]:
    """The tree of the lines since the last blank one, if there is a word among them."""
    for last, line in over.items():
        if last > len(rows):
            raise UserError(f'{where}:{line}', f'a multiword token to word {last}', f'{len(rows)} words', _FIX)
    heads = []
    for word, (line, _, head, relation) in rows.items():
        place = f'{where}:{line}'
        if not re.fullmatch('[0-9]{1,9}', head) or int(head) > len(rows) or int(head) == word:
            expected = f'another word of the sentence, 1 to {len(rows)}, or 0 for the root'
            raise UserError(place, f'the head {head!r} of word {word}', expected, _FIX)
        if relation in ('', '_'):
            raise UserError(place, 'no relation', 'one, such as nsubj', _FIX)
        heads.append(int(head))
    if rows:
        places, words, _, relations = zip(*rows.values(), strict=True)
        yield Tree(f'{where}:{places[0]}', words, tuple(heads), relations)
