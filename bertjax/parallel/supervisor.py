"""Supervises a process of a run with several processes."""

import ctypes
import os
import signal
import sys

from bertjax.errors import LostError, process_status

_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


def supervise() -> None:
    """Continues in a child process. The parent waits for the child, and then exits with the child's status.

    If another process of the run is lost, JAX may abort the child at any time (SIGABRT). The parent then prints the
    message of LostError and exits with the status of this error. The parent also forwards SIGTERM, Ctrl-C and Ctrl-Z.
    """
    # Signals are blocked until their handlers are set, because an earlier signal would end or stop the processes.
    signals = (signal.SIGTSTP, signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        if sys.platform == 'linux':  # the child must not outlive the parent
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(LostError.exit_status)
        # A terminal and Slurm signal all processes of a group. In the parent's group, the child would get each signal
        # twice, and a second signal has another meaning (training/health/interrupt.py).
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        return

    def pause(number: int, frame: object) -> None:
        os.kill(child, signal.SIGSTOP)
        os.kill(parent, signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

    signal.signal(signal.SIGTSTP, pause)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
        reason = 'this process was aborted (see above), as when another process of this run is lost'
        print(LostError(reason), file=sys.stderr, flush=True)
        os._exit(LostError.exit_status)
    status = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    os._exit(process_status(status))
