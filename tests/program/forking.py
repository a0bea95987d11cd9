"""Starts processes of the program as forks of one process that has imported the modules but computed nothing.

Starting Python and importing modules takes a third of the processor time of a small run. A fork runs
`bertjax.main.console` as a new process does, with its own signals, exit status and standard streams; but only the
first process of a group checks the gradients of the compiler.
"""

import gc
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

# The modules that pre-training and fine-tuning import while they run.
MODULES = (
    'bertjax.main',
    'bertjax.commands.finetune',
    'bertjax.commands.pretrain',
    'bertjax.convert.huggingface.save',
    'bertjax.pretrain.chance_baselines',
    'bertjax.pretrain.run',
    'bertjax.pretrain.summary',
    'bertjax.training.trainer',
    'jaxlib.mlir.dialects.mhlo',
)
# The variable with the path of code that a process runs before the program; see `Program.with_startup`.
STARTUP = 'BERTJAX_TEST_STARTUP'
# Prefixes of variables that no module reads when it is imported. If another variable differs, a fork is not suitable.
READ_LATE = ('AWS_', 'BERTJAX_', 'GCE_METADATA_IP', 'HF_', 'JAX_COORDINATOR_PORT', 'STORAGE_EMULATOR_HOST', 'TPU_')


class Template:
    """The process that forks; it starts at the first request."""

    def __init__(self, environment: dict[str, str], folder: pathlib.Path):
        self._environment, self._folder = environment, folder
        self._process: subprocess.Popen | None = None
        self._lock = threading.Lock()

    def _start(self) -> None:
        self._connection, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(remote.fileno())]
        quiet = {'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL}
        options = {'cwd': self._folder, 'env': self._environment, 'pass_fds': [remote.fileno()]}
        with remote:
            self._process = subprocess.Popen(command, **quiet, **options)

    def is_suitable(self, environment: dict[str, str]) -> bool:
        """Whether a fork is equivalent to a new process in this environment."""
        known = self._environment
        names = known.keys() | environment.keys()
        return all(known.get(name) == environment.get(name) or name.startswith(READ_LATE) for name in names)

    def send(self, *request: object, descriptors: Sequence[int] = ()) -> list[int]:
        """Sends a request to the process and returns the numbers in its answer."""
        with self._lock:
            if self._process is None:
                self._start()
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
            return json.loads(self._connection.recv(1000))

    def load(self, *modules: str) -> None:
        """Imports modules that only some tests need, so that each later fork has them."""
        self.send('import', *modules)

    def close(self) -> None:
        """Ends the process; its forks keep running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()


class Fork(subprocess.Popen):
    """A process `python -m bertjax.main ARGUMENTS` that is a fork of `template`, not a child of this process."""

    def __init__(self, template: Template, *args: object, **options: object):
        self._template = template
        super().__init__(*args, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        # In the order of `_close_pipe_fds`: the child reads from the first and writes to the fourth and the sixth.
        pipes = others[3:9]
        ends = (pipes[0], pipes[3], pipes[5])
        descriptors = [end if end != -1 else inherited for inherited, end in enumerate(ends)]
        (self.pid,) = self._template.send('fork', args[3:], str(cwd), env, descriptors=descriptors)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_, **__):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)
        return self.returncode

    def __del__(self, *_, **__):
        """Does nothing: a fork that nobody waits for is reaped when its template ends."""

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        while True:
            pid, status = self._template.send('wait', self.pid)
            if pid or wait_flags & os.WNOHANG:
                return pid, status
            time.sleep(0.01)


def serve(connection: socket.socket) -> Callable[[], None] | None:
    """Answers requests until the connection closes and returns None; in a fork, returns the function to call."""
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return None
        kind, *values = json.loads(message)
        if kind == 'wait':
            connection.send(json.dumps(os.waitpid(values[0], os.WNOHANG)).encode())
            continue
        if kind == 'import':
            for module in values:
                __import__(module)
            connection.send(b'[]')
            continue
        pid = os.fork()
        if not pid:
            connection.close()
            return lambda: run_main(*values, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps([pid]).encode())


def run_main(arguments: list[str], folder: str, environment: dict[str, str], descriptors: list[int]) -> None:
    """Runs the program as `python -m bertjax.main` does."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if path := environment.get(STARTUP):
        exec(compile(pathlib.Path(path).read_text(encoding='utf-8'), path, 'exec'), {})
    sys.argv = [sys.modules['bertjax.main'].__file__, *arguments]
    if '--process_id=0' not in arguments:
        # The check takes a tenth of a small run. New processes, pytest and the first process of a group still make it.
        sys.modules['bertjax.training.health.gradient_check'].check_gradients = lambda: None
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the module does when it is run as a program
    sys.modules['bertjax.main'].console()


if __name__ == '__main__':
    sys.path[0] = os.getcwd()
    from absl import logging

    # As `console` does before most imports, because some modules would install another handler.
    logging.use_absl_handler()
    for module in MODULES:
        __import__(module)
    gc.freeze()
    if child := serve(socket.socket(fileno=int(sys.argv[1]))):
        child()
