"""What attention is looked at in: lines of text, pairs of texts, or dependency trees."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bertjax.analysis.conllu import Tree, read_trees
from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading.texts import Line, read_lines, stream_lines

STANDARD_INPUT = '-'


class Texts(NamedTuple):
    """Texts of a chunk of input, and their second texts where they are pairs."""

    first: list[str]
    second: list[str] | None


Chunk = Texts | list[Tree]


def has_trees(path: str) -> bool:
    """Whether a file is named as CoNLL-U, plain or compressed."""
    return bare_suffix(path) in ('.conllu', '.conll-u')


def tree_relations(path: str) -> list[str]:
    """The relations of a treebank, sorted. All of it is read and checked.

    Raises:
      UserError: no such file, a malformed line, or no word.
    """
    names = {relation for tree in read_trees(path) for relation in tree.relations}
    if not names:
        raise UserError(path, 'no word', 'sentences in CoNLL-U', 'check the file')
    return sorted(names)


def read_chunks(path: str, size: int) -> Iterator[Chunk]:
    """The input in chunks of at most `size` sentences or lines, in its order; blank lines are passed over.

    Args:
      path: a file; CoNLL-U by its name, else a text a line, or a pair with a tab between; '-' for standard input.
      size: of a chunk.

    Raises:
      UserError: no such file, no text in it, bytes that are not UTF-8, a malformed line.
    """
    if has_trees(path):
        yield from _grouped(read_trees(path), size)
        return
    if path == STANDARD_INPUT:
        # Not sys.stdin's own buffer: see runs/predict.py.
        raw = open(sys.stdin.fileno(), 'rb', closefd=False)  # noqa: SIM115
        where, lines = 'standard input', stream_lines(raw, 'standard input')
    else:
        where, lines = path, read_lines(path)
    empty = True
    for rows in _grouped(_rows(lines, where), size):
        empty = False
        yield as_texts(rows)
    if empty:
        raise UserError(where, 'no text', 'a text a line', 'check the file')


def as_texts(rows: Sequence[tuple[str, ...]]) -> Texts:
    """Rows of one or two texts, all of one kind."""
    pairs = len(rows[0]) == 2
    return Texts([row[0] for row in rows], [row[1] for row in rows] if pairs else None)


def split_texts(texts: Sequence[str], where: str) -> list[tuple[str, ...]]:
    """Texts, or pairs with a tab between, as rows.

    Raises:
      UserError: both of them, or several tabs.
    """
    rows = list(_rows(enumerate(texts, 1), where))
    if not rows:
        raise UserError(where, 'only blank texts', 'a text', 'give one, or leave the key out')
    return rows


def _rows(lines: Iterable[Line], where: str) -> Iterator[tuple[str, ...]]:
    first: tuple[int, int] | None = None  # line and texts of the first
    for number, line in lines:
        if not line.strip():
            continue
        row = tuple(part.strip() for part in line.split('\t'))
        first = first or (number, len(row))
        if len(row) != first[1] or len(row) > 2:
            expected = (
                '1 or 2 texts, with a tab between' if first[0] == number else f'{first[1]}, as in line {first[0]}'
            )
            raise UserError(f'{where}:{number}', f'{len(row)} texts', expected, 'correct the line')
        yield row


def _grouped(items: Iterator, size: int) -> Iterator[list]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk
