"""Signals are recorded and answered, whatever the main thread does."""

import os
import signal
import sys
import time

import pytest
from killing import in_fork

from bertjax.train.health.interrupt import Interrupt


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_three_signals(tmp_path, number):
    """In a forked process that is in native code, where Python handlers do not run, the third signal ends it."""
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


def test_previous_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interrupt():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1
