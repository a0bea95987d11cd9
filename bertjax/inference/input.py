"""Reads the texts of config.input from a file of lines or records, or from standard input."""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TypeVar

from bertjax.errors import UserError
from bertjax.files.paths import is_remote, unusual_kind
from bertjax.files.streams import bare_suffix, has_compression_suffix
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.layout import Column
from bertjax.tasks.reading.records import Row, is_binary, read_records, select_columns
from bertjax.tasks.reading.stream import open_standard_input
from bertjax.tasks.reading.texts import Blank, read_lines, stream_lines
from bertjax.tasks.sentence.input import read_input

Item = Row | Blank
STANDARD_INPUT = '-'
_TITLE = 'standard input'  # the name of standard input in messages
T = TypeVar('T')


@dataclasses.dataclass(frozen=True)
class InputSource:
    """A user's texts or text pairs.

    Attributes:
      path: The path of a file; '-' for standard input. The suffix or the first line determines the format: plain lines
        (a tab separates the texts of a pair), JSON lines, a JSON list, a table with tabs or commas, Parquet or Arrow.
        Text files may be compressed.
      columns: The one or two record fields that contain the texts; () if the caller reads the records itself.
      tabs: Whether a tab in the first plain line makes all plain lines pairs, even if `columns` has one column.
      key: The config key of `path`, for messages.
      allows_stdin: Whether the path may be '-'.
      spool: A copy of standard input (see `spool_standard_input`); None to read standard input directly.
    """

    path: str
    columns: tuple[Column, ...]
    tabs: bool = False
    key: str = 'config.input'
    allows_stdin: bool = True
    spool: IO[bytes] | None = None

    @property
    def name(self) -> str:
        """The file name without the suffixes of format and compression, or 'stdin' for standard input."""
        if self.path == STANDARD_INPUT:
            return 'stdin'
        path = pathlib.PurePath(os.path.abspath(self.path))  # '.' has no name
        return pathlib.PurePath(path.stem).stem if has_compression_suffix(path.name) else path.stem

    @property
    def origin(self) -> str:
        """The identity of the input in the metadata of results: the absolute path of a local file, else `path`."""
        if self.path == STANDARD_INPUT or is_remote(self.path):
            return self.path
        return str(pathlib.Path(self.path).expanduser().resolve())

    def check(self) -> None:
        """Raises a UserError if the path is not set, or is a pipe or the like, which can be read only once.

        Standard input is an error only without `allows_stdin`.
        """
        if not self.path:
            expected = "a file, or '-' for standard input" if self.allows_stdin else 'a file'
            raise UserError(self.key, 'nothing', expected, f'set --{self.key}=FILE')
        if self.path == STANDARD_INPUT:
            kind = '' if self.allows_stdin else 'standard input'
        else:
            kind = unusual_kind(user_path(self.path, self.key))
        if kind:
            stream = f', or set --{self.key}=- and pipe the texts to standard input' if self.allows_stdin else ''
            expected, fix = 'a file that can be read more than once', f'give a file{stream}'
            raise UserError(self.key, f'{self.path}, {kind}', expected, fix)

    def items(self, *, quiet: bool = False) -> Iterator[Item]:
        """Yields the items in order, including blank items. Prints the detected format unless `quiet` is True.

        Each item is yielded as soon as it is read, except in a .json file, which is read to its end first. Raises a
        UserError with the file and the line if there is no file or no record, or if a record is malformed.
        """
        options = {'quiet': quiet, 'tabs': self.tabs}
        if self.path == STANDARD_INPUT:
            if self.spool:
                self.spool.seek(0)
            lines = stream_lines(self.spool or open_standard_input(), _TITLE)
            rows = read_input(lines, _TITLE, self.columns, **options)
        elif is_binary(user_path(self.path, self.key)):
            if not quiet:
                print(f'{self.path}: read as {"Parquet" if bare_suffix(self.path) == ".parquet" else "Arrow"}')
            rows = select_columns(read_records([user_path(self.path, self.key)]), self.columns)
        else:
            rows = read_input(read_lines(self.path), self.path, self.columns, **options)
        return map(_blank_or_row, rows)


@contextlib.contextmanager
def spool_standard_input(source: InputSource, folder: pathlib.Path) -> Iterator[InputSource]:
    """Copies standard input to a file without a name in `folder`, so that it can be read again from the start."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            shutil.copyfileobj(open_standard_input(), file)
            yield dataclasses.replace(source, spool=file)
    finally:
        with contextlib.suppress(OSError):  # the folder may contain files
            folder.rmdir()


def _blank_or_row(item: Item) -> Item:
    if isinstance(item, Blank) or all(value and value.strip() for value in item.values):
        return item
    return Blank(item.where, 'an empty text', item.fields)


def make_columns(field: str, second: str, where: str) -> tuple[Column, ...]:
    """Returns the columns for the values of the keys config.VERB.field and pair_field; `where` is config.VERB."""
    pair = (Column((second,), key=f'{where}.pair_field'),) if second else ()
    return (Column((field,), key=f'{where}.field'), *pair)


def nonblank_texts(items: Sequence[Item]) -> tuple[list[int], list[str], list[str] | None]:
    """Returns the indices, the first texts and the second texts of the non-blank items.

    The second texts are None for single texts, or if all items are blank.
    """
    numbers = [number for number, item in enumerate(items) if isinstance(item, Row)]
    first = [items[number].values[0] for number in numbers]
    paired = bool(numbers) and len(items[numbers[0]].values) > 1
    return numbers, first, [items[number].values[1] for number in numbers] if paired else None


def split_chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of `size` consecutive items. The last list may be shorter."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk
