"""The exceptions that end a run without being a fault of ours."""

_PART = 600  # Characters of what a message quotes, which may be a whole file.


def printable(text: str) -> str:
    r"""`text` as one line that a terminal shows and does not obey.

    Line ends, escapes and all else that is not to be seen become Python's escapes, `\n` or `\x1b`; so does what is no
    character, such as `\xff` in a file name that is not UTF-8.
    """
    if text.isprintable():
        return text
    return ''.join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    if '\udc80' <= char <= '\udcff':  # how Python holds a byte of a file name that it cannot decode
        return f'\\x{ord(char) - 0xDC00:02x}'
    return char.encode('unicode_escape').decode('ascii')


def _short(part: object) -> str:
    text = str(part)
    return text if len(text) <= _PART else text[:_PART] + ' …'


class UserError(Exception):
    """A mistake in what the user gave: a config value, a file, a line of text.

    `bertjax.main` prints it as one line on stderr, `error: WHERE: found X, expected Y; FIX`, without a
    traceback, and exits with status 2. The parts may quote whatever was found: see `printable`.

    Args:
      where: the config key, file or file:line at fault.
      found: what is there.
      expected: what should be there.
      fix: what to do about it, as an instruction.
    """

    exit_status = 2

    def __init__(self, where: str, found: str, expected: str, fix: str):
        self.where, self.found, self.expected, self.fix = where, found, expected, fix
        super().__init__(where, found, expected, fix)

    def __str__(self) -> str:
        return printable(
            f'{_short(self.where)}: found {_short(self.found)}, expected {_short(self.expected)}; {self.fix}'
        )


class StoppedError(Exception):
    """The run ended early on purpose; `str` says why and what to do, `exit_status` tells the caller."""

    exit_status = 1


class NonFiniteError(StoppedError):
    """Several steps in a row had a loss or gradient that is not finite."""

    exit_status = 3


class LostError(StoppedError):
    """Of the processes of a run one is gone: none can go on without it."""

    exit_status = 4

    def __init__(self):
        super().__init__(
            'stopped: another process of this run is lost; the same command, in all its processes, continues at the '
            'newest checkpoint'
        )


class HungError(StoppedError):
    """Nothing has moved for too long: what starts it again should."""

    exit_status = 4

    def __init__(self, minutes: float, doing: str, path: str):
        super().__init__(
            f'stopped: nothing has moved for {minutes:.3g} minutes {doing} (config.hang_minutes); where each thread '
            f'stood is in {path}; the same command continues at the newest checkpoint'
        )


class PreemptedError(StoppedError):
    """SIGTERM or Ctrl-C: the state is saved, the same command continues (75 is EX_TEMPFAIL)."""

    exit_status = 75
