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
from bertjax.files.buckets.objects import Bucket

NAME = '.lease.json'
EVERY = 15.0  # seconds between renewals
GONE = 60.0  # seconds without one after which the holder counts as gone


class LostLeaseError(StoppedError):
    """Another process has taken the workdir over."""


class Lease:
    """Held from `take` to `give_back`, renewed by a thread. No clocks of two machines are compared: a holder counts as
    gone when its lease has not changed while this process watched it for GONE seconds.

    Args:
      bucket: the workdir.
      mirror: which folder of which machine this process has locked for it.

    Attributes:
      lost: whether another one has it now; what is published from then on would destroy the other's.
    """

    def __init__(self, bucket: Bucket, mirror: str):
        self._bucket, self._token = bucket, secrets.token_hex(8)
        self._facts = {'token': self._token, 'host': socket.gethostname(), 'pid': os.getpid(), 'mirror': mirror}
        self._count, self.lost = 0, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name='lease', daemon=True)

    def take(self, say: Callable[[str], None]) -> None:
        """Takes it, at once where nobody holds it or an earlier process with the same mirror did.

        Args:
          say: is told who is waited for.

        Raises:
          UserError: another process works in the workdir; see `Bucket` too.
        """
        first, began = self._read(), time.monotonic()
        held = first
        if held is not None and held.get('mirror') != self._facts['mirror']:
            who = _holder(held)
            say(f'{self._bucket} was left by {who}, or is in use: watching it for {GONE:.0f} s')
            while time.monotonic() - began < GONE and held is not None:
                time.sleep(min(1.0, EVERY))
                held = self._read()
                if held is not None and held != first:
                    found, mend = f'another process that works in this workdir ({who})', 'wait for it, or end it'
                    raise UserError(str(self._bucket), found, 'one process at a time', mend)
        if held is not None:
            self._bucket.remove(NAME)
        try:
            self._write(new=True)
        except FileExistsError:
            if (self._read() or {}).get('token') != self._token:  # else a repetition of the request met its own
                found, mend = 'another process that took this workdir just now', 'wait for it, or end it'
                raise UserError(str(self._bucket), found, 'one process at a time', mend) from None
        self._thread.start()

    def check(self) -> None:
        """Raises LostLeaseError where another process has taken over."""
        if self.lost:
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
            if not self.lost and (self._read() or {}).get('token') == self._token:
                self._bucket.remove(NAME)

    def _read(self) -> dict | None:
        return _read(self._bucket)

    def _write(self, *, new: bool = False) -> None:
        self._count += 1
        self._bucket.write(NAME, json.dumps({**self._facts, 'renewed': self._count}).encode(), new=new)

    def _renew(self) -> None:
        while not self._ended.wait(EVERY):
            try:
                if (self._read() or {}).get('token') != self._token:
                    self.lost = True
                    return
                self._write()
            except UserError:  # the publisher says so, and the next time it may be there
                continue


def holder(bucket: Bucket) -> str | None:
    """Which process of which machine holds the lease; None where nobody does."""
    facts = _read(bucket)
    return None if facts is None else _holder(facts)


def _holder(facts: dict) -> str:
    return f'{facts.get("host")}, process {facts.get("pid")}'


def _read(bucket: Bucket) -> dict | None:
    try:
        facts = json.loads(bucket.read(NAME))
    except FileNotFoundError:
        return None
    except ValueError:  # not one of ours
        return {}
    return facts if isinstance(facts, dict) else {}
