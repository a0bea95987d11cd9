"""CoNLL column files: one word per line with its columns, a blank line after each sentence."""

import dataclasses
import re
from collections.abc import Iterator, Sequence

from bertjax.errors import UserError
from bertjax.metrics.entities import to_iob1, to_iob2
from bertjax.tasks.tagging.schemes import SCHEMES, check_tags, find_scheme, report_strays

DOCSTART = '-DOCSTART-'
_BLANKS = re.compile('[ \t]+')  # no others: a no-break space is part of a word


@dataclasses.dataclass(frozen=True)
class ColumnOptions:
    """How a file is read.

    Attributes:
      word_column, tag_column: counted from 0, or from the end with -1 for the last.
      comment: prefix of comment lines, which can only stand before a sentence; '' for no comments.
      scheme: 'iob1' or 'iob2' for entities; 'plain' for tags that stand for themselves, such as parts of speech; 'auto'
        detects which of the first two a file has.
    """

    word_column: int = 0
    tag_column: int = -1
    comment: str = ''
    scheme: str = 'auto'

    def __post_init__(self):
        if self.scheme not in SCHEMES:
            expected = 'one of ' + ', '.join(SCHEMES)
            raise UserError('config.task.scheme', repr(self.scheme), expected, 'choose one of them')


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
      scheme: of the tags in the file: 'iob1', 'iob2', 'plain', or '' if the file's tags do not tell.
    """

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int = 0
    columns: tuple[tuple[str, ...], ...] = ()
    before: tuple[tuple[str, ...], ...] = ()
    separator: str = ' '
    scheme: str = ''


def split_lines(text: str) -> list[str]:
    """Lines, split at \\n and \\r\\n only: U+0085 and U+2028 may be words."""
    lines = [line.removesuffix('\r') for line in text.split('\n')]
    return lines[:-1] if lines[-1] == '' else lines


def is_boundary(line: str) -> bool:
    """Whether a line separates documents: its first column is -DOCSTART- exactly, not a longer word."""
    return line.startswith(DOCSTART) and split_columns(line, ' ')[0] == DOCSTART


def split_columns(line: str, separator: str) -> tuple[str, ...]:
    """The columns of a line. Where the separator is a space, columns are separated by any number of spaces and tabs."""
    if separator == '\t':
        return tuple(column.strip(' ') for column in line.split('\t'))
    return tuple(_BLANKS.split(line.strip(' \t')))


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
      UserError: no words, a line with another number of columns than the first, an empty word, an invalid tag, or both
        schemes in one file.
    """
    sentences, numbers = [], []
    for rows, before, document, separator in _blocks(text, where, options):
        lines = [number for number, _ in rows]
        columns = tuple(columns for _, columns in rows)
        words, tags = _words_and_tags(columns, lines, where, options, tagged=tagged)
        sentences.append(Sentence(f'{where}:{lines[0]}', words, tags, document, columns, before, separator))
        numbers.append(lines)
    if not sentences:
        raise UserError(where, 'no word', 'a word a line with its columns', 'check the file')
    if not tagged:
        return sentences
    raw, scheme = [sentence.tags for sentence in sentences], options.scheme
    if scheme == 'auto':
        scheme = find_scheme(raw, numbers, where)
    elif scheme != 'plain':
        report_strays(raw, numbers, where, scheme)
    convert = tuple if scheme == 'plain' else lambda tags: tuple(to_iob2(tags))
    return [dataclasses.replace(x, tags=convert(x.tags), scheme=scheme) for x in sentences]


