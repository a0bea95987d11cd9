"""The texts that config.input names: a file of lines or of records, read as often as need be, or standard input."""

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile
from bertjax.files.paths import is_remote, unusual_kind
from bertjax.files.streams import CHUNK, bare_suffix, named_compressed
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.layout import Column
from bertjax.tasks.reading.records import Row, is_binary, read_records, rows_of
from bertjax.tasks.reading.stream import open_standard_input, standard_input
from bertjax.tasks.reading.texts import Blank, Line, number_lines, read_lines, read_text, stream_lines
from bertjax.tasks.sentence.input import read_input

Item = Row | Blank
STANDARD_INPUT = '-'
_CALLED = 'standard input'  # in messages
Each = TypeVar('Each')


@dataclasses.dataclass(frozen=True)
class InputSource:
    """A user's texts, or pairs of them.

    Attributes:
      path: of a file: plain lines (of pairs with a tab between), JSON lines, a JSON list, a table with tabs or commas,
        Parquet or Arrow, each by its suffix or its first line; text files may be compressed. '-' is standard input.
      columns: the names of the fields of records that hold the texts, one or two.
      tabs: of plain lines, a tab in the first one makes all of them pairs, whatever `columns` are.
      spool: a file that holds all of standard input, see `spooled`; '' to read it as it comes.
    """

    path: str
    columns: tuple[Column, ...]
    tabs: bool = False
    spool: str = ''

    @property
    def name(self) -> str:
        """Of the file, without its suffixes; of standard input 'stdin'."""
        if self.path == STANDARD_INPUT:
            return 'stdin'
        path = pathlib.PurePath(self.path)
        return pathlib.PurePath(path.stem).stem if named_compressed(path.name) else path.stem

    @property
    def origin(self) -> str:
        """Which input it is, for the facts beside results: the path of a file from the root on."""
        if self.path == STANDARD_INPUT or is_remote(self.path):
            return self.path
        return str(pathlib.Path(self.path).expanduser().resolve())

    def check(self) -> None:
        """Refuses what cannot be read twice.

        Raises:
          UserError: nothing, or a pipe.
        """
        if not self.path:
            raise UserError('config.input', 'nothing', "a file, or '-' for standard input", 'give --config.input=FILE')
        kind = self.path != STANDARD_INPUT and unusual_kind(user_path(self.path, 'config.input'))
        if kind:
            fix = 'give a file, or --config.input=- and the texts on standard input'
            raise UserError('config.input', f'{self.path}, {kind}', 'a file, which is read more than once', fix)

    def items(self, *, quiet: bool = False) -> Iterator[Item]:
        """The records in their order, each as soon as it is read; blank ones keep their place.

        Args:
          quiet: do not print the format that was detected.

        Raises:
          UserError: no such file, no record, or a malformed one, with file and line.
        """
        asked = {'quiet': quiet, 'tabs': self.tabs}
        if self.path == STANDARD_INPUT:
            lines = _spooled_lines(self.spool) if self.spool else standard_input(_CALLED)
            rows = read_input(lines, _CALLED, self.columns, **asked)
        elif is_binary(self.path) or is_saved_dataset(user_path(self.path, 'config.input')):
            if not quiet:
                print(f'{self.path}: read as {"Parquet" if bare_suffix(self.path) == ".parquet" else "Arrow"}')
            rows = rows_of(read_records([user_path(self.path, 'config.input')]), self.columns)
        else:
            # A list of records is one value, often on one line, which may be as long as it likes.
            whole = bare_suffix(self.path) == '.json'
            lines = number_lines(read_text(self.path)) if whole else read_lines(self.path)
            rows = read_input(lines, self.path, self.columns, **asked)
        return map(_blank_or_row, rows)


@contextlib.contextmanager
def spooled(source: InputSource, folder: pathlib.Path) -> Iterator[InputSource]:
    """Standard input to its end as a file in `folder`, so that it can be read more than once within the block."""
    path = folder / f'{source.name}.input'
    for left in folder.glob(f'.{path.name}.tmp-*'):  # of a run that was killed
        left.unlink()
    try:
        with open_standard_input() as given, AtomicFile(path) as file:
            while data := given.read(CHUNK):
                file.write(data)
        yield dataclasses.replace(source, spool=str(path))
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # there is more in it
            folder.rmdir()


def _spooled_lines(path: str) -> Iterator[Line]:
    with open(path, 'rb') as file:
        yield from stream_lines(file, _CALLED)


def _blank_or_row(item: Item) -> Item:
    if isinstance(item, Blank) or all(value and value.strip() for value in item.values):
        return item
    return Blank(item.where, 'an empty text', item.fields)


def columns(field: str, second: str, where: str) -> tuple[Column, ...]:
    """The columns of config.VERB.field and, unless it is '', of a second one; `where` is config.VERB."""
    pair = (Column((second,), key=f'{where}.pair_field'),) if second else ()
    return (Column((field,), key=f'{where}.field'), *pair)


def texts_of(items: Sequence[Item]) -> tuple[list[int], list[str], list[str] | None]:
    """Of the items that are not blank their numbers, their texts, and the second texts where there are some."""
    numbers = [number for number, item in enumerate(items) if isinstance(item, Row)]
    first = [items[number].values[0] for number in numbers]
    paired = bool(numbers) and len(items[numbers[0]].values) > 1
    return numbers, first, [items[number].values[1] for number in numbers] if paired else None


def chunks(items: Iterable[Each], size: int) -> Iterator[list[Each]]:
    """Lists of `size` items in their order, the last of what is left."""
    items = iter(items)
    while chunk := list(itertools.islice(items, size)):
        yield chunk
