"""What attention is looked at in: lines of text, pairs of texts, or dependency trees."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from bertjax.attention_analysis.conllu import Tree, read_trees
from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.inference.input import InputSource, chunks
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.texts import Line


class Texts(NamedTuple):
    """Texts of a chunk of input, and their second texts where they are pairs."""

    first: list[str]
    second: list[str] | None


Chunk = Texts | list[Tree]


def has_trees(path: str) -> bool:
    """Whether a file is named as CoNLL-U, plain or compressed."""
    return bare_suffix(path) in ('.conllu', '.conll-u')


def tree_relations(path: str) -> tuple[list[str], int]:
    """The relations of a treebank, sorted, and the number of its sentences. All of it is read and checked.

    Raises:
      UserError: no such file, a malformed line, or no word.
    """
    names: set[str] = set()
    count = 0
    for tree in read_trees(path):
        names.update(tree.relations)
        count += 1
    if not names:
        raise UserError(path, 'no word', 'sentences in CoNLL-U', 'check the file')
    print(f'{path}: read as CoNLL-U')
    return sorted(names), count


def count_texts(source: InputSource) -> tuple[int, int]:
    """Reads a file to its end: how many texts it has, and how many blank ones are passed over.

    Raises:
      UserError: whatever is wrong in it, with file and line, or no text.
    """
    texts = blank = 0
    for item in source.items():
        here = isinstance(item, Row)
        texts, blank = texts + here, blank + (not here)
    if not texts:
        raise _no_text(source)
    return texts, blank


def read_chunks(source: InputSource, size: int, *, quiet: bool) -> Iterator[Chunk]:
    """The input in chunks of at most `size` sentences or texts, in its order; blank texts are passed over.

    Args:
      source: texts, or by the name of the file CoNLL-U.
      size: of a chunk.
      quiet: do not print how it was read.

    Raises:
      UserError: no such file, no text in it, bytes that are not UTF-8, a malformed line.
    """
    if has_trees(source.path):
        yield from chunks(read_trees(source.path), size)
        return
    empty = True
    for rows in chunks((item for item in source.items(quiet=quiet) if isinstance(item, Row)), size):
        empty = False
        yield as_texts([row.values for row in rows])
    if empty:
        raise _no_text(source)


def _no_text(source: InputSource) -> UserError:
    return UserError(source.path, 'no text', 'at least one', 'check the input')


def as_texts(rows: Sequence[Sequence[str]]) -> Texts:
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
