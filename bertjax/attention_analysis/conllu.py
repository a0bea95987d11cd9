"""Reads dependency trees from CoNLL-U (https://universaldependencies.org/format.html): words, heads and relations."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator

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
    for is_blank, sentence in itertools.groupby(lines, key=lambda line: not line[1].strip()):
        if not is_blank:
            yield from _parse_tree(sentence, where)


def _parse_tree(sentence: Iterable[Line], where: str) -> Iterator[Tree]:
    """Yields the tree of the lines of one sentence, or nothing if there are no words."""
    rows: list[tuple[int, str, str, str]] = []  # (line, form, head, relation) of each word
    ranges: dict[int, int] = {}  # {last word of a multiword token: line}
    for line, text in sentence:
        at, columns, word = f'{where}:{line}', text.split('\t'), len(rows) + 1
        if text.startswith('#'):
            if rows:
                found, expected = 'a comment inside a sentence', 'comments only before the first word'
                raise UserError(at, found, expected, _FIX)
            continue
        if len(columns) != _COLUMNS:
            fix = 'separate the columns by tabs' if len(columns) == 1 else _FIX
            expected = f'{_COLUMNS} columns separated by tabs, as in CoNLL-U'
            raise UserError(at, f'{len(columns)} column(s)', expected, fix)
        identifier, form = columns[:2]
        if span := _RANGE.fullmatch(identifier):
            first, last = map(int, span.groups())
            if first != word or last <= first:
                expected = f'a multiword token from word {word} to a later word'
                raise UserError(at, f'the multiword token {identifier}', expected, _FIX)
            ranges[last] = line
        elif not _EMPTY.fullmatch(identifier):
            if identifier != str(word):
                raise UserError(at, f'the word {identifier!r}', f'word {word}, the next word of the sentence', _FIX)
            if not form:
                raise UserError(at, 'an empty form', 'a word', _FIX)
            rows.append((line, form, columns[6], columns[7]))
    for last, line in ranges.items():
        if last > len(rows):
            found, expected = f'a multiword token up to word {last}', f'at most {len(rows)}, the last word'
            raise UserError(f'{where}:{line}', found, expected, _FIX)
    for word, (line, _, head, relation) in enumerate(rows, 1):
        if not re.fullmatch('[0-9]{1,9}', head) or int(head) > len(rows) or int(head) == word:
            expected = f'another word of the sentence, 1 to {len(rows)}, or 0 for the root'
            raise UserError(f'{where}:{line}', f'the head {head!r} of word {word}', expected, _FIX)
        if relation in ('', '_'):
            raise UserError(f'{where}:{line}', 'no relation', 'a relation such as nsubj', _FIX)
    if rows:
        lines, words, heads, relations = zip(*rows, strict=True)
        yield Tree(f'{where}:{lines[0]}', words, tuple(map(int, heads)), relations)
