"""The supervising process: it forwards each signal to its child, once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

# The child prints the signals that it gets, and ends at the third.
CHILD = """
import os, signal, time
from bertjax.parallel.process_flags import supervise

signal.signal(signal.SIGINT, signal.SIG_IGN)
supervise()
told = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: told.append(print(number, flush=True)))
print('begun', flush=True)
while len(told) < 3:
    time.sleep(0.01)
os._exit(75)
"""


@pytest.fixture
def watched() -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        [sys.executable, '-c', CHILD], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == 'begun\n'
        yield process
        process.kill()


@pytest.mark.parametrize(
    ('tell', 'number'),
    [
        (os.kill, signal.SIGTERM),
        (os.killpg, signal.SIGINT),
        pytest.param(os.kill, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(os.killpg, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_each_signal_is_forwarded_once(watched: subprocess.Popen, number: int, tell: Callable[[int, int], None]):
    """The signal goes to the process, as by `kill`, or to its group, as from a terminal."""
    for _ in range(3):
        tell(watched.pid, number)
        assert watched.stdout.readline() == f'{number:d}\n'
    assert watched.stdout.read() == '' and watched.wait(30) == 75


@pytest.mark.slow
def test_both_processes_suspend_and_continue(watched: subprocess.Popen):
    (child,) = psutil.Process(watched.pid).children()
    both = (psutil.Process(watched.pid), child)

    def wait_until_stopped(stopped: bool) -> None:
        deadline = time.monotonic() + 30
        while any((process.status() == psutil.STATUS_STOPPED) != stopped for process in both):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    os.kill(watched.pid, signal.SIGTSTP)
    wait_until_stopped(True)
    os.kill(watched.pid, signal.SIGCONT)
    wait_until_stopped(False)


def test_the_child_ends_with_its_parent(watched: subprocess.Popen):
    (child,) = psutil.Process(watched.pid).children()
    watched.kill()
    child.wait(30)
