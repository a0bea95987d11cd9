"""Signals: noted, answered, obeyed, whatever the main thread is at."""

import os
import signal
import sys
import time

import pytest
from killing import in_fork

from bertjax.train.interrupt import Interrupt


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_one_two_three(tmp_path, number):
    """In a fork that is in native code and handles no signal of Python's: the third ends it."""
    said = tmp_path / 'said'

    def stopped():
        sys.stderr = said.open('w')
        lines = lambda: said.read_text().splitlines()  # noqa: E731
        with Interrupt() as interrupt:
            assert not interrupt.requested()
            signal.pthread_sigmask(signal.SIG_BLOCK, [])
            interrupt.doing = 'checkpoint 12 is being written'
            for count in (1, 2):
                os.kill(os.getpid(), number)
                wait_for(lambda count=count: len(lines()) == count)
            assert interrupt.requested()
            os.kill(os.getpid(), number)
            time.sleep(60)

    assert in_fork(stopped) == 128 + number
    first, second = said.read_text().splitlines()
    assert first == 'stop requested: saving at the next step …'
    assert 'checkpoint 12 is being written' in second and 'a third signal ends the process' in second


def test_the_handlers_of_before_come_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interrupt():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1
