"""Runs the real program as a user does, with a recipe and a workdir: in this process, or in one of its own."""

import contextlib
import dataclasses
import functools
import gc
import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import jax
import pytest
from absl import flags, logging
from forking import Fork, Template

from bertjax.main import console

# The recipe of most tests: its step compiles in half the time of Muon's.
PRETRAIN = 'configs/pretrain_tiny.py:adam'

# A model and a corpus so small that starting Python and compiling is what a run costs.
SMALL = (
    '--config.model.width=32',
    '--config.model.mlp_dim=64',
    '--config.model.num_layers=2',
    '--config.vocab.size=400',
    '--config.seq_len=32',
    '--config.max_predictions=5',
    '--config.batch_size=8',
    '--config.pair_plans=2',
    '--config.eval_examples=32',
    '--config.log_every=4',
    '--config.corpus_options.workers=1',
)

# The run that the resume tests interrupt: 24 steps, a checkpoint every 4, an evaluation every 8.
RUN = ('--config.steps=24', '--config.checkpoint_every=4', '--config.eval_every=8', '--config.checkpoint_keep=2')

# A fine-tuning of 72 steps, in which the small model learns RTE as tests/program/conftest.py has it.
TUNE = (
    '--config.epochs=12',
    '--config.eval_every=24',
    '--config.checkpoint_every=12',
    '--config.seq_len=24',
    '--config.max_padded_lengths=2',
    '--config.batch_size=16',
    '--config.learning_rate=3e-3',
    '--config.log_every=12',
    '--config.checkpoint_keep=2',
)
SWEEP = ('--config.sweep.learning_rate=(3e-3,1e-5)', '--config.sweep.seeds=(0,1)', '--config.sweep.together=2')
GLUE = {'recipe': 'configs/glue.py:rte', 'small': False}
EXTRACT = {'recipe': 'configs/extract.py', 'small': False}

