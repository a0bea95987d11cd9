"""Tests the supervising process, which forwards each signal to its child once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

# The child prints the signals that it receives, and ends after the third one. The parent continues late after the fork:
# it must not lose a signal that arrives earlier.
CHILD = """
import os, signal, sys, time
from bertjax.parallel.supervisor import supervise

fork = os.fork
def fork_with_a_slow_parent():
    child = fork()
    time.sleep(0.3 if child else 0)
    return child
os.fork = fork_with_a_slow_parent
signal.signal(signal.SIGINT, signal.SIG_IGN)
supervise()
received = []
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, frame: received.append(print(number, flush=True)))
print('started', flush=True)
while len(received) < 3:
    time.sleep(0.01)
os._exit(75)
"""


@pytest.fixture
def supervised() -> Iterator[subprocess.Popen]:
    """Starts CHILD."""
    command = [sys.executable, '-c', CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None and process.stdout.readline() == 'started\n'
        yield process
        process.kill()


@pytest.mark.parametrize(
    ('send', 'number'),
    [
        (os.kill, signal.SIGTERM),
        (os.killpg, signal.SIGINT),
        pytest.param(os.kill, signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(os.killpg, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_each_signal_is_forwarded_once(supervised: subprocess.Popen, number: int, send: Callable[[int, int], None]):
    """The signal is sent to the process, as by `kill`, or to its group, as by a terminal."""
    for _ in range(3):
        send(supervised.pid, number)
        assert supervised.stdout.readline() == f'{number:d}\n'
    assert supervised.stdout.read() == '' and supervised.wait(30) == 75


@pytest.mark.parametrize(('status', 'expected'), [(0, 0), (2, 202), (75, 75)])
def test_an_offset_is_added_to_the_status_of_a_mistake(status: int, expected: int):
    program = f'from bertjax.parallel.supervisor import supervise; supervise(); raise SystemExit({status})'
    environment = os.environ | {'BERTJAX_STATUS_OFFSET': '200'}
    assert subprocess.run([sys.executable, '-c', program], env=environment, check=False).returncode == expected


@pytest.mark.slow
def test_both_processes_suspend_and_continue(supervised: subprocess.Popen):
    (child,) = psutil.Process(supervised.pid).children()
    both = (psutil.Process(supervised.pid), child)

    def wait_until_stopped(stopped: bool) -> None:
        deadline = time.monotonic() + 30
        while any((process.status() == psutil.STATUS_STOPPED) != stopped for process in both):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    os.kill(supervised.pid, signal.SIGTSTP)
    wait_until_stopped(True)
    os.kill(supervised.pid, signal.SIGCONT)
    wait_until_stopped(False)


@pytest.mark.skipif(sys.platform != 'linux', reason='needs the prctl of Linux')
def test_the_child_ends_with_its_parent(supervised: subprocess.Popen):
    (child,) = psutil.Process(supervised.pid).children()
    supervised.kill()
    child.wait(30)
