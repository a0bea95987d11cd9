"""Reads and writes CoNLL column files. A line has the columns of one word. A blank line ends a sentence."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bertjax.errors import UserError
from bertjax.metrics.entities import LETTERS, WITH_ENDS, to_iob2, to_scheme
from bertjax.tasks.reading.texts import Line, check_not_empty, number_lines, peek_lines
from bertjax.tasks.tagging.schemes import ENTITIES, find_scheme

DOCSTART = '-DOCSTART-'
# The id of a multiword token or an empty node of CoNLL-U. The words of a multiword token have lines of their own.
_NO_WORD = re.compile(r'[0-9]+[-.][0-9]+')
_CONLLU_TAGS = '3 (UPOS) or 4 (XPOS)'  # the columns of CoNLL-U with a tag for each word
_OTHER_SEPARATOR = re.compile('.[,;|].')  # between a word and its tag
_BLANKS = re.compile('[ \t]+')  # other white space, such as a no-break space, may be part of a word


class ColumnBlock(NamedTuple):
    """A sentence in a column file.

    Attributes:
      rows, locations: the columns and the location, 'file:line', of each word.
      preceding_lines: the lines between the previous sentence and this one. A document boundary is the tuple of its
        columns, a comment is (line,), and a blank line is ().
      document: the number of document boundaries before the sentence.
      separator: the separator of the columns, see `split_columns`.
    """

    rows: tuple[tuple[str, ...], ...]
    locations: list[str]
    preceding_lines: tuple[tuple[str, ...], ...]
    document: int
    separator: str


def is_boundary(line: str) -> bool:
    """Whether a line is a boundary between documents: its first column is -DOCSTART-."""
    return line.startswith(DOCSTART) and split_columns(line, ' ')[0] == DOCSTART


def split_columns(line: str, separator: str) -> tuple[str, ...]:
    """Returns the columns of a line. `separator` is a tab, or ' ' for one or more spaces or tabs."""
    if separator == '\t':
        return tuple(column.strip(' ') for column in line.split('\t'))
    return tuple(_BLANKS.split(line.strip(' \t')))


def read_blocks(lines: Iterable[Line], where: str, prefix: str) -> Iterator[ColumnBlock]:
    """Yields the sentences of a column file, each as soon as its lines are read. `prefix` is TagFormat.comment.

    Raises:
      UserError: The lines of words differ in their number of columns.
    """
    rows: list[tuple[str, ...]] = []
    locations: list[str] = []
    before: list[tuple[str, ...]] = []
    document, count, first = 0, 0, 0
    # The first line that is certainly not a comment determines the separator.
    is_word = lambda line: line.strip(' \t') and not line.startswith(prefix or '#') and not is_boundary(line)  # noqa: E731
    lines, words = peek_lines(lines, accept=is_word)
    separator = '\t' if '\t' in ''.join(words) else ' '
    width = len(split_columns(words[0], separator)) if words else 0
    for number, line in itertools.chain(lines, [(0, '')]):
        boundary = is_boundary(line)
        if boundary or not line.strip(' \t'):
            if rows:
                yield ColumnBlock(tuple(rows), locations, tuple(before), document, separator)
                rows, locations, before = [], [], []
            document += boundary
            before.append(split_columns(line, ' ') if boundary else ())
            continue
        if not rows and is_comment(line, prefix, separator, count or width):
            before.append((line,))
            continue
        columns = split_columns(line, separator)
        if separator == '\t' and len(columns) == 10 and _NO_WORD.fullmatch(columns[0]):
            continue
        if not count:
            count, first = len(columns), number
        if len(columns) != count:
            fix = 'correct or remove the line'
            if line.startswith('#'):
                fix += '; a comment must precede the first word of a sentence'
            expected = f'{count}, as in line {first}, separated by {"spaces" if separator == " " else "tabs"}'
            raise UserError(f'{where}:{number}', f'{_format_columns(len(columns))} in {line[:60]!r}', expected, fix)
        rows.append(columns)
        locations.append(f'{where}:{number}')


def is_comment(line: str, prefix: str, separator: str, width: int) -> bool:
    """Whether a line before a sentence is a comment, in a file with `width` columns (0: not known yet).

    Without a prefix, a line is a comment if it starts with # and also has another number of columns or is like
    `# sent_id = 1` of CoNLL-U, because a word can start with #, too.
    """
    if prefix:
        return line.startswith(prefix)
    has_other_width = width > 0 and len(split_columns(line, separator)) != width
    return line.startswith('#') and (has_other_width or bool(re.match(r'#\s*((newdoc|newpar) )?[\w.:-]+ = ', line)))


def _format_columns(columns: int) -> str:
    return '1 column' if columns == 1 else f'{columns} columns'


@dataclasses.dataclass(frozen=True)
class TagFormat:
    """The format of tagged words in column files, and in JSON, Parquet or Arrow files.

    Attributes:
      word_column, tag_column: the indices of the columns, from 0; -1 is the last column.
      comment: the prefix of comment lines, which must precede a sentence; '' for the rule in `is_comment`.
      scheme: the tag scheme: 'iob1', 'iob2', 'bioes', 'bilou', 'bmes', 'ioe1' or 'ioe2' for entities; 'plain' for
        independent tags, such as parts of speech; 'auto' detects the scheme of entities.
      words, tags: the names of the fields of a record; '' for the first usual name in rows.py that the record has.
      tag_names: the names of the tags 0, 1, … in records; () if the records have the names of the tags, or if the file
        has a list of these names.
    """

    word_column: int = 0
    tag_column: int = -1
    comment: str = ''
    scheme: str = 'auto'
    words: str = ''
    tags: str = ''
    tag_names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence, with the data that `write_columns` needs.

    Attributes:
      where: the location of the first word, 'file:line'.
      words: the W words.
      tags: the tag of each word, in IOB2 or plain; None if the sentence has no tags.
      document: the index of the document, ascending in the file.
      columns: the columns of each word, as in the file; () if the input has only words.
      preceding_lines: see ColumnBlock; () if the input is not a column file.
      separator: the separator of the columns.
      scheme: the scheme of the tags in the file: one of schemes.py:ENTITIES, 'plain', or '' if it is unknown.
      fields: all fields of the record, if the sentence is a record that is read for prediction; else None.
      tag_column: the index of the tag column, see TagFormat.
      text: the raw text from which the words are split; None if the input has separate words.
      offsets: (first character, end) of each word in `text`; () without a text.
    """

    where: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    document: int = 0
    columns: tuple[tuple[str, ...], ...] = ()
    preceding_lines: tuple[tuple[str, ...], ...] = ()
    separator: str = ' '
    scheme: str = ''
    fields: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False, compare=False)
    tag_column: int = dataclasses.field(default=-1, repr=False, compare=False)
    text: str | None = dataclasses.field(default=None, repr=False, compare=False)
    offsets: tuple[tuple[int, int], ...] = dataclasses.field(default=(), repr=False, compare=False)


