"""The exceptions that end a run without being a bug of bertjax, and the exit status."""

import os

_MAX_QUOTE = 600  # the maximum number of characters of `where`, `found` and `expected`, which may quote a whole file


def printable(text: str) -> str:
    r"""Returns `text` as one line without characters that control a terminal.

    Line ends and other non-printable characters become Python escapes such as `\n` or `\x1b`. Undecodable bytes of a
    file name become escapes such as `\xff`.
    """
    return ''.join(char if char.isprintable() else _escape(char) for char in text)


def process_status(status: int) -> int:
    """Returns the exit status of a process for a failure with `status`.

    After the statuses 1, 2 and 3, a restart does not help. srun returns the highest status of all processes, so the
    environment variable BERTJAX_STATUS_OFFSET is added to these statuses, which then exceed the 4 of a LostError.
    """
    return status + int(os.environ.get('BERTJAX_STATUS_OFFSET', '0')) if 1 <= status <= 3 else status


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or the name of its type if it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _escape(char: str) -> str:
    if '\udc80' <= char <= '\udcff':  # Python's code for an undecodable byte of a file name
        return f'\\x{ord(char) - 0xDC00:02x}'
    return char.encode('unicode_escape').decode('ascii')


def _truncate(part: object) -> str:
    text = str(part)
    return text if len(text) <= _MAX_QUOTE else text[:_MAX_QUOTE] + ' …'


class UserError(Exception):
    """A mistake in the user's input: a config value, a file, a line of text.

    `bertjax.main` prints it as one line on stderr, `error: WHERE: found X, expected Y; FIX`, without a
    traceback, and exits with status 2. The parts may quote any input, because `str` makes them printable.

    Args:
      where: The config key, file or file:line at fault.
      found: The wrong value, or a description of it.
      expected: A description of the expected value.
      fix: An instruction that solves the problem.
    """

    exit_status = 2

    def __init__(self, where: str, found: str, expected: str, fix: str):
        self.where, self.found, self.expected, self.fix = where, found, expected, fix
        super().__init__(where, found, expected, fix)

    def __str__(self) -> str:
        where, found, expected = map(_truncate, (self.where, self.found, self.expected))
        return printable(f'{where}: found {found}, expected {expected}; {self.fix}')


class StoppedError(Exception):
    """The run was stopped before its end. The message gives the reason and the next step."""

    exit_status = 1


class NonFiniteError(StoppedError):
    """The loss, the gradient or the update was not finite in several consecutive steps."""

    exit_status = 3


class LostError(StoppedError):
    """A process of the run is gone, and the others cannot continue without it."""

    exit_status = 4

    def __init__(self, reason: str = 'another process of this run is lost'):
        super().__init__(f'stopped: {reason}; the same command, in all processes, continues from the newest checkpoint')


class HungError(StoppedError):
    """The run made no progress for too long; the launcher should restart it."""

    exit_status = 4

    def __init__(self, minutes: float, doing: str, path: str):
        found = f'no progress for {minutes:.3g} minutes {doing} (config.hang_minutes)'
        fix = 'the same command continues from the newest checkpoint'
        super().__init__(f'stopped: {found}; the stacks of all threads are in {path}; {fix}')


class PreemptedError(StoppedError):
    """SIGTERM or Ctrl-C stopped the run, which was saved. The same command continues it. Status 75 is EX_TEMPFAIL."""

    exit_status = 75
