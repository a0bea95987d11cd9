"""Converts records such as {"tokens": [...], "ner_tags": [...]} to sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.config.ranges import format_value
from bertjax.errors import UserError
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import Blank, check_text, quote_names
from bertjax.tasks.tagging.columns import Sentence, TagFormat

_WORDS = ('tokens', 'words')
_TAGS = ('ner_tags', 'tags', 'ner', 'labels', 'pos_tags')


def find_tags(fields: Mapping[str, Any], format: TagFormat) -> Any:
    """Returns the tags of a record, or None if the field is missing or empty."""
    return next((fields[name] for name in ([format.tags] if format.tags else _TAGS) if fields.get(name)), None)


def find_words(fields: Mapping[str, Any], format: TagFormat, where: str) -> tuple[str, ...]:
    """Returns the words of a record.

    Raises:
      UserError: The field is missing, is not a list of strings, or has a word that a column file cannot represent.
    """
    names = [format.words] if format.words else _WORDS
    name = next((name for name in names if name in fields), None)
    if name is None:
        fix = 'correct the record, or name the field in config.task.words'
        raise UserError(where, f'the fields {quote_names(fields)}', ' or '.join(names), fix)
    words = fields[name]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(f'{where}, field {name}', format_value(words), 'a list of words', 'correct the record')
    for number, word in enumerate(words):
        if not _fits_a_column(word):
            found, expected = f'{word!r} at index {number}', 'a non-blank word without tabs and line ends'
            raise UserError(f'{where}, field {name}', found, expected, 'correct the record')
        check_text(word, where)
    return tuple(words)


def _fits_a_column(cell: str) -> bool:
    """Whether a word or a tag can be a cell of a column file with tabs between the columns."""
    return bool(cell.strip(' \t\n')) and not set(cell) & set('\t\n')


def parse_sentences(records: Iterable[Record], format: TagFormat, *, tagged: bool) -> Iterator[Sentence | Blank]:
    """Yields the sentence of each record as soon as it is read; a `Blank` for a record without words.

    The tags keep their scheme. If `tagged` is False, as for prediction, `Sentence.tags` is None, and `Sentence.fields`
    has all fields of the record.

    Raises:
      UserError: A record is malformed. Or `tagged` is True, and a record has more or fewer tags than words.
    """
    for where, row in records:
        words = find_words(row, format, where)
        if not words:
            yield Blank(where, 'a record without words', row)
            continue
        tags = _tags(row, words, format, where) if tagged else None
        columns = tuple(zip(words, tags, strict=True)) if tags else ()
        # The separator is a tab because a word may contain a space.
        yield Sentence(where, words, tags, columns=columns, separator='\t', fields=None if tagged else row)


def _tags(row: Mapping[str, Any], words: Sequence[str], format: TagFormat, where: str) -> tuple[str, ...]:
    tags = find_tags(row, format)
    if not isinstance(tags, list) or len(tags) != len(words):
        found = f'{len(tags)} tags' if isinstance(tags, list) else f'no list of tags in the fields {quote_names(row)}'
        fix = 'correct the record, or name the field in config.task.tags'
        raise UserError(where, found, f'{len(words)} tags, one for each word', fix)
    return tuple(_name(tag, format, where) for tag in tags)


def _name(tag: Any, format: TagFormat, where: str) -> str:
    if type(tag) is int and 0 <= tag < len(format.tag_names):
        tag = format.tag_names[tag]
    if isinstance(tag, str):
        if not _fits_a_column(tag):
            expected = 'a non-blank tag without tabs and line ends'
            raise UserError(where, f'the tag {tag[:40]!r}', expected, 'correct the record')
        return check_text(tag, where)
    expected = f'a number from 0 to {len(format.tag_names) - 1}' if format.tag_names else 'the name of a tag'
    fix = "set the names of the tags 0, 1, …, for example config.task.tag_names=('O','B-PER',…)"
    raise UserError(where, f'the tag {str(tag)[:40]}', expected, fix)
