"""Reads dependency trees from CoNLL-U (https://universaldependencies.org/format.html): words, heads and relations."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

from etils import epath

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Line, read_lines

_COLUMNS = 10
# The id of a multiword token: one surface form that stands for several words.
_RANGE = re.compile(r'([1-9][0-9]*)-([1-9][0-9]*)')
# The id of an empty node of the enhanced graph.
_EMPTY = re.compile(r'(0|[1-9][0-9]*)\.[1-9][0-9]*')
_FIX = 'correct the line, or remove the sentence'


@dataclasses.dataclass(frozen=True)
class Tree:
    """A dependency tree over the words of a sentence.

    Attributes:
      where: The location of the first word, 'file:line'.
      words: The forms of the syntactic words.
      heads: The number of each word's head. Words are counted from 1, and a root has the head 0.
      relations: The relation of each word to its head, including the subtype: 'nsubj:pass'.
    """

    where: str
    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_trees(path: epath.PathLike) -> Iterator[Tree]:
    """Yields the sentences of a plain or compressed file. The file is read lazily.

    Comments are skipped. Multiword tokens (`3-4`) and empty nodes (`5.1`) are also skipped, because they have no head.

    Raises:
      UserError: The file does not exist or is damaged, or a line is malformed.
    """
    return parse_trees(read_lines(path), str(path))


def parse_trees(lines: Iterable[Line], where: str) -> Iterator[Tree]:
    """Yields the sentences of `lines`, as `read_trees` does. `where` is the file name for error messages."""
    rows: dict[int, tuple[int, str, str, str]] = {}  # {word number: (line, form, head, relation)}
    ranges: dict[int, int] = {}  # {last word of a multiword token: line}
    number = 0
    for number, line in lines:
        if not line.strip():
            yield from _make_tree(rows, ranges, where)
            rows, ranges = {}, {}
        elif line.startswith('#'):
            if rows:
                found, expected = 'a comment inside a sentence', 'comments only before the first word'
                raise UserError(f'{where}:{number}', found, expected, _FIX)
        else:
            _add_line(line.split('\t'), rows, ranges, f'{where}:{number}', number)
    yield from _make_tree(rows, ranges, where)


def _add_line(
    columns: list[str], rows: dict[int, tuple[int, str, str, str]], ranges: dict[int, int], where: str, line: int
) -> None:
    if len(columns) != _COLUMNS:
        fix = 'separate the columns by tabs' if len(columns) == 1 else _FIX
        expected = f'{_COLUMNS} columns separated by tabs, as in CoNLL-U'
        raise UserError(where, f'{len(columns)} column(s)', expected, fix)
    identifier, next_number = columns[0], len(rows) + 1
    if _EMPTY.fullmatch(identifier):
        return
    if span := _RANGE.fullmatch(identifier):
        first, last = map(int, span.groups())
        if first != next_number or last <= first:
            expected = f'a multiword token from word {next_number} to a later word'
            raise UserError(where, f'the multiword token {identifier}', expected, _FIX)
        ranges[last] = line
        return
    if identifier != str(next_number):
        raise UserError(where, f'the word {identifier!r}', f'word {next_number}, the next word of the sentence', _FIX)
    if not columns[1]:
        raise UserError(where, 'an empty form', 'a word', _FIX)
    rows[next_number] = (line, columns[1], columns[6], columns[7])


def _make_tree(rows: Mapping[int, tuple[int, str, str, str]], ranges: Mapping[int, int], where: str) -> Iterator[Tree]:
    """Yields the tree of one sentence, or nothing if there are no words."""
    for last, line in ranges.items():
        if last > len(rows):
            found, expected = f'a multiword token up to word {last}', f'at most {len(rows)}, the last word'
            raise UserError(f'{where}:{line}', found, expected, _FIX)
    heads = []
    for word, (line, _, head, relation) in rows.items():
        at = f'{where}:{line}'
        if not re.fullmatch('[0-9]{1,9}', head) or int(head) > len(rows) or int(head) == word:
            expected = f'another word of the sentence, 1 to {len(rows)}, or 0 for the root'
            raise UserError(at, f'the head {head!r} of word {word}', expected, _FIX)
        if relation in ('', '_'):
            raise UserError(at, 'no relation', 'a relation such as nsubj', _FIX)
        heads.append(int(head))
    if rows:
        lines, words, _, relations = zip(*rows.values(), strict=True)
        yield Tree(f'{where}:{lines[0]}', words, tuple(heads), relations)
