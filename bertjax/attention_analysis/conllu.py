"""Reads dependency trees from CoNLL-U (https://universaldependencies.org/format.html): words, heads and relations."""

import dataclasses
import re
from collections.abc import Iterable, Iterator

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Line
from bertjax.tasks.tagging.columns import ColumnBlock, read_blocks

_COLUMNS = 10
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


def read_trees(lines: Iterable[Line], where: str) -> Iterator[Tree]:
    """Yields the sentences of `lines`, each as soon as it is read. `where` is the file name for error messages.

    Comments are skipped. Multiword tokens (`3-4`) and empty nodes (`5.1`) are also skipped, because they have no head.

    Raises:
      UserError: A line is malformed.
    """
    return map(_parse_tree, read_blocks(lines, where, '#'))


def _parse_tree(block: ColumnBlock) -> Tree:
    width = len(block.rows[0])
    if width != _COLUMNS or block.separator != '\t':
        found = f'{width} column(s) separated by {"spaces" if block.separator == " " else "tabs"}'
        raise UserError(block.locations[0], found, f'{_COLUMNS} columns separated by tabs, as in CoNLL-U', _FIX)
    for word, (at, row) in enumerate(zip(block.locations, block.rows, strict=True), 1):
        identifier, form, head, relation = row[0], row[1], row[6], row[7]
        if identifier != str(word):
            raise UserError(at, f'the word {identifier!r}', f'word {word}, the next word of the sentence', _FIX)
        if not form:
            raise UserError(at, 'an empty form', 'a word', _FIX)
        if not re.fullmatch('[0-9]{1,9}', head) or int(head) > len(block.rows) or int(head) == word:
            expected = f'another word of the sentence, 1 to {len(block.rows)}, or 0 for the root'
            raise UserError(at, f'the head {head!r} of word {word}', expected, _FIX)
        if relation in ('', '_'):
            raise UserError(at, 'no relation', 'a relation such as nsubj', _FIX)
    _, words, _, _, _, _, heads, relations, _, _ = zip(*block.rows, strict=True)
    return Tree(block.locations[0], words, tuple(map(int, heads)), relations)
