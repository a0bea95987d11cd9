"""The exceptions that end a run without being a fault of ours."""


class UserError(Exception):
    """A mistake in what the user gave: a config value, a file, a line of text.

    `bertjax.main` prints it as one line on stderr, `error: WHERE: found X, expected Y; MEND`, without a
    traceback, and exits with status 2.

    Args:
      where: the config key, file or file:line at fault.
      found: what is there.
      expected: what should be there.
      mend: what to do about it, as an instruction.
    """

    exit_status = 2

    def __init__(self, where: str, found: str, expected: str, mend: str):
        self.where, self.found, self.expected, self.mend = where, found, expected, mend
        super().__init__(where, found, expected, mend)

    def __str__(self) -> str:
        return f'{self.where}: found {self.found}, expected {self.expected}; {self.mend}'


class StoppedError(Exception):
    """The run ended early on purpose; `str` says why and what to do, `exit_status` tells the caller."""

    exit_status = 1


class NonFiniteError(StoppedError):
    """Several steps in a row had a loss or gradient that is not finite."""

    exit_status = 3


class PreemptedError(StoppedError):
    """SIGTERM or Ctrl-C: the state is saved, the same command continues (75 is EX_TEMPFAIL)."""

    exit_status = 75
