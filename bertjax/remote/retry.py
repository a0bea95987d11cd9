"""Retries requests to a bucket, runs several at a time, and translates their errors."""

import concurrent.futures
import copy
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from absl import logging

from bertjax.errors import StoppedError, UserError, first_line

PAUSES = (0.5, 1, 2, 4, 8, 16)  # seconds between attempts; the last pause repeats
FIRST_CONTACT = 30.0  # seconds of retries if the server has not answered yet, or if the error looks permanent
PATIENCE = 1800.0  # seconds of retries if the server has answered an earlier request
WARN_EVERY = 60.0  # seconds
_AT_ONCE = 8  # the maximum number of parallel requests
_answered: set[str] = set()  # the buckets that have answered a request of this process

_DENIED = ('Forbidden', 'Access Denied', 'AccessDenied', 'Anonymous caller', 'Invalid Credentials')
_CREDENTIALS = ('NoCredentialsError', 'PartialCredentialsError', 'DefaultCredentialsError', 'ProfileNotFound')
_LOGIN = {'gs': 'gcloud auth application-default login', 's3': 'aws configure'}

Item = TypeVar('Item')
Value = TypeVar('Value')


class UnreachableError(UserError):
    """No attempt within the time limit got a complete answer from the server of a bucket."""


class DeniedError(UserError):
    """Credentials are missing, or do not allow the request."""


class _CancelledError(StoppedError):
    """Another of the parallel requests has failed."""


def http_status(error: Exception) -> int | None:
    """Returns the HTTP status in an error of s3fs or gcsfs; None if the error has no status."""
    response = getattr(error.__cause__ or error, 'response', None)  # s3fs chains its error to botocore's
    status = response.get('ResponseMetadata', {}).get('HTTPStatusCode') if isinstance(response, dict) else None
    status = status or getattr(error, 'code', None)  # gcsfs
    return int(status) if str(status).isdecimal() else None


def _is_denied(error: Exception) -> bool:
    named = isinstance(error, PermissionError) or type(error).__name__ in _CREDENTIALS
    worded = isinstance(error, OSError) and any(word in str(error) for word in _DENIED)
    return named or worded or http_status(error) in (401, 403)


def _is_permanent(error: Exception) -> bool:
    """Returns whether a retry is unlikely to succeed: the server or the client library has refused the request."""
    status = http_status(error)
    refused = status is not None and 400 <= status < 500 and status not in (408, 429)
    return refused or isinstance(error, (TypeError, ValueError, LookupError, AttributeError))


def _format_seconds(seconds: float) -> str:
    return f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} minutes'


class Requester:
    """Makes requests for the address `url`, which begins with `bucket`, such as s3://name.

    A request is retried for a limited time after its first failure. `where` is the config key, for messages.
    """

    def __init__(self, url: str, bucket: str, where: str):
        self.url, self._bucket, self._where = url, bucket, where
        self._checks: tuple[Callable[[bool], None], ...] = ()
        self._retries = True

    def with_check(self, check: Callable[[bool], None]) -> Self:
        """Returns a copy that calls `check(True)` before each attempt, and `check(False)` after each uploaded part.

        `check(False)` must not wait. If the check raises a UserError or StoppedError, the request ends. After any other
        exception, the request is retried.
        """
        other = copy.copy(self)
        other._checks = (*self._checks, check)
        return other

    def without_retries(self) -> Self:
        """Returns a copy that makes one attempt per request."""
        other = copy.copy(self)
        other._retries = False
        return other

    def check(self, wait: bool) -> None:
        """Calls the checks of `with_check` with `wait`. A check may raise an exception."""
        for check in self._checks:
            check(wait)

    def run_parallel(self, work: Callable[[Self, Item], Value], items: Iterable[Item]) -> list[Value]:
        """Calls `work(requester, item)` for each item, several in parallel, and returns the results in order.

        `requester` is a copy of `self`. All its requests fail after an exception in a call, or after Ctrl-C.
        """
        failed = threading.Event()

        def check(_: bool) -> None:
            if failed.is_set():
                raise _CancelledError

        requester = self.with_check(check)
        with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            futures = [pool.submit(work, requester, item) for item in items]
            try:
                for future in concurrent.futures.as_completed(futures):
                    future.result()
            except BaseException:
                failed.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def call(self, request: Callable[..., Value], *arguments: Any, **options: Any) -> Value:
        """Returns the result of a request, which is retried if it fails.

        Raises:
          DeniedError: The request is not allowed.
          UnreachableError: No attempt within the time limit succeeds.
          FileNotFoundError, FileExistsError: The request raises them.
        """
        patience = (PATIENCE if self._bucket in _answered else FIRST_CONTACT) if self._retries else 0
        first_failure, failures = 0.0, 0
        while True:
            try:
                self.check(True)
                value = request(*arguments, **options)
                _answered.add(self._bucket)
                return value
            except (FileNotFoundError, FileExistsError):
                _answered.add(self._bucket)
                raise
            except (UserError, StoppedError):
                raise
            except Exception as error:  # each library raises its own types
                if _is_denied(error):
                    expected, command = 'credentials that may list, read and write there', _LOGIN[self.url[:2]]
                    found = self._at_url(f'access denied ({first_line(error)})')
                    raise DeniedError(self._where, found, expected, f'log in, for example with: {command}') from None
                first_failure = first_failure or time.monotonic()
                limit, passed = patience, time.monotonic() - first_failure
                if _is_permanent(error):
                    limit = min(patience, FIRST_CONTACT)
                if passed >= limit:
                    found = self._at_url(f'no complete answer for {_format_seconds(passed)} ({first_line(error)})')
                    fix = 'check the network, then repeat the command, which keeps the files that are complete'
                    raise UnreachableError(self._where, found, 'an answer', fix) from None
                if failures >= len(PAUSES):
                    message = 'no complete answer from %s (%s): retrying for up to %s in total'
                    details = self.url, first_line(error), _format_seconds(limit)
                    logging.log_every_n_seconds(logging.WARNING, message, WARN_EVERY, *details)
                time.sleep(min(limit - passed, PAUSES[min(failures, len(PAUSES) - 1)]))
                failures += 1

    def _at_url(self, found: str) -> str:
        return found if self._where == self.url else f'{self.url}: {found}'