def read_columns(text: str, where: str, format: TagFormat, *, tagged: bool) -> list[Sentence]:
    """Reads the sentences of a column file. If the file is `tagged`, the sentences have tags, in IOB2 or plain.

    Raises:
      UserError: The file is malformed or has no word, a tag is invalid, or the tags do not fit any scheme.
    """
    # See `number_lines` for the line ends. U+0085 and U+2028 end no line, because they may be words.
    blocks = list(read_blocks(number_lines(text), where, format.comment))
    sentences = [_sentence(block, where, format, tagged=tagged) for block in blocks]
    if not sentences:
        raise UserError(where, 'no word', 'one word per line with its columns', 'check the file')
    hashes = sum(len(line) == 1 and line[0].startswith('#') for block in blocks for line in block.preceding_lines)
    if hashes and not format.comment:
        print(f'{where}: {hashes:,} lines that precede sentences and begin with # are read as comments')
    first = sentences[0].columns[0]
    is_conllu = sentences[0].separator == '\t' and len(first) == 10 and first[0] == '1'
    tags_are_misc = tagged and is_conllu and format.tag_column == -1
    numbered = all(list(x.words) == [str(i) for i in range(1, len(x.words) + 1)] for x in sentences)
    if numbered and max(len(sentence.words) for sentence in sentences) > 2:  # as in GermEval and CoNLL-U
        found, fix = f'{format.word_column}, the numbers 1, 2, 3 … in {where}', 'set it to 1, for example'
        fix += f', and config.task.tag_column to {_CONLLU_TAGS}' if tags_are_misc else ''
        raise UserError('config.task.word_column', found, 'the column of the words', fix)
    if not tagged:
        return sentences
    if tags_are_misc and any('_' in sentence.tags for sentence in sentences):
        found = f'-1, the column MISC of CoNLL-U in {where}'
        raise UserError('config.task.tag_column', found, 'a column of tags', f'set it to {_CONLLU_TAGS}')
    return convert_to_iob2(sentences, [block.locations for block in blocks], where, format)


def convert_to_iob2(
    sentences: Sequence[Sentence], locations: Sequence[Sequence[str]], where: str, format: TagFormat
) -> list[Sentence]:
    """Converts the tags of sentences from the scheme of the file to IOB2, and sets `Sentence.scheme`.

    `locations` has the locations ('file:line') of the words of each sentence.

    Raises:
      UserError: A tag is invalid, or the tags do not fit any scheme.
    """
    scheme = find_scheme([sentence.tags for sentence in sentences], locations, where, format.scheme)
    convert = (lambda tags: tags) if scheme == 'plain' else to_iob2
    return [dataclasses.replace(sentence, tags=tuple(convert(sentence.tags)), scheme=scheme) for sentence in sentences]


