"""Who works in a workdir of a bucket: an object that its holder renews, for a bucket knows no locks."""

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable

from bertjax.errors import StoppedError, UserError
from bertjax.files.buckets.failures import UnreachableError
from bertjax.files.buckets.objects import Bucket

NAME = '.lease.json'
EVERY = 15.0  # seconds between renewals
GONE = 60.0  # seconds without one after which the holder counts as gone


class LostLeaseError(StoppedError):
    """Another process has taken the workdir over."""


class Lease:
    """Held from `take` to `give_back`, renewed by a thread. No clocks of two machines are compared: a holder counts as
    gone when its lease has not changed while this process watched it for GONE seconds.

    Every write names the lease that it replaces: the server refuses it where another one is there by then. Where a
    server knows no such condition, what is left is the moment between reading and writing.

    Args:
      bucket: the workdir.
      mirror: which folder of which machine this process has locked for it.
    """

    def __init__(self, bucket: Bucket, mirror: str):
        self._bucket, self._token = bucket, secrets.token_hex(8)
        self._facts = {'token': self._token, 'host': socket.gethostname(), 'pid': os.getpid(), 'mirror': mirror}
        self._count, self._lost = 0, False
        self._renewing, self._renewed = threading.Lock(), _clocks()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name='lease', daemon=True)

    def take(self, say: Callable[[str], None]) -> None:
        """Takes it, at once where nobody holds it or an earlier process with the same mirror did.

        Args:
          say: is told who is waited for.

        Raises:
          UserError: another process works in the workdir; see `Bucket` too.
        """
        first, began = _read(self._bucket), time.monotonic()
        held, tag = first
        if held is not None and held.get('mirror') != self._facts['mirror']:
            who = _holder(held)
            say(f'{self._bucket} was left by {who}, or is in use: watching it for {GONE:.0f} s')
            while time.monotonic() - began < GONE and tag:
                time.sleep(min(1.0, EVERY))
                held, tag = _read(self._bucket)
                if tag and (held, tag) != first:
                    raise self._in_use(f'another process that works in this workdir ({who})')
        if not self._written(self._bucket, tag):
            raise self._in_use('another process that took this workdir just now')
        self._thread.start()

    def _in_use(self, found: str) -> UserError:
        return UserError(str(self._bucket), found, 'one process at a time', 'wait for it, or end it')

    def check(self) -> None:
        """Called before whatever changes the bucket. A process that did not run for a while (stopped, or its machine
        suspended) renews the lease first, and so learns whether it is still its own.

        Raises:
          LostLeaseError: another process has taken over.
          ConnectionError: that cannot be known now; see `Bucket` too.
        """
        if not self._lost and self._age() > GONE / 2:
            with self._renewing:
                if not self._lost and self._age() > GONE / 2:  # and no other thread has done so meanwhile
                    self._renew()
        if self._lost:
            raise LostLeaseError(
                f'stopped: another process works in {self._bucket} now; this one has been out of reach for '
                f'{GONE:.0f} s, and publishes nothing any more'
            )

    def give_back(self) -> None:
        """Ends the renewals, and lets others take it."""
        self._ended.set()
        if not self._thread.ident:
            return
        self._thread.join()
        with contextlib.suppress(UserError):  # out of reach: for others it ends by itself
            if not self._lost and self._is_own():
                self._bucket.remove(NAME)

    def _is_own(self) -> bool:
        return (_read(self._bucket)[0] or {}).get('token') == self._token

    def _age(self) -> float:
        """Seconds since the last renewal: of two clocks, as one stands still on a machine that is suspended, and the
        other may be set."""
        return max(abs(now - then) for now, then in zip(_clocks(), self._renewed, strict=True))

    def _written(self, bucket: Bucket, tag: str) -> bool:
        """Writes the lease in place of the one with this tag, '' for none; False where there is another one."""
        began = _clocks()
        self._count += 1
        try:
            bucket.write(NAME, json.dumps({**self._facts, 'renewed': self._count}).encode(), over=tag)
        except FileExistsError:
            if not self._is_own():  # else a repetition of the request met its own
                return False
        self._renewed = began
        return True

    def _renew(self) -> None:
        once = self._bucket.impatient()
        try:
            held, tag = _read(once)
            self._lost = (held or {}).get('token') != self._token or not self._written(once, tag)
        except UnreachableError as error:
            raise ConnectionError(str(error)) from None

    def _work(self) -> None:
        while not self._ended.wait(EVERY) and not self._lost:
            with self._renewing, contextlib.suppress(ConnectionError, UserError):  # the publisher says so
                self._renew()


def holder(bucket: Bucket) -> str | None:
    """Which process of which machine holds the lease; None where nobody does."""
    facts, _ = _read(bucket)
    return None if facts is None else _holder(facts)


def _holder(facts: dict) -> str:
    return f'{facts.get("host")}, process {facts.get("pid")}'


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.time()


def _read(bucket: Bucket) -> tuple[dict | None, str]:
    """What a lease says, None where there is none; and its tag, or that of the one before it."""
    there = bucket.about(NAME)
    if there is None:
        return None, ''
    try:
        facts = json.loads(bucket.read(NAME))
    except FileNotFoundError:
        return None, ''
    except ValueError:  # not one of ours
        return {}, there.tag
    return facts if isinstance(facts, dict) else {}, there.tag
