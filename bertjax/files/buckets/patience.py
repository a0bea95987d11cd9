"""How long a request that fails is made again: as long as something may still come of it."""

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from absl import logging

from bertjax.errors import StoppedError
from bertjax.files.buckets.failures import is_lasting, one_line

if TYPE_CHECKING:
    from bertjax.files.buckets.objects import Bucket

PAUSES = (0.5, 1, 2, 4, 8, 16)  # seconds before a request that failed is made again; the last one from then on
MEETING = 30.0  # seconds for a server that has not answered yet: its address may be wrong
PATIENCE = 1800.0  # seconds for one that has
AT_ONCE = 8  # objects, or parts of one, that are fetched or written at the same time
_TOLD_EVERY = 60.0  # seconds
_told = -_TOLD_EVERY  # when somebody was told last that nothing comes

Item = TypeVar('Item')
Result = TypeVar('Result')


class Attempts:
    """Those at one request. What counts is the time since the first that failed: of a long transfer each piece is a
    request, so that whatever comes gives the rest its time anew.

    Args:
      patience: seconds.
      what: is asked, for messages.
    """

    def __init__(self, patience: float, what: str):
        self._patience, self._what = patience, what
        self._count, self._since = 0, 0.0

    def again(self, error: Exception) -> bool:
        """After an attempt that failed: waits and returns True, or False where the time is over."""
        if not self._count:
            self._since = time.monotonic()
        patience = min(self._patience, MEETING) if is_lasting(error) else self._patience
        left = patience - self.failing()
        if left <= 0:
            return False
        pause = min(left, PAUSES[min(self._count, len(PAUSES) - 1)])
        self._count += 1
        if self._count > len(PAUSES):
            self._tell(error, patience)
        time.sleep(pause)
        return True

    def failing(self) -> float:
        """Seconds since the first one failed."""
        return time.monotonic() - self._since

    def _tell(self, error: Exception, patience: float) -> None:
        global _told
        if time.monotonic() - _told >= _TOLD_EVERY:
            _told, words = time.monotonic(), (self._what, one_line(error), in_words(patience))
            logging.warning('no answer, or half of one, from %s (%s): asked again and again, for %s', *words)


def in_words(seconds: float) -> str:
    """'30 s', '30 minutes'."""
    return f'{seconds:.0f} s' if seconds < 120 else f'{seconds / 60:.0f} minutes'


class _OthersFailedError(StoppedError):
    """Of several requests at the same time another one has failed."""


def at_once(bucket: 'Bucket', work: Callable[['Bucket', Item], Result], items: Iterable[Item]) -> list[Result]:
    """`work` on each item, several at the same time. Where one raises, or Ctrl-C comes, no other is patient any longer.

    Args:
      bucket: is given to `work`, in a form that hears of that.
      work: asks the bucket for something.
      items: each given to `work`.
    """
    ended = threading.Event()

    def check() -> None:
        if ended.is_set():
            raise _OthersFailedError

    asked = bucket.guarded(check)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(work, asked, item) for item in items]
        try:
            for future in concurrent.futures.as_completed(waiting):
                future.result()
        except BaseException:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in waiting]
