"""`python -m bertjax`, the same as the command `bertjax`."""

from bertjax.main import console

console()
