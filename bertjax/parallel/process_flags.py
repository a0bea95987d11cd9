"""Whether a process is one of several that compute a run together, before JAX is asked; and who watches over it."""

import ctypes
import dataclasses
import os
import signal
import sys
from collections.abc import Mapping

from bertjax.errors import LostError, UserError
from bertjax.parallel.tpu_processes import count_tpu_processes

_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


@dataclasses.dataclass(frozen=True)
class ProcessFlags:
    """Which process of a run this is, as the command line says it; nothing of it where the environment does.

    Attributes:
      coordinator_address: HOST:PORT at which the first process is reached.
      num_processes: of the run.
      process_id: of this one, from 0.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None

    def check(self) -> None:
        """Raises UserError unless all three were given, or none."""
        given = {f'--{name}': value for name, value in dataclasses.asdict(self).items()}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return
        if missing:
            there = next(name for name in given if name not in missing)
            raise UserError(there, f'no {" and no ".join(missing)}', 'all three, or none', 'see docs/scaling.md')
        if self.num_processes < 1 or not 0 <= self.process_id < self.num_processes:
            fix = 'number the processes from 0'
            raise UserError('--process_id', str(self.process_id), f'below --num_processes={self.num_processes}', fix)
        if not self.coordinator_address.rpartition(':')[2].isdigit():
            fix = 'for example --coordinator_address=10.0.0.2:8476'
            raise UserError('--coordinator_address', self.coordinator_address, 'HOST:PORT of the first process', fix)

    def is_one_of_several(self, environment: Mapping[str, str] = os.environ) -> bool:
        """Whether the command line says so, or what started this process: srun, a TPU slice of several machines, or a
        JobSet on GKE."""
        slurm = 'SLURM_PROCID' in environment and int(environment.get('SLURM_STEP_NUM_TASKS') or '1') > 1
        return self.coordinator_address is not None or slurm or count_tpu_processes(environment) > 1


def supervise() -> None:
    """Goes on in a child process; this one waits for its end, and ends with its status.

    JAX ends a process that has lost another one with SIGABRT, at a moment of its own and with traces of C++: nothing
    within that process can say in one line what has happened, or choose its status.

    SIGTERM, Ctrl-C and Ctrl-Z are handed on.
    """
    parent, child = os.getpid(), os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody is left without who watches it
        if os.getppid() != parent:
            os._exit(LostError.exit_status)
        # A terminal and Slurm tell all processes of a group: the child would be told twice, which means more than once.
        os.setpgid(0, 0)
        return

    def pause(number: int, frame: object) -> None:
        os.kill(child, signal.SIGSTOP)
        os.kill(parent, signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

    signal.signal(signal.SIGTSTP, pause)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT:
        print(LostError(), file=sys.stderr, flush=True)
        os._exit(LostError.exit_status)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
