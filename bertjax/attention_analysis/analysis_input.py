"""Reads the input of an attention analysis: lines of text, text pairs, or dependency trees."""

import collections
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bertjax.attention_analysis.conllu import Tree, read_trees
from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.inference.input import InputSource, Item, split_chunks
from bertjax.tasks.reading.texts import Blank, check_not_empty


class AnalysisTexts(NamedTuple):
    """The texts of a chunk of input. `second` has the second texts of pairs, and is None for single texts."""

    first: list[str]
    second: list[str] | None


Chunk = AnalysisTexts | list[Tree]


def has_trees(path: str) -> bool:
    """Returns whether a file name has the suffix of CoNLL-U, ignoring a suffix for compression."""
    return bare_suffix(path) in ('.conllu', '.conll-u')


def inspect_input(source: InputSource) -> tuple[list[str], int, int]:
    """Reads a file to its end, to report mistakes before anything is computed.

    Returns:
      (relations, count, blank): the sorted relations of a treebank, the number of texts or sentences, and the number of
      blank texts. Only a treebank has relations, and only other files have blank texts.

    Raises:
      UserError: The file does not exist, is malformed, or has no text.
    """
    relations, counts = set(), collections.Counter()
    for item in _read_items(source):
        counts[isinstance(item, Blank)] += 1
        if isinstance(item, Tree):
            relations.update(item.relations)
    if not counts[False]:
        raise UserError(source.path, 'no text', 'at least one text', 'check the file')
    if relations:
        print(f'{source.path}: read as CoNLL-U')
    return sorted(relations), counts[False], counts[True]


def read_chunks(source: InputSource, size: int, *, quiet: bool) -> Iterator[Chunk]:
    """Yields the input in chunks of at most `size` texts or sentences, without blank texts.

    Unless `quiet` is True, the detected format of texts is printed. The errors are those of `inspect_input`.
    """
    items = (item for item in _read_items(source, quiet=quiet) if not isinstance(item, Blank))
    for chunk in split_chunks(check_not_empty(items, source.path, 'no text', 'at least one text'), size):
        yield chunk if isinstance(chunk[0], Tree) else _make_texts([row.values for row in chunk])


def _read_items(source: InputSource, *, quiet: bool = False) -> Iterator[Item | Tree]:
    return read_trees(source.path) if has_trees(source.path) else source.items(quiet=quiet)


def parse_texts(texts: Sequence[str], where: str) -> AnalysisTexts:
    """Splits texts at tabs into single texts or pairs. Blank texts are skipped.

    Raises:
      UserError: Single texts and pairs are mixed, a text has several tabs, or a text of a pair or all texts are blank.
    """
    rows = [[part.strip() for part in text.split('\t')] for text in texts if text.strip()]
    if not rows:
        raise UserError(where, 'only blank texts', 'a text', 'give a text, or omit the key')
    for row in rows:
        if not all(row) or len(row) != min(len(rows[0]), 2):
            found, expected = repr('\t'.join(row)), 'only single texts, or only pairs of texts with a tab between them'
            raise UserError(where, found, expected, 'correct the text')
    return _make_texts(rows)


def _make_texts(rows: Sequence[Sequence[str]]) -> AnalysisTexts:
    """Converts rows to AnalysisTexts. All rows have one text, or all have two."""
    return AnalysisTexts([row[0] for row in rows], [row[1] for row in rows] if len(rows[0]) == 2 else None)
