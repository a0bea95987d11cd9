"""CoNLL column files: one word per line with its columns, a blank line after each sentence."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.metrics.entities import IOE, WITH_ENDS, to_iob2, to_scheme
from bertjax.tasks.reading.texts import Line
from bertjax.tasks.tagging.blocks import DOCSTART, ColumnBlock, counted, read_blocks, split_lines
from bertjax.tasks.tagging.schemes import ALIASES, ENTITIES, SCHEMES, check_tags, file_scheme


@dataclasses.dataclass(frozen=True)
class ColumnOptions:
    """How a file is read.

    Attributes:
      word_column, tag_column: counted from 0, or from the end with -1 for the last.
      comment: prefix of comment lines, which can only stand before a sentence; '' for lines that begin with # and have
        another number of columns than the words, as in CoNLL-U.
      scheme: 'iob1', 'iob2', 'bioes', 'bilou', 'bmes', 'ioe1' or 'ioe2' for entities; 'plain' for tags that stand for
        themselves, such as parts of speech; 'auto' detects which of the others a file has.
    """

    word_column: int = 0
    tag_column: int = -1
    comment: str = ''
    scheme: str = 'auto'

    def __post_init__(self):
        if self.scheme not in SCHEMES:
            expected = 'one of ' + ', '.join(SCHEMES)
            raise UserError('config.task.scheme', repr(self.scheme), expected, 'choose one of them')

    @property
    def known_scheme(self) -> str:
        """The scheme by its usual name."""
        return ALIASES.get(self.scheme, self.scheme)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of a column file, with all that is needed to write it back.

    Attributes:
      where: 'file:line' of its first word.
      words: W of them.
      tags: of each word, in IOB2 (or plain); None where there are none.
      document: number of its document, ascending.
      columns: of each word, as in the file.
      before: lines since the previous sentence; () is a blank one.
      separator: between columns.
      scheme: of the tags in the file: of schemes.py:ENTITIES, 'plain', or '' if the file's tags do not tell.
      fields: all that its row has, of a sentence from JSON or Arrow that is to be predicted.
      text: raw text that was split into these words; None where the words were given.
      offsets: of each word in `text`: its first character, and the one behind the last.
      tag_column: which of `columns` has its tags, counted as in ColumnOptions; fields, text, offsets, and this, are
        left out of repr and equality.
    """

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int = 0
    columns: tuple[tuple[str, ...], ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    separator: str = ' '
    scheme: str = ''
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)
    tag_column: int = dataclasses.field(default=-1, repr=False, compare=False)
    text: str | None = dataclasses.field(default=None, repr=False, compare=False)
    offsets: tuple[tuple[int, int], ...] = dataclasses.field(default=(), repr=False, compare=False)


def read_columns(text: str, where: str, options: ColumnOptions, *, tagged: bool) -> list[Sentence]:
    """Reads a column file.

    Args:
      text: its content.
      where: its name.
      options: how it is read.
      tagged: whether tags are read; if not, the file may lack their column.

    Returns:
      its sentences, tags in IOB2.

    Raises:
      UserError: no words, a line with another number of columns than the first, an empty word, an invalid tag, or no
        scheme that explains the tags.
    """
    blocks = list(read_blocks(enumerate(split_lines(text), 1), where, options.comment))
    sentences = [_sentence(block, where, options, tagged=tagged) for block in blocks]
    if not sentences:
        raise UserError(where, 'no word', 'a word a line with its columns', 'check the file')
    hashes = sum(len(line) == 1 and line[0].startswith('#') for block in blocks for line in block.before)
    if hashes and not options.comment:
        print(f'{where}: {hashes:,} lines before sentences that begin with # are read as comments')
    if not tagged:
        return sentences
    return in_iob2(sentences, [_places(block, where) for block in blocks], where, options)


def in_iob2(
    sentences: Sequence[Sentence], places: Sequence[Sequence[str]], where: str, options: ColumnOptions
) -> list[Sentence]:
    """Sentences whose tags are as in their file, in IOB2 (or plain), with the scheme of the file `where`.

    Args:
      sentences: of one file.
      places: of each word, 'file:line'.
      where: the file.
      options: how it is read.

    Raises:
      UserError: an invalid tag, or no scheme that explains them.
    """
    raw, scheme = [sentence.tags for sentence in sentences], options.known_scheme
    for tags, of in zip(raw, places, strict=True):
        check_tags(tags, of, scheme)
    if scheme == 'plain':
        return [dataclasses.replace(sentence, scheme=scheme) for sentence in sentences]
    scheme = file_scheme(raw, places, where, scheme)
    return [dataclasses.replace(x, tags=tuple(to_iob2(x.tags)), scheme=scheme) for x in sentences]


