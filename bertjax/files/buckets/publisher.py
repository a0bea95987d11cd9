"""A thread that publishes a mirror beside the training, and stops the run where that can no longer be done."""

import _thread
import contextlib
import threading
import time
from collections.abc import Iterator

from absl import logging

from bertjax.errors import StoppedError, UserError
from bertjax.files.buckets.failures import UnreachableError
from bertjax.files.buckets.lease import Lease
from bertjax.files.buckets.mirror import Mirror

EVERY = 20.0  # seconds between looks at the folder
PATIENCE = 1800.0  # seconds without an answer of the bucket after which the run is stopped


class UnpublishedError(StoppedError):
    """What the run has computed is in its local mirror, and not in the bucket."""


class Publisher:
    """Publishes while it is entered. Never more than one pass is under way, and each takes the newest that is there:
    what is written faster than it can be sent is left out, and the training waits for nothing.

    A bucket out of reach is tried again, for PATIENCE seconds; then, and at once where writing is denied or another
    process has taken the workdir, the run is asked to stop as by Ctrl-C, and `failure` says why.
    """

    def __init__(self, mirror: Mirror, lease: Lease):
        self._mirror, self._lease = mirror, lease
        self._ended, self._passing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._work, name='publisher', daemon=True)
        self.failure: Exception | None = None

    def __enter__(self) -> 'Publisher':
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        reached = time.monotonic()
        while not self._ended.wait(EVERY):
            try:
                with self._passing:
                    self._lease.check()
                    self._mirror.publish()
                reached = time.monotonic()
                continue
            except UnreachableError as error:
                if time.monotonic() - reached < PATIENCE:
                    logging.warning('not published, and tried again: %s', error)
                    continue
                self.failure = error
            except (UserError, StoppedError, OSError) as error:
                self.failure = error
            _thread.interrupt_main()
            return

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Publishes all that there is now; while this is entered nothing changes in the bucket. Raises as `finish`."""
        with self._passing:
            self.finish()
            yield

    def finish(self) -> tuple[int, int]:
        """Publishes all that is left, while the thread does not. Returns objects and bytes.

        Raises:
          UnpublishedError: it cannot be; the mirror keeps everything.
          LostLeaseError: the workdir is another process's.
        """
        self._lease.check()
        try:
            return self._mirror.publish(all_of_it=True)
        except (UserError, OSError) as error:
            raise UnpublishedError(
                f'stopped: not all of the run is in {self._mirror.bucket} ({error}). It is whole in '
                f'{self._mirror.folder}: the same command on this machine publishes it, and continues'
            ) from None
