"""The one exception for a mistake that the user can mend."""


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

    def __init__(self, where: str, found: str, expected: str, mend: str):
        self.where, self.found, self.expected, self.mend = where, found, expected, mend
        super().__init__(where, found, expected, mend)

    def __str__(self) -> str:
        return f'{self.where}: found {self.found}, expected {self.expected}; {self.mend}'