def stream_columns(lines: Iterable[Line], where: str, options: ColumnOptions) -> Iterator[Sentence]:
    """The sentences of a file without tags, or with tags to be ignored, each as soon as its lines are there."""
    empty = True
    for block in read_blocks(lines, where, options.comment):
        empty = False
        yield _sentence(block, where, options, tagged=False)
    if empty:
        raise UserError(where, 'no word', 'a word a line with its columns', 'check the file')


def _places(block: ColumnBlock, where: str) -> list[str]:
    return [f'{where}:{number}' for number, _ in block.rows]


def _sentence(block: ColumnBlock, where: str, options: ColumnOptions, *, tagged: bool) -> Sentence:
    columns, places = tuple(columns for _, columns in block.rows), _places(block, where)
    words, tags = _words_and_tags(columns, places, where, options, tagged=tagged)
    return Sentence(
        places[0], words, tags, block.document, columns, block.before, block.separator, tag_column=options.tag_column
    )


def _words_and_tags(
    columns: Sequence[Sequence[str]], places: Sequence[str], where: str, options: ColumnOptions, *, tagged: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    width, word, tag = len(columns[0]), options.word_column, options.tag_column
    for name, column in (('word_column', word), ('tag_column', tag))[: 1 + tagged]:
        if not -width <= column < width:
            found = f'{column}, where {where} has {counted(width)}'
            fix = f'for example --config.task.{name}={0 if name == "word_column" else -1}'
            raise UserError(f'config.task.{name}', found, 'a column of the file, the first being 0', fix)
    if tagged and word % width == tag % width:
        fix = 'set config.task.word_column and config.task.tag_column'
        if width == 1:
            fix = 'add the tags; a file without them is for --config.run=predict --config.input=FILE'
        raise UserError(places[0], 'one column for words and tags', 'a column for each', fix)
    words = tuple(row[word] for row in columns)
    if '' in words:
        place = places[words.index('')]
        raise UserError(place, 'an empty word', 'a word in its column', 'correct or remove the line')
    return words, tuple(row[tag] for row in columns) if tagged else None


def write_columns(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]], *, scheme: str) -> str:
    """The sentences with an additional column: their predicted tags, in the scheme of their file.

    The last two columns are the true and the predicted tag, as conlleval expects: true tags are repeated if they are
    not in the last column. conlleval reads IOB and IOE, but no other scheme that marks ends: where tags are of one,
    both follow once more, in IOB2. Document boundaries, blank lines and comments stay where they were.

    Args:
      sentences: as read.
      tags: of each word, in IOB2 or plain.
      scheme: for sentences of a file whose tags do not tell.
    """
    lines: list[str] = []
    again = any(_unknown_to_conlleval(sentence, sentence.scheme or scheme) for sentence in sentences)
    for sentence, tags_in_iob2 in zip(sentences, tags, strict=True):
        join, predicted = sentence.separator.join, in_file_scheme(sentence, tags_in_iob2, scheme)
        rows = [list(columns) for columns in sentence.columns]
        repeat = sentence.tags is not None and sentence.tag_column not in (-1, len(rows[0]) - 1)
        for row, tag in zip(rows, predicted, strict=True):
            row += [row[sentence.tag_column], tag] if repeat else [tag]
        if again:
            rows = [[*row, *both] for row, *both in zip(rows, sentence.tags, tags_in_iob2, strict=True)]
        for line in sentence.before:
            boundary = bool(line) and line[0] == DOCSTART
            # Padded to the words' number of columns: conlleval stops at a line with another number.
            filled = [*line, *['O'] * (len(rows[0]) - len(line))] if boundary else line
            lines.append(join(filled))
        lines += map(join, rows)
    return '\n'.join(lines) + '\n\n'


def file_tags(sentence: Sentence) -> tuple[str, ...]:
    """The true tags as they stand in the file, of a sentence that has some."""
    return tuple(row[sentence.tag_column] for row in sentence.columns)


def in_file_scheme(sentence: Sentence, tags: Sequence[str], scheme: str) -> Sequence[str]:
    """Predicted tags, in IOB2 or plain, in the scheme of the sentence's file; `scheme` if its tags do not tell."""
    scheme = sentence.scheme or scheme
    return to_scheme(tags, scheme) if scheme in ENTITIES else tags


def _unknown_to_conlleval(sentence: Sentence, scheme: str) -> bool:
    """Whether the true tags mark ends in a way that conlleval does not read, by their scheme or a stray one."""
    if sentence.tags is None or scheme not in ENTITIES:
        return False
    letters = {tag[:1] for tag in file_tags(sentence)}
    return scheme in WITH_ENDS or not letters <= set('IEO' if scheme in IOE else 'BIO')