def _words_and_tags(
    columns: Sequence[Sequence[str]], lines: Sequence[int], where: str, options: ColumnOptions, *, tagged: bool
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    width, word, tag = len(columns[0]), options.word_column, options.tag_column
    for name, column in (('word_column', word), ('tag_column', tag))[: 1 + tagged]:
        if not -width <= column < width:
            found = f'{column}, where {where} has {_count(width)}'
            mend = f'for example --config.task.{name}={0 if name == "word_column" else -1}'
            raise UserError(f'config.task.{name}', found, 'a column of the file, the first being 0', mend)
    if tagged and word % width == tag % width:
        mend = 'set config.task.word_column and config.task.tag_column'
        if width == 1:
            mend = 'add the tags; a file without them is for --config.run=predict --config.input=FILE'
        raise UserError(f'{where}:{lines[0]}', 'one column for words and tags', 'a column for each', mend)
    words = tuple(row[word] for row in columns)
    if '' in words:
        line = lines[words.index('')]
        raise UserError(f'{where}:{line}', 'an empty word', 'a word in its column', 'correct or remove the line')
    if not tagged:
        return words, None
    tags = tuple(row[tag] for row in columns)
    check_tags(tags, lines, where, options.scheme)
    return words, tags


def _blocks(
    text: str, where: str, options: ColumnOptions
) -> Iterator[tuple[list[tuple[int, tuple[str, ...]]], tuple[tuple[str, ...], ...], int, str]]:
    """(numbered rows, the lines before them, document, separator) of each sentence."""
    lines = split_lines(text)
    rows: list[tuple[int, tuple[str, ...]]] = []
    before: list[tuple[str, ...]] = []
    document, separator, count, first = 0, '', 0, 0
    for number, line in enumerate([*lines, ''], 1):
        word = line.strip(' \t') != ''
        boundary = word and is_boundary(line)
        comment = word and not rows and options.comment != '' and line.startswith(options.comment)
        if not word or boundary:
            if rows:
                yield rows, tuple(before), document, separator
                rows, before = [], []
            document += boundary
        if not word or boundary or comment:
            before.append((line,) if comment else split_columns(line, ' ') if boundary else ())
            continue
        if not separator:
            separator = '\t' if '\t' in line else ' '
        columns = split_columns(line, separator)
        if not count:
            count, first = len(columns), number
        if len(columns) != count:
            mend = 'correct or remove the line'
            if line.startswith('#'):
                mend += "; if lines that begin so are comments, set config.task.comment='#'"
            expected = f'{count}, as in line {first}, between {"spaces" if separator == " " else "tabs"}'
            raise UserError(f'{where}:{number}', f'{_count(len(columns))} in {line[:60]!r}', expected, mend)
        rows.append((number, columns))


def _count(columns: int) -> str:
    return '1 column' if columns == 1 else f'{columns} columns'


def write_columns(
    sentences: Sequence[Sentence], tags: Sequence[Sequence[str]], options: ColumnOptions, *, scheme: str
) -> str:
    """The sentences with an additional column: their predicted tags, in the scheme of their file.

    The last two columns are the true and the predicted tag, as conlleval expects: true tags are repeated if they are
    not in the last column. Document boundaries, blank lines and comments stay where they were.

    Args:
      sentences: as read.
      tags: of each word, in IOB2 or plain.
      options: how they were read.
      scheme: for sentences of a file whose tags do not tell.
    """
    lines: list[str] = []
    for sentence, predicted in zip(sentences, tags, strict=True):
        join = sentence.separator.join
        if (sentence.scheme or scheme) == 'iob1':
            predicted = to_iob1(predicted)
        rows = [list(columns) for columns in sentence.columns]
        width = len(rows[0])
        repeat = sentence.tags is not None and options.tag_column not in (-1, width - 1)
        for row, tag in zip(rows, predicted, strict=True):
            row += [row[options.tag_column], tag] if repeat else [tag]
        for line in sentence.before:
            boundary = bool(line) and line[0] == DOCSTART
            # Padded to the words' number of columns: conlleval stops at a line with another number.
            filled = [*line, *['O'] * (len(rows[0]) - len(line))] if boundary else line
            lines.append(join(filled))
        lines += map(join, rows)
    return '\n'.join(lines) + '\n\n'
