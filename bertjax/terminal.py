"""Makes terminal input and output safe: streams may be closed, and printed text cannot control the terminal."""

import contextlib
import errno
import io
import logging
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import absl.logging
import rich.console
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

WIDE = 4096  # A width in characters that is enough for every table, even with the longest paths.
_NOTEBOOK = 'JPY_PARENT_PID'  # An environment variable of Jupyter kernels and of the programs that their cells start.
_DUMB = ('dumb', 'unknown')  # the values of TERM for which rich draws no bars
# Control characters may move the cursor or change colors, so all except tab and line ends are written as escapes.
_ESCAPES = {code: f'\\x{code:02x}' for code in (*range(32), *range(127, 160)) if chr(code) not in '\t\n\r'}
# Characters that reorder the text around them (Unicode's Bidi_Control), and line separators, are also escaped.
_BIDI = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES |= {code: f'\\u{code:04x}' for code in (*_BIDI, 0x2028, 0x2029)}


class Console(rich.console.Console):
    """A console that escapes the control characters of printed strings, but keeps its own colors.

    In a notebook, the console prints plain text. With force_jupyter=None, it would display each line as HTML.
    """

    def __init__(self, *arguments, force_jupyter: bool | None = False, **options):
        super().__init__(*arguments, force_jupyter=force_jupyter, **options)
        if not (self.is_terminal or self.is_jupyter or 'width' in options or 'COLUMNS' in os.environ):
            self.width = WIDE  # rich would cut tables at 80 columns in a pipe or a file

    @property
    def is_terminal(self) -> bool:
        """Whether a progress bar can be redrawn by moving the cursor. A notebook and a dumb terminal cannot do this."""
        can_move_cursor = _NOTEBOOK not in os.environ and os.environ.get('TERM', '').lower() not in _DUMB
        return can_move_cursor and super().is_terminal

    @property
    def file(self) -> TextIO:
        """The unescaped stream inside `_Text`, and inside the wrapper that rich adds while it shows a bar."""
        file = super().file
        while inner := getattr(file, 'rich_proxied_file', None):
            file = inner
        return file

    @file.setter
    def file(self, file: TextIO) -> None:
        self._file = file

    def render_str(self, text: str, **style) -> Text:
        """Escapes control characters. rich calls this method for every string, even in tables."""
        return super().render_str(text.translate(_ESCAPES), **style)


BOXED = {'box': box.HEAVY_HEAD, 'padding': (0, 1)}  # the style of a table with lines around its cells


def make_table(title: str, *columns: str, **style: Any) -> Table:
    """Makes a table. The first column is for names; the others are for numbers and aligned to the right."""
    style = {'box': box.SIMPLE_HEAD, 'padding': (0, 1, 0, 0), **style}
    table = Table(title=escape(title), title_justify='left', **style)
    for number, name in enumerate(columns):
        table.add_column(name, justify='right' if number else 'left')
    return table


class _OutputBytes(io.FileIO):
    """Standard output or error as bytes. If the reader closes the stream, further output is discarded."""

    is_closed = False  # whether the reader has closed the stream

    def write(self, data) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                error.filename = os.readlink(f'/proc/self/fd/{self.fileno()}')
            _discard(self.fileno())  # Otherwise, Python would write again at exit and print the error.
            if error.errno not in (errno.EPIPE, errno.EIO):  # EPIPE: the pipe has no reader; EIO: no terminal.
                raise
            self.is_closed = True
            return len(data)


class _Text(io.TextIOWrapper):
    """Standard output or standard error as text, with control characters escaped."""

    rich_proxied_file: TextIO  # the stream without escapes for `Console`, which escapes the text itself
    data: TextIO  # the UTF-8 stream without escapes for `data_output`

    def write(self, text: str) -> int:
        super().write(text.translate(_ESCAPES))
        return len(text)


@contextlib.contextmanager
def data_output() -> Iterator[TextIO]:
    """Yields standard output for data that another program reads. Meanwhile, `print` writes to standard error.

    A pipe or a file gets UTF-8 in every locale, without escapes. On a terminal, control characters are escaped.
    """
    out = sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, 'data', sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):
        yield out


def has_reader(out: TextIO) -> bool:
    """Returns whether a stream of `data_output` still has a reader, after a flush."""
    return not getattr(getattr(getattr(out, 'buffer', None), 'raw', None), 'is_closed', False)


def is_shown(record: logging.LogRecord) -> bool:
    """Returns whether to show a log message.

    Messages of Orbax and of asyncio, which Orbax uses, are hidden, because Orbax also raises its errors. Debug messages
    of loggers other than absl's are shown only with --verbosity=2 or more.
    """
    if record.levelno <= logging.DEBUG and record.name != 'absl' and absl.logging.get_verbosity() < 2:
        return False
    return '/orbax/checkpoint/' not in record.pathname and record.name != 'asyncio'


@contextlib.contextmanager
def filter_log() -> Iterator[None]:
    """Hides the log messages for which `is_shown` is False, within the context."""
    logger = logging.getLogger('absl')  # Orbax logs through it, too.
    added = is_shown not in logger.filters
    logger.addFilter(is_shown)
    try:
        yield
    finally:
        if added:
            logger.removeFilter(is_shown)


def invocation() -> str:
    """Returns a command that starts this program, such as `bertjax` or `python -m bertjax`, without flags."""
    program = pathlib.Path(sys.argv[0])
    if program.suffix == '.py' or program.name in ('', '-c', '-m'):  # '', '-c' and '-m': Python runs no file.
        module = 'bertjax' if program.stem == '__main__' else 'bertjax.main'
        return f'{shlex.quote(sys.orig_argv[0])} -m {module}'
    return program.name if shutil.which(program.name) else shlex.quote(str(program))


def guard_streams() -> None:
    """Makes standard input, output and error safe to use for the rest of the process.

    A closed stream reads and writes nothing. If the reader of a pipe ends, as in `| head -1`, further output is
    discarded. A character that the locale's encoding lacks is written as an escape. A stream that other code has
    replaced is not changed.
    """
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        stream = getattr(sys, name)
        if stream is None:
            try:
                os.fstat(number)
            except OSError:  # Otherwise, the next opened file would get this descriptor and receive printed text.
                _discard(number)
            null = open(os.devnull, 'r+', encoding='utf-8', errors='backslashreplace')  # noqa: SIM115  never closed
            setattr(sys, name, null)
        elif number and stream is getattr(sys, f'__{name}__'):
            setattr(sys, name, _guard(stream, number))


def _guard(stream: TextIO, number: int) -> TextIO:
    stream.flush()
    buffer = io.BufferedWriter(_OutputBytes(number, 'w', closefd=False))
    # The three streams write through to the same buffer, so that their output stays in order.
    options = {'errors': 'backslashreplace', 'write_through': True}
    options['line_buffering'] = stream.line_buffering or stream.write_through
    guarded = _Text(buffer, stream.encoding, **options)
    guarded.rich_proxied_file = io.TextIOWrapper(buffer, stream.encoding, **options)
    guarded.data = io.TextIOWrapper(buffer, 'utf-8', **options)
    return guarded


def _discard(number: int) -> None:
    """Redirects a file descriptor to the null device, also for child processes that start later."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
