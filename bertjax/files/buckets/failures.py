"""What the libraries of the protocols raise, as far as it is told apart."""

from bertjax.errors import UserError

_DENIED = ('Forbidden', 'Access Denied', 'AccessDenied', 'Anonymous caller', 'Invalid Credentials')
_CREDENTIALS = ('NoCredentialsError', 'PartialCredentialsError', 'DefaultCredentialsError', 'ProfileNotFound')


class UnreachableError(UserError):
    """A bucket whose server does not answer, or whose connections are cut, however often it is asked."""


class DeniedError(UserError):
    """Credentials are missing, or do not allow what was asked."""


def is_denied(error: Exception) -> bool:
    """Whether credentials are missing, or do not allow what was asked."""
    said = isinstance(error, OSError) and any(word in str(error) for word in _DENIED)
    code = getattr(error, 'code', None) in (401, 403, '401', '403')
    return isinstance(error, PermissionError) or type(error).__name__ in _CREDENTIALS or said or code


def one_line(error: Exception) -> str:
    """What it says, or is."""
    return next(iter(str(error).strip().splitlines()), '') or type(error).__name__
