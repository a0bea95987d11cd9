"""Signals are recorded and answered, and the third one ends the process."""

import dataclasses
import os
import signal
import sys
import time

import pytest
from killing import in_fork

from bertjax.training.caller import CALLER
from bertjax.training.health.interrupt import Interrupt


def wait_for(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_third_signal_ends_the_process(tmp_path, number):
    stderr = tmp_path / 'stderr'

    def send_three_signals():
        sys.stderr = stderr.open('w')
        lines = lambda: stderr.read_text().splitlines()  # noqa: E731
        with Interrupt() as interrupt:
            assert not interrupt.requested()
            interrupt.doing = 'checkpoint 12 is being written'
            for count in (1, 2):
                os.kill(os.getpid(), number)
                wait_for(lambda count=count: len(lines()) == count)
            assert interrupt.requested()
            os.kill(os.getpid(), number)
            time.sleep(60)

    assert in_fork(send_three_signals) == 128 + number
    first, second = stderr.read_text().splitlines()
    assert first == 'stop requested: stopping as soon as the work is saved …'
    assert 'checkpoint 12 is being written' in second and 'a third signal ends the process' in second


def test_previous_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with Interrupt():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] != before
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_outer_context_gets_the_signals():
    with Interrupt() as outer:
        with Interrupt() as inner:
            signal.raise_signal(signal.SIGTERM)
        assert inner is outer and outer.requested()
        signal.raise_signal(signal.SIGTERM)


def test_the_third_of_signals_in_one_c_call_interrupts_the_call(monkeypatch):
    """Python calls the handler once for equal signals that arrive during a C call; the thread counts each."""
    token = CALLER.set(dataclasses.replace(CALLER.get(), ends_process=False))
    try:
        with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:
            for count in (1, 2, 3):
                os.write(interrupt._writer, bytes([signal.SIGINT]))
                wait_for(lambda count=count: interrupt._arrived == count)
            signal.raise_signal(signal.SIGINT)
    finally:
        CALLER.reset(token)