def stream_columns(lines: Iterable[Line], where: str, format: TagFormat) -> Iterator[Sentence]:
    """Yields the sentences of a column file, each as soon as its lines are read. Tags are ignored."""
    blocks = read_blocks(lines, where, format.comment)
    sentences = (_sentence(block, where, format, tagged=False) for block in blocks)
    return check_not_empty(sentences, where, 'no word', 'one word per line with its columns')


def _sentence(block: ColumnBlock, where: str, format: TagFormat, *, tagged: bool) -> Sentence:
    columns, locations = block.rows, block.locations
    width, word, tag = len(columns[0]), format.word_column, format.tag_column
    for name, column in (('word_column', word), ('tag_column', tag))[: 1 + tagged]:
        if not -width <= column < width:
            found = f'{column}, but {where} has {_format_columns(width)}'
            fix = f'for example --config.task.{name}={0 if name == "word_column" else -1}'
            raise UserError(f'config.task.{name}', found, 'a column of the file, from 0', fix)
    if tagged and word % width == tag % width:
        fix = 'set config.task.word_column and config.task.tag_column'
        if width == 1:
            fix = 'add the tags; to predict them, use --config.run=predict --config.input=FILE'
            if all(_OTHER_SEPARATOR.search(row[0]) for row in columns):
                fix = 'separate the columns by tabs or spaces'
        raise UserError(locations[0], 'the same column for words and tags', 'different columns', fix)
    words = tuple(row[word] for row in columns)
    if '' in words:
        location = locations[words.index('')]
        raise UserError(location, 'an empty word', 'a word in its column', 'correct or remove the line')
    tags = tuple(row[tag] for row in columns) if tagged else None
    rest = block.document, columns, block.preceding_lines, block.separator
    return Sentence(locations[0], words, tags, *rest, tag_column=tag)


def write_columns(sentences: Sequence[Sentence], tags: Sequence[Sequence[str]], *, scheme: str) -> str:
    """Returns the text of a column file with an additional column of predicted tags, in the scheme of the file.

    conlleval expects the true and the predicted tags in the last two columns, so the true tags are repeated unless they
    are already the last column. conlleval reads entities only in IOB and IOE. For other schemes, both tags are appended
    again, in IOB2. Document boundaries, blank lines and comments before a sentence are preserved.

    Args:
      tags: The predicted tags of each sentence, in IOB2 or plain.
      scheme: The scheme of the output if the scheme of the file is unknown.
    """
    lines: list[str] = []
    append_iob2 = any(_unknown_to_conlleval(sentence, sentence.scheme or scheme) for sentence in sentences)
    for sentence, tags_in_iob2 in zip(sentences, tags, strict=True):
        join, predicted = sentence.separator.join, convert_to_file_scheme(sentence, tags_in_iob2, scheme)
        rows = [list(columns) for columns in sentence.columns or zip(sentence.words, strict=True)]
        repeat = sentence.tags is not None and sentence.tag_column not in (-1, len(rows[0]) - 1)
        for row, tag in zip(rows, predicted, strict=True):
            row += [row[sentence.tag_column], tag] if repeat else [tag]
        if append_iob2:
            rows = [[*row, *both] for row, *both in zip(rows, sentence.tags, tags_in_iob2, strict=True)]
        for line in sentence.preceding_lines or ([()] if lines else []):
            boundary = bool(line) and line[0] == DOCSTART
            # conlleval fails if lines have different numbers of columns, so a boundary is padded.
            padded = [*line, *['O'] * (len(rows[0]) - len(line))] if boundary else line
            lines.append(join(padded))
        lines += map(join, rows)
    return '\n'.join(lines) + '\n\n'


def file_tags(sentence: Sentence) -> tuple[str, ...]:
    """Returns the true tags of a tagged sentence in the scheme of its file."""
    return tuple(row[sentence.tag_column] for row in sentence.columns)


def convert_to_file_scheme(sentence: Sentence, tags: Sequence[str], scheme: str) -> Sequence[str]:
    """Converts tags from IOB2 to the scheme of the sentence's file, or to `scheme` if it is unknown."""
    scheme = sentence.scheme or scheme
    return to_scheme(tags, scheme) if scheme in ENTITIES else tags


def _unknown_to_conlleval(sentence: Sentence, scheme: str) -> bool:
    """Returns whether conlleval cannot read the scheme of a tagged sentence, or the prefix of one of its true tags."""
    if sentence.tags is None or scheme not in ENTITIES:
        return False
    letters = {tag[:1] for tag in file_tags(sentence)}
    return scheme in WITH_ENDS or not letters <= {*LETTERS[scheme], 'O'}