# Code with which a run in a bucket sees within seconds what else it would see within a minute.
QUICK = """
    from bertjax.workdir import mirror
    from bertjax.remote import lease

    lease.RENEW_EVERY, lease.EXPIRES_AFTER, mirror.PUBLISH_EVERY = 0.3, 3.0, 0.5
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """`python -m bertjax.main` with a recipe and a corpus of the tests' own.

    `run` and `error` call its entry point in this process, which spares them the start of Python and JAX.
    `start` and `spawn` start a process, for what only a process has: signals, kills, standard input; of `module`, where
    a test has put something in a place of the program before it calls the entry point. Where nothing in the environment
    differs that is read while modules are imported, it is a fork of `template`, which has imported them.

    Compare bits only between two processes, or two runs in this one: XLA has other threads here.
    """

    repository: pathlib.Path
    corpus: pathlib.Path
    environment: dict[str, str]
    module: str = 'bertjax.main'
    template: Template | None = None

    def arguments(self, *changes: str, recipe: str = PRETRAIN, small: bool = True) -> list[str]:
        """The command line after the program's name; later arguments win over the small sizes of a pre-training."""
        config = [f'--config={recipe}'] if recipe else []
        if recipe.startswith(('configs/pretrain', 'configs/roberta')):
            config.append(f'--config.corpus={self.corpus}')
        return [*config, *(SMALL if small else ()), *changes]

    def run(self, *changes: str, status: int | None = 0, devices: int = 1, **options) -> subprocess.CompletedProcess:
        """Runs it in this process to its end, with the exit status `status` (None: any); it sees `devices` devices."""
        argv = ['bertjax', *self.arguments(*changes, **options)]
        out, err = io.StringIO(), io.StringIO()
        with (
            contextlib.chdir(self.repository),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, 'argv', argv),
            mock.patch.object(jax, 'devices', lambda: jax.local_devices()[:devices]),
            as_in_a_new_process(),
            pytest.raises(SystemExit) as ended,
        ):
            console()
        code = ended.value.code or 0
        return _ended(subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue()), status)

    def error(self, *changes: str, **options) -> str:
        """The one line of a user's mistake: status 2, no traceback, `error: ` in front."""
        return assert_one_line(self.run(*changes, status=2, **options))

    def with_startup(self, folder: pathlib.Path, code: str) -> 'Program':
        """The program whose processes run `code` when they begin; it is kept in a new folder."""
        folder.mkdir()
        (folder / 'sitecustomize.py').write_text(textwrap.dedent(code))
        path = os.pathsep.join([str(folder), self.environment['PYTHONPATH']])
        return dataclasses.replace(self, environment=self.environment | {'PYTHONPATH': path})

    def start(self, *changes: str, stdin: int | None = None, **options) -> subprocess.Popen:
        """Starts it in a process of its own and returns at once."""
        forked = self.template and self.module == 'bertjax.main' and self.template.suits(self.environment)
        popen = functools.partial(Fork, self.template) if forked else subprocess.Popen
        return popen(
            [sys.executable, '-m', self.module, *self.arguments(*changes, **options)],
            cwd=self.repository,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_together(
        self, count: int, *changes: str, caches: Sequence[pathlib.Path] = (), **options
    ) -> list[subprocess.Popen]:
        """Starts it in several processes that compute one run, each with a device of its own; with `caches` as if each
        were on a machine of its own."""
        common = (f'--coordinator_address=127.0.0.1:{reserve_port()}', f'--num_processes={count}')
        programs = [self] * count
        if caches:
            programs = [self.with_environment({'BERTJAX_CACHE': str(cache)}) for cache in caches]
        return [one.start(*changes, *common, f'--process_id={i}', **options) for i, one in enumerate(programs)]

    def anew(self) -> 'Program':
        """The same, whose processes are no forks: they have a hash seed and imports of their own."""
        return dataclasses.replace(self, template=None)

    def with_environment(self, variables: dict[str, str]) -> 'Program':
        """The same in another environment."""
        return dataclasses.replace(self, environment=self.environment | variables)

    def spawn(self, *changes: str, status: int = 0, **options) -> subprocess.CompletedProcess:
        """Runs it in a process of its own to its end, which must have the exit status `status`."""
        process = self.start(*changes, **options)
        return finished(process, status)


_RESERVED: list[socket.socket] = []


def reserve_port() -> int:
    """A port of 127.0.0.1 for JAX's coordinator, which nobody else on this machine is given while the tests run.

    A port that was only looked up may be another run's by the time that its coordinator begins: gRPC shares ports
    (SO_REUSEPORT), so neither fails, each may be reached by processes of the other run, and both wait forever.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # else the coordinator could not bind to it
    held.bind(('127.0.0.1', 0))
    _RESERVED.append(held)
    return held.getsockname()[1]


def finished(process: subprocess.Popen, status: int | None = 0) -> subprocess.CompletedProcess:
    """The process at its end, which must have the exit status `status` (None: any)."""
    try:
        out, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return _ended(subprocess.CompletedProcess(process.args, process.returncode, out, err), status)


@contextlib.contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """Forgets the flags of the call before; afterwards absl and the collector of garbage are as they were."""
    for name in list(flags.FLAGS):
        if name.startswith('config.'):  # defined when they were met on the command line
            delattr(flags.FLAGS, name)
    for name in ('config', 'workdir', 'coordinator_address', 'num_processes', 'process_id'):
        flags.FLAGS[name].unparse()
    handler, root = logging.get_absl_handler(), logging.logging.getLogger()
    handlers, level, often = list(root.handlers), root.level, gc.get_threshold()
    with mock.patch.object(handler.python_handler, 'stream', sys.stderr):
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            gc.unfreeze()
            gc.set_threshold(*often)


def _ended(result: subprocess.CompletedProcess, status: int | None) -> subprocess.CompletedProcess:
    assert status in (None, result.returncode), f'exit status {result.returncode}\n{result.stdout}\n{result.stderr}'
    return result


def assert_one_line(result: subprocess.CompletedProcess) -> str:
    """What a user's mistake looks like on stderr: the last line, returned, with its three parts and no traceback."""
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('error: '), result.stderr
    assert 'Traceback' not in result.stderr, result.stderr
    assert ': found ' in last and ', expected ' in last and '; ' in last
    return last


def wait_for_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
    """Until the run has taken `step` steps, or has ended."""
    ledger, deadline = workdir / 'ledger.jsonl', time.monotonic() + 300
    while process.poll() is None and not (ledger.exists() and ledger.read_bytes().count(b'\n') >= step):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(path: pathlib.Path, split: str | None = None) -> list[dict]:
    """The rows of a JSON lines file, of one split where it is named."""
    found = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
    return [row for row in found if split is None or row['split'] == split]


def results(workdir: pathlib.Path) -> dict:
    """Its results.json."""
    return json.loads((workdir / 'results.json').read_text(encoding='utf-8'))


def copied(workdir: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """A copy of a workdir, to write into."""
    shutil.copytree(workdir, target, dirs_exist_ok=True)
    return target
