"""The program's end of the terminal: streams that may be closed or left, and text that must not steer it."""

import contextlib
import errno
import io
import os
import pathlib
import shlex
import shutil
import sys
from typing import TextIO

import rich.console
from rich.text import Text

_NOTEBOOK = 'JPY_PARENT_PID'  # in the environment of a Jupyter kernel, and so of the programs that its cells start
# Control characters, which move a cursor, ring or recolour, become visible; those of ordinary text stay.
_SHOWN = {code: f'\\x{code:02x}' for code in (*range(32), *range(127, 160)) if chr(code) not in '\t\n\r'}
# So do characters that reorder the text around them (Unicode's property Bidi_Control) or separate lines.
_BIDI = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN |= {code: f'\\u{code:04x}' for code in (*_BIDI, 0x2028, 0x2029)}


class Console(rich.console.Console):
    """A console that shows the control characters of the strings it is given; its own colours are not affected."""

    @property
    def is_terminal(self) -> bool:
        """Whether a bar can be drawn: not behind `!command` of a notebook, which shows every movement of the cursor."""
        return _NOTEBOOK not in os.environ and super().is_terminal

    @property
    def file(self) -> TextIO:
        """Where it writes: the stream behind all that stand before it, rich's own while a bar is shown and `_Text`."""
        file = super().file
        while behind := getattr(file, 'rich_proxied_file', None):
            file = behind
        return file

    @file.setter
    def file(self, file: TextIO) -> None:
        self._file = file

    def render_str(self, text: str, **style) -> Text:
        """See rich: every string passes here, alone or in a table."""
        return super().render_str(text.translate(_SHOWN), **style)


class _Bytes(io.FileIO):
    """Standard output or error. When nobody reads it any more the bytes go nowhere, and the run goes on."""

    def write(self, data) -> int | None:
        try:
            return super().write(data)
        except OSError as error:
            with contextlib.suppress(OSError):
                error.filename = os.readlink(f'/proc/self/fd/{self.fileno()}')
            _discard(self.fileno())  # else Python would try once more at its end, and print what comes of it
            if error.errno not in (errno.EPIPE, errno.EIO):  # `| head -1` has ended; the terminal was closed
                raise
            return len(data)


class _Text(io.TextIOWrapper):
    """Text for a terminal, its control characters shown.

    Attributes:
      rich_proxied_file: the stream that rich writes to in its place; `Console` has shown them there already.
      data: the stream of `data_output`.
    """

    rich_proxied_file: TextIO
    data: TextIO

    def write(self, text: str) -> int:
        super().write(text.translate(_SHOWN))
        return len(text)


def data_output() -> TextIO:
    """Standard output for what another program reads: UTF-8 in every locale, and no character shown as another.

    On a terminal nobody but a person reads it: control characters are shown there, too.
    """
    return sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, 'data', sys.stdout)


def invocation() -> str:
    """How the program was called, without its flags: `bertjax`, `python3 -m bertjax.main` or `python -m bertjax`."""
    program = pathlib.Path(sys.argv[0])
    if program.suffix == '.py':
        module = 'bertjax' if program.stem == '__main__' else 'bertjax.main'
        return f'{shlex.quote(sys.orig_argv[0])} -m {module}'
    return program.name if shutil.which(program.name) else shlex.quote(str(program))


def guard_streams() -> None:
    """Makes standard input, output and error safe to use for the rest of the process, whatever they are.

    A closed one reads and writes nothing; a pipe whose reader ends, `| head -1`, loses what follows; a character that
    the locale's encoding lacks is written as an escape. Streams that were replaced already, as in tests, stay.
    """
    for number, name in enumerate(('stdin', 'stdout', 'stderr')):
        stream = getattr(sys, name)
        if stream is None:
            try:
                os.fstat(number)
            except OSError:  # Else the next file to be opened would be standard output, and hold what is printed.
                _discard(number)
            nowhere = open(os.devnull, 'r+', encoding='utf-8', errors='backslashreplace')  # noqa: SIM115  never closed
            setattr(sys, name, nowhere)
        elif number and stream is getattr(sys, f'__{name}__'):
            setattr(sys, name, _guarded(stream, number))


def _guarded(stream: TextIO, number: int) -> TextIO:
    stream.flush()
    buffer = io.BufferedWriter(_Bytes(number, 'w', closefd=False))
    # All write through to one buffer, which keeps the order of what is written to them.
    options = {'errors': 'backslashreplace', 'write_through': True}
    options['line_buffering'] = stream.line_buffering or stream.write_through
    guarded = _Text(buffer, stream.encoding, **options)
    guarded.rich_proxied_file = io.TextIOWrapper(buffer, stream.encoding, **options)
    guarded.data = io.TextIOWrapper(buffer, 'utf-8', **options)
    return guarded


def _discard(number: int) -> None:
    """Lets a file descriptor lead nowhere, in processes that are started later, too."""
    null = os.open(os.devnull, os.O_RDWR)
    if null == number:
        os.set_inheritable(null, True)
    else:
        os.dup2(null, number)
        os.close(null)
