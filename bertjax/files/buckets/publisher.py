"""A thread that publishes a mirror beside the training, and stops the run where that can no longer be done."""

import _thread
import contextlib
import threading
from collections.abc import Iterator

from bertjax.errors import StoppedError, UserError
from bertjax.files.buckets.lease import Lease
from bertjax.files.buckets.mirror import Mirror

EVERY = 20.0  # seconds between looks at the folder


class UnpublishedError(StoppedError):
    """What the run has computed is in its local mirror, and not in the bucket."""


class Publisher:
    """Publishes while it is entered. Never more than one pass is under way, and each takes the newest that is there:
    what is written faster than it can be sent is left out, and the training waits for nothing.

    Where no patience helps, writing is denied or another process has taken the workdir, the run is asked to stop as by
    Ctrl-C, and `finish` says why.
    """

    def __init__(self, mirror: Mirror, lease: Lease):
        self._mirror, self._lease = mirror, lease
        self._ended, self._passing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._work, name='publisher', daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> 'Publisher':
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.wait(EVERY):
            try:
                with self._passing:
                    self._mirror.publish()
            except (UserError, StoppedError, OSError) as error:
                self._failure = error
                if not self._ended.is_set():  # else it is about to be said
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
        try:
            if self._failure is not None:
                raise self._failure
            self._lease.check()  # also where nothing is left to publish, which would ask
            return self._mirror.publish(all_of_it=True)
        except (UserError, OSError) as error:
            raise UnpublishedError(
                f'stopped: not all of the run is in {self._mirror.bucket} ({error}). It is whole in '
                f'{self._mirror.folder}: the same command on this machine publishes it, and continues'
            ) from None
