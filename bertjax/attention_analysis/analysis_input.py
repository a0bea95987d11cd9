"""Reads the input of an attention analysis: lines of text, text pairs, or dependency trees."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Sequence

from bertjax.errors import UserError
from bertjax.files.paths import unusual_kind
from bertjax.files.streams import bare_suffix
from bertjax.inference.input import STANDARD_INPUT, InputSource, Item, split_chunks
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.texts import Blank, Line, check_not_empty, read_lines
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


def inspect_input(source: InputSource) -> tuple[list[str], int | None]:
    """Reads a file to its end, to report mistakes before anything is computed. Prints the number of blank texts.

    Returns:
      (relations, count): the sorted relations of a treebank, and the number of texts or sentences. Texts have no
      relations. Texts from standard input or a pipe are not read, because they can be read only once; `count` is None.

    Raises:
      UserError: The file does not exist, is malformed or has no text, or a treebank is not a regular file.
    """
    kind = 'standard input' if source.path == STANDARD_INPUT else unusual_kind(user_path(source.path, source.key))
    if kind and _has_trees(source):  # `read_chunks` reads the file again
        expected, fix = 'a file that can be read more than once', 'save the treebank to a file'
        raise UserError(source.key, f'{source.path}, {kind}', expected, fix)
    if kind:
        return [], None
    relations, count, blank = set(), 0, 0
    for item in _read_items(source):
        count, blank = count + 1, blank + isinstance(item, Blank)
        if isinstance(item, Tree):
            relations.update(item.relations)
    if count == blank:
        raise UserError(source.path, 'no text', 'at least one text', 'check the file')
    if relations:
        print(f'{source.path}: read as CoNLL-U')
    if blank:
        print(f'{blank:,} of {count:,} texts are blank and were skipped')
    return sorted(relations), count - blank


def read_chunks(source: InputSource, size: int, *, quiet: bool) -> Iterator[list[Row] | list[Tree]]:
    """Yields the input in chunks of at most `size` texts or sentences, without blank texts.

    Unless `quiet` is True, the detected format of texts is printed. The errors are those of `inspect_input`.
    """
    items = (item for item in _read_items(source, quiet=quiet) if not isinstance(item, Blank))
    return split_chunks(check_not_empty(items, source.path, 'no text', 'at least one text'), size)


def _has_trees(source: InputSource) -> bool:
    return bare_suffix(source.path) in ('.conllu', '.conll-u')


def _read_items(source: InputSource, *, quiet: bool = False) -> Iterator[Item | Tree]:
    if _has_trees(source):
        return read_trees(read_lines(source.path), source.path)
    return source.items(quiet=quiet)


def parse_texts(texts: Sequence[str], where: str) -> list[Row]:
    """Splits texts at tabs into single texts or pairs. Blank texts are skipped.

    Raises:
      UserError: Single texts and pairs are mixed, a text has several tabs, a pair has a blank text, or all are blank.
    """
    rows = [Row(where, tuple(part.strip() for part in text.split('\t'))) for text in texts if text.strip()]
    if not rows:
        raise UserError(where, 'only blank texts', 'a text', 'give a text, or omit the key')
    for row in rows:
        if not all(row.values) or len(row.values) != min(len(rows[0].values), 2):
            found = repr('\t'.join(row.values))
            expected = 'only single texts, or only pairs of texts with a tab between them'
            raise UserError(where, found, expected, 'correct the text')
    return rows


def read_trees(lines: Iterable[Line], where: str) -> Iterator[Tree]:
    """Yields the sentences of CoNLL-U (https://universaldependencies.org/format.html), each as soon as it is read.

    `where` is the file name for error messages. Comments are skipped. Multiword tokens (`3-4`) and empty nodes (`5.1`)
    are also skipped, because they have no head.

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
