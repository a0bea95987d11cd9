"""Processes of the program that begin with its modules imported: forks of one that has computed nothing yet.

The start of Python and the imports are a third of the processor time of a small run. From the first line of
`bertjax.main.console` on, a fork is a process as any: of its own, with signals, an exit status and standard streams.
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

# What a pre-training and a fine-tuning import on their way.
MODULES = (
    'bertjax.main',
    'bertjax.commands.finetune',
    'bertjax.commands.pretrain',
    'bertjax.pretrain.chance_baselines',
    'bertjax.pretrain.run',
    'bertjax.pretrain.summary',
    'bertjax.train.trainer',
)
# Variables that nothing reads while it is imported; where another one differs, a process has to begin anew.
LATE = ('AWS_', 'BERTJAX_', 'STORAGE_EMULATOR_HOST')


class Template:
    """The process that is forked; it starts with the first fork."""

    def __init__(self, environment: dict[str, str], folder: pathlib.Path):
        self._environment, self._folder = environment, folder
        self._process: subprocess.Popen | None = None
        self._lock = threading.Lock()

    def _start(self) -> None:
        self._here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(there.fileno())]
        quiet = {'stdin': subprocess.DEVNULL, 'stdout': subprocess.DEVNULL}
        own = {'cwd': self._folder, 'env': self._environment, 'pass_fds': [there.fileno()]}
        with there:
            self._process = subprocess.Popen(command, **quiet, **own)

    def suits(self, environment: dict[str, str]) -> bool:
        """Whether a fork is as good as a new process in this environment."""
        known = self._environment
        names = known.keys() | environment.keys()
        return all(known.get(name) == environment.get(name) or name.startswith(LATE) for name in names)

    def ask(self, *request: object, descriptors: Sequence[int] = ()) -> list[int]:
        """The numbers that it answers."""
        with self._lock:
            if self._process is None:
                self._start()
            socket.send_fds(self._here, [json.dumps(request).encode()], descriptors)
            return json.loads(self._here.recv(1000))

    def close(self) -> None:
        """Ends it; its forks go on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._here.close()


class Fork(subprocess.Popen):
    """A process `python -m bertjax.main ARGUMENTS` that is a fork of `template`, not a child of this process."""

    def __init__(self, template: Template, *args: object, **options: object):
        self._template = template
        super().__init__(*args, **options)

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *others):
        pipes = others[
            3:9
        ]  # as `_close_pipe_fds` wants them; the child reads the first, and writes the fourth and sixth
        descriptors = [theirs if theirs != -1 else own for own, theirs in enumerate((pipes[0], pipes[3], pipes[5]))]
        (self.pid,) = self._template.ask('fork', args[3:], str(cwd), env, descriptors=descriptors)
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *_, **__):
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)
        return self.returncode

    def __del__(self, *_, **__):
        """Asks nothing: a fork that nobody waited for is reaped when its template ends."""

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        while True:
            pid, status = self._template.ask('wait', self.pid)
            if pid or wait_flags & os.WNOHANG:
                return pid, status
            time.sleep(0.01)


def serve(connection: socket.socket) -> Callable[[], None] | None:
    """Answers until nobody asks; in a fork, returns at once what to call."""
    while True:
        message, descriptors, *_ = socket.recv_fds(connection, 1 << 20, 3)
        if not message:
            return None
        what, *about = json.loads(message)
        if what == 'wait':
            connection.send(json.dumps(os.waitpid(about[0], os.WNOHANG)).encode())
            continue
        pid = os.fork()
        if not pid:
            connection.close()
            return lambda: begin(*about, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(json.dumps([pid]).encode())


def begin(arguments: list[str], folder: str, environment: dict[str, str], descriptors: list[int]) -> None:
    """Does what `python -m bertjax.main` does."""
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [sys.modules['bertjax.main'].__file__, *arguments]
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as the module does that is called
    sys.modules['bertjax.main'].console()


if __name__ == '__main__':
    sys.path[0] = os.getcwd()
    from absl import logging

    logging.use_absl_handler()  # as `console` does before most imports, of which some would have a handler of their own
    for module in MODULES:
        __import__(module)
    gc.freeze()
    if child := serve(socket.socket(fileno=int(sys.argv[1]))):
        child()
