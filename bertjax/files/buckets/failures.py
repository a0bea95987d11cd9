"""What the libraries of the protocols raise, as far as it is told apart."""

from bertjax.errors import UserError

_DENIED = ('Forbidden', 'Access Denied', 'AccessDenied', 'Anonymous caller', 'Invalid Credentials')
_CREDENTIALS = ('NoCredentialsError', 'PartialCredentialsError', 'DefaultCredentialsError', 'ProfileNotFound')


class UnreachableError(UserError):
    """A bucket whose server does not answer, or whose connections are cut, however long it is asked."""


class DeniedError(UserError):
    """Credentials are missing, or do not allow what was asked."""


def is_denied(error: Exception) -> bool:
    """Whether credentials are missing, or do not allow what was asked."""
    said = isinstance(error, OSError) and any(word in str(error) for word in _DENIED)
    code = getattr(error, 'code', None) in (401, 403, '401', '403')
    return isinstance(error, PermissionError) or type(error).__name__ in _CREDENTIALS or said or code


def status_of(error: Exception) -> int | None:
    """The status of HTTP that it stands for, where it stands for one."""
    response = getattr(error.__cause__ or error, 'response', None)  # of botocore, which s3fs puts into its own
    code = response.get('ResponseMetadata', {}).get('HTTPStatusCode') if isinstance(response, dict) else None
    code = code or getattr(error, 'code', None)  # of gcsfs
    return int(code) if str(code).isdecimal() else None


def is_lasting(error: Exception) -> bool:
    """Whether the server has understood the request and refused it, or it could not even be made: time mends neither,
    as far as one can tell."""
    status = status_of(error)
    refused = status is not None and 400 <= status < 500 and status not in (408, 429)
    return refused or isinstance(error, (TypeError, ValueError, LookupError, AttributeError))


def one_line(error: Exception) -> str:
    """What it says, or is."""
    return next(iter(str(error).strip().splitlines()), '') or type(error).__name__
