"""The command line flags for runs with several processes, and the supervision of such a process."""

import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping

from bertjax.errors import LostError, UserError
from bertjax.parallel.tpu_processes import count_tpu_processes

_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """The command line flags for a run with several processes, all None if the environment configures them.

    Attributes:
      coordinator_address: HOST:PORT of the first process.
      process_id: The number of this process, from 0.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def check(self) -> None:
        """Raises UserError unless all three flags are set to valid values, or none is set."""
        flags = {f'--{name}': value for name, value in dataclasses.asdict(self).items()}
        missing = [name for name, value in flags.items() if value is None]
        if len(missing) == len(flags):
            return
        if missing:
            raise UserError(
                next(name for name in flags if name not in missing),
                found=f'no {" and no ".join(missing)}',
                expected='all three flags or none of them',
                fix=f'also give {" and ".join(missing)} (docs/scaling.md)',
            )
        if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
            raise UserError(
                '--process_id',
                found=str(self.process_id),
                expected=f'a number below --num_processes={self.num_processes}',
                fix='number the processes from 0',
            )
        if not self.coordinator_address.rpartition(':')[2].isdigit():
            raise UserError(
                '--coordinator_address',
                found=self.coordinator_address,
                expected='HOST:PORT of the first process',
                fix='for example --coordinator_address=10.0.0.2:8476',
            )

    def is_one_of_several(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Returns whether the flags or the environment (srun, TPU hosts, a GKE JobSet) set several processes."""
        slurm = 'SLURM_PROCID' in environment and int(environment.get('SLURM_STEP_NUM_TASKS') or '1') > 1
        return self.coordinator_address is not None or slurm or count_tpu_processes(environment) > 1


def supervise() -> None:
    """Continues in a child process. The parent waits until the child ends and exits with the child's status.

    If another process of the run is lost, JAX may end the child at any time with SIGABRT and C++ stack traces. The
    ended child cannot print a one-line explanation or choose its exit status, so the parent does both.

    The parent forwards SIGTERM, Ctrl-C and Ctrl-Z.
    """
    # A signal that arrives before its handler is set would end the parent, and with it the child. Until then it waits.
    signals = (signal.SIGTSTP, signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the child must not outlive the parent
        if os.getppid() != parent:
            os._exit(LostError.exit_status)
        # A terminal and Slurm signal all processes of a group. Without its own group, the child would get each signal
        # twice, and a second signal has another meaning (train/health/interrupt.py).
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
        print(LostError(), file=sys.stderr, flush=True)
        os._exit(LostError.exit_status)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
