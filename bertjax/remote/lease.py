"""The lock of a workdir in a bucket: a lease object that its holder renews, because buckets have no locks."""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from bertjax.errors import StoppedError, UserError
from bertjax.remote.object_store import RemoteFolder
from bertjax.remote.retry import UnreachableError

NAME = '.lease.json'
RENEW_EVERY = 15.0  # seconds
EXPIRES_AFTER = 60.0  # seconds without a renewal


class LostLeaseError(StoppedError):
    """Another process has taken over the workdir."""


class Lease:
    """A lease on a workdir. A thread renews the lease from `take` to `release`.

    The clocks of two machines are never compared: the lease of another process counts as expired if this process has
    watched it for EXPIRES_AFTER seconds without a change. Every write names the version that it replaces. On a server
    without conditional writes, another process can take the lease between a read and a write. `mirror` identifies the
    local mirror folder, which this process has locked on this host. Other hosts may share the folder.
    """

    def __init__(self, folder: RemoteFolder, mirror: str):
        self._folder, self._token = folder, secrets.token_hex(8)
        self._facts = {'token': self._token, 'host': socket.gethostname(), 'pid': os.getpid(), 'mirror': mirror}
        self._count, self._lost = 0, False
        self._renewing, self._renewed = threading.Lock(), _clocks()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name='lease', daemon=True)

    def take(self, log: Callable[[str], None]) -> None:
        """Takes the lease: immediately if no process on another host or mirror holds it, else when it expires.

        Before the process waits, `log` is called with a line about the holder.

        Raises:
          UserError: Another process works in the workdir; see also `RemoteFolder`.
        """
        facts, version = first = _read(self._folder)
        start = time.monotonic()
        if facts is not None and any(facts.get(key) != self._facts[key] for key in ('mirror', 'host')):
            holder = _holder_of(facts)
            log(f'{self._folder} was left by {holder}, or is in use: watching it for {EXPIRES_AFTER:.0f} s')
            while version and time.monotonic() - start < EXPIRES_AFTER:
                time.sleep(min(1.0, RENEW_EVERY))
                facts, version = _read(self._folder)
                if version and (facts, version) != first:
                    raise self._in_use(f'another process that works in this workdir ({holder})')
        if not self._write(self._folder, version):
            raise self._in_use('another process that took this workdir just now')
        self._thread.start()

    def _in_use(self, found: str) -> UserError:
        return UserError(str(self._folder), found, 'one process at a time', 'wait for it, or end it')

    def check(self, wait: bool = True) -> None:
        """Checks that the lease is held. Call this method before every request that changes the bucket.

        If the last renewal is older than EXPIRES_AFTER / 2, for example because the machine was suspended, the method
        first renews the lease, to find out whether another process has taken over.

        Raises:
          LostLeaseError: Another process has taken over.
          ConnectionError: The bucket cannot be reached, or a renewal is due and `wait` is False. See `RemoteFolder`.
        """
        if not self._lost and self._age() > EXPIRES_AFTER / 2:
            if not wait:
                raise ConnectionError('the lease has to be renewed')
            with self._renewing:
                if not self._lost and self._age() > EXPIRES_AFTER / 2:  # no other thread has renewed it meanwhile
                    self._renew()
        if self._lost:
            raise LostLeaseError(
                f'stopped: another process works in {self._folder} now, because this process could not renew its lease '
                f'for {EXPIRES_AFTER:.0f} s; this process publishes no more files'
            )

    def release(self) -> None:
        """Stops renewing, and removes the lease so that others can take it."""
        self._released.set()
        if not self._thread.ident:
            return
        self._thread.join()
        folder = self._folder.without_retries()
        with contextlib.suppress(UserError, ConnectionError):  # the bucket is out of reach: the lease will expire
            if not self._lost and self._is_held(folder):
                folder.remove(NAME)

    def _is_held(self, folder: RemoteFolder) -> bool:
        return (_read(folder)[0] or {}).get('token') == self._token

    def _age(self) -> float:
        """Returns the seconds since the last renewal."""
        # The monotonic clock stops while a machine is suspended, and the wall clock can be changed.
        return max(abs(now - then) for now, then in zip(_clocks(), self._renewed, strict=True))

    def _write(self, folder: RemoteFolder, version: str) -> bool:
        """Writes the lease if its current version is `version` ('' for no lease). Returns whether it was written."""
        start = _clocks()
        self._count += 1
        try:
            folder.write(NAME, json.dumps({**self._facts, 'renewed': self._count}).encode(), replace=version)
        except FileExistsError:
            if not self._is_held(folder):  # if it is held, an earlier attempt of this request has succeeded
                return False
        self._renewed = start
        return True

    def _renew(self) -> None:
        once = self._folder.without_retries()
        try:
            facts, version = _read(once)
            self._lost = (facts or {}).get('token') != self._token or not self._write(once, version)
        except UnreachableError as error:
            raise ConnectionError(str(error)) from None

    def _keep_renewing(self) -> None:
        while not self._released.wait(RENEW_EVERY) and not self._lost:
            with self._renewing, contextlib.suppress(ConnectionError, UserError):  # `check` raises if failures go on
                self._renew()


def lease_holder(folder: RemoteFolder) -> str | None:
    """Returns the host and the process in the lease, which may have expired; None if there is no lease."""
    facts, _ = _read(folder)
    return None if facts is None else _holder_of(facts)


def _holder_of(facts: dict[str, Any]) -> str:
    return f'{facts.get("host")}, process {facts.get("pid")}'


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


def _read(folder: RemoteFolder) -> tuple[dict[str, Any] | None, str]:
    """Returns the content ({} if it cannot be parsed) and the version of a lease; (None, '') without a lease."""
    info = folder.info(NAME)
    try:
        facts = json.loads(folder.read(NAME)) if info else None
    except FileNotFoundError:
        info = facts = None
    except ValueError:
        facts = {}
    return (None, '') if info is None else (facts if isinstance(facts, dict) else {}, info.version)
