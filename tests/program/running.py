"""Runs the program as a user does, with a recipe and a workdir, in this process or in a separate one."""

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from absl import flags, logging
from forking import STARTUP, Fork, Template
from safetensors.numpy import load, load_file

from bertjax.main import console
from bertjax.pretrain.examples import PhaseExamples, StoreExamples
from bertjax.pretrain.text_data import open_stores
from bertjax.report.run_record import read_run
from bertjax.text.tokenizer import load_tokenizer

# The recipe of most tests: a step of Adam compiles in half the time of a step of Muon.
PRETRAIN = 'configs/pretrain_tiny.py:adam'

WEIGHTS = 'export/hf/model.safetensors'  # the exported weights in a workdir

# The model and the corpus are so small that a run takes little longer than starting Python and compiling.
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

# The run that the resume tests interrupt: 24 steps, a checkpoint every 4 steps, an evaluation every 8.
RUN = ('--config.steps=24', '--config.checkpoint_every=4', '--config.eval_every=8', '--config.checkpoint_keep=2')
RUN12 = (*RUN, '--config.steps=12')  # RUN with only three checkpoints
NO_SAVES = '--config.checkpoint_every=0'  # only at the end

# A fine-tuning of 72 steps, in which the small model learns the RTE of tests/program/conftest.py.
TUNE = (
    '--config.epochs=12',
    '--config.eval_every=24',
    '--config.checkpoint_every=24',
    '--config.seq_len=24',
    '--config.max_padded_lengths=2',
    '--config.batch_size=16',
    '--config.learning_rate=3e-3',
    '--config.log_every=12',
    '--config.checkpoint_keep=2',
)
ONE_LENGTH = '--config.max_padded_lengths=1'  # compiles half the programs of TUNE
SWEEP = ('--config.sweep.learning_rate=(3e-3,1e-5)', '--config.sweep.seeds=(0,1)', '--config.sweep.together=2')
GLUE = {'recipe': 'configs/glue.py:rte', 'small': False}
EXTRACT = {'recipe': 'configs/extract.py', 'small': False}

# Startup code for a run in a bucket: it shortens the intervals of the lease and of publishing to seconds.
QUICK = """
    from bertjax.workdir import mirror
    from bertjax.remote import lease

    lease.RENEW_EVERY, lease.EXPIRES_AFTER, mirror.PUBLISH_EVERY = 0.3, 3.0, 0.5
"""
# Startup code for a run that a signal, a failure or the clock ends: each step sleeps, which takes no processor time.
SLOW_STEPS = """
    import time
    from bertjax.training.record import Recorder

    def slow_step(self, *arguments, original=Recorder.step, **options):
        time.sleep(0.1)
        return original(self, *arguments, **options)

    Recorder.step = slow_step
"""


@dataclasses.dataclass(frozen=True)
class Program:
    """`python -m bertjax.main` with a recipe and the corpus of the tests.

    `run` and `error` call its entry point in this process, which saves the time to start Python and JAX. `start` and
    `spawn` start a process, which can get signals, kills and standard input. The process is a fork of `template`, which
    has imported the modules, unless an environment variable that they read at import differs.

    Compare bits only between two processes or between two runs in this process, because XLA uses other threads here.
    """

    repository: pathlib.Path
    corpus: pathlib.Path
    environment: dict[str, str]
    template: Template | None = None

    def arguments(self, *changes: str, recipe: str = PRETRAIN, small: bool = True) -> list[str]:
        """Returns the arguments of the command line; `changes` override the small sizes of pre-training."""
        config = [f'--config={recipe}'] if recipe else []
        if recipe.startswith(('configs/pretrain', 'configs/roberta')):
            config.append(f'--config.corpus={self.corpus}')
        return [*config, *(SMALL if small else ()), *changes]

    def run(self, *changes: str, status: int | None = 0, devices: int = 1, **options) -> subprocess.CompletedProcess:
        """Runs the program in this process with `devices` devices; its exit status must be `status` (None: any)."""
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
        return _check_status(subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue()), status)

    def error(self, *changes: str, **options) -> str:
        """Runs the program, which must end with status 2; returns the one-line error message of a user mistake."""
        return assert_one_line(self.run(*changes, status=2, **options))

    def with_startup(self, folder: pathlib.Path, code: str) -> 'Program':
        """Returns a program whose processes first run `code`, which is saved in a new folder."""
        folder.mkdir()
        path = folder / 'sitecustomize.py'  # Python runs a file of this name when it starts.
        path.write_text(textwrap.dedent(code))
        return self.with_environment({STARTUP: str(path)})

    def start(self, *changes: str, stdin: int | None = None, **options) -> subprocess.Popen:
        """Starts the program in a separate process and returns at once."""
        forked = self.template and self.template.is_suitable(self.environment)
        popen = functools.partial(Fork, self.template) if forked else subprocess.Popen
        environment = self.environment
        if STARTUP in environment and not forked:
            folders = [os.path.dirname(environment[STARTUP]), environment['PYTHONPATH']]
            environment = environment | {'PYTHONPATH': os.pathsep.join(folders)}
        return popen(
            [sys.executable, '-m', 'bertjax.main', *self.arguments(*changes, **options)],
            cwd=self.repository,
            env=environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def start_together(
        self, count: int, *changes: str, last: str = '', caches: Sequence[pathlib.Path] = (), **options
    ) -> list[subprocess.Popen]:
        """Starts several processes with one device each, which compute one run together.

        With `caches`, each process has its own cache, as if it were on its own machine. Only the last process has the
        flag `last`.
        """
        common = (f'--coordinator_address=127.0.0.1:{reserve_port()}', f'--num_processes={count}')
        programs = [self] * count
        if caches:
            programs = [self.with_environment({'BERTJAX_CACHE': str(cache)}) for cache in caches]
        flags = [[*changes, *common, f'--process_id={i}'] for i in range(count)]
        flags[-1] += [last] if last else []
        return [one.start(*own, **options) for one, own in zip(programs, flags, strict=True)]

    def without_forks(self) -> 'Program':
        """Returns a program whose processes are not forks; each has its own hash seed."""
        return dataclasses.replace(self, template=None)

    def with_environment(self, variables: dict[str, str]) -> 'Program':
        """Returns a program with additional environment variables."""
        return dataclasses.replace(self, environment=self.environment | variables)

    def spawn(self, *changes: str, status: int = 0, **options) -> subprocess.CompletedProcess:
        """Runs the program in a separate process; its exit status must be `status`."""
        process = self.start(*changes, **options)
        return wait_for_exit(process, status)


_RESERVED: list[socket.socket] = []


def reserve_port() -> int:
    """Returns a port of 127.0.0.1 for JAX's coordinator, which no other process gets while the tests run.

    A port that is free now may be taken by another run before the coordinator starts. gRPC shares ports (SO_REUSEPORT),
    so neither run fails: processes may connect to the coordinator of the other run, and both runs wait forever.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # otherwise the coordinator cannot bind to the port
    reserved.bind(('127.0.0.1', 0))
    _RESERVED.append(reserved)
    return reserved.getsockname()[1]


def wait_for_exit(process: subprocess.Popen, status: int | None = 0) -> subprocess.CompletedProcess:
    """Waits until the process ends; its exit status must be `status` (None: any)."""
    try:
        out, err = process.communicate(timeout=600)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return _check_status(subprocess.CompletedProcess(process.args, process.returncode, out, err), status)


@contextlib.contextmanager
def as_in_a_new_process() -> Iterator[None]:
    """Forgets the flags of the last call; restores the settings of absl and of the garbage collector at the end."""
    for name in list(flags.FLAGS):
        if name.startswith('config.'):  # defined when the command line named them
            delattr(flags.FLAGS, name)
    for name in ('config', 'workdir', 'coordinator_address', 'num_processes', 'process_id'):
        flags.FLAGS[name].unparse()
    handler, root = logging.get_absl_handler(), logging.logging.getLogger()
    handlers, level, threshold = list(root.handlers), root.level, gc.get_threshold()
    with mock.patch.object(handler.python_handler, 'stream', sys.stderr):
        try:
            yield
        finally:
            root.handlers[:] = handlers
            root.setLevel(level)
            gc.unfreeze()
            gc.set_threshold(*threshold)


def _check_status(result: subprocess.CompletedProcess, status: int | None) -> subprocess.CompletedProcess:
    assert status in (None, result.returncode), f'exit status {result.returncode}\n{result.stdout}\n{result.stderr}'
    return result


def assert_one_line(result: subprocess.CompletedProcess) -> str:
    """Checks that stderr has no traceback and ends with a complete error message; returns this line."""
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith('error: '), result.stderr
    assert 'Traceback' not in result.stderr, result.stderr
    assert ': found ' in last and ', expected ' in last and '; ' in last
    return last


def wait_for_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
    """Waits until the run has taken `step` steps or has ended."""
    ledger, deadline = workdir / 'ledger.jsonl', time.monotonic() + 300
    while process.poll() is None and not (ledger.exists() and ledger.read_bytes().count(b'\n') >= step):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows(path: pathlib.Path, split: str | None = None) -> list[dict]:
    """Reads the rows of a JSON lines file, or only those of one split."""
    found = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
    return [row for row in found if split is None or row['split'] == split]


def examples_of(workdir: pathlib.Path, split: str, **changes: Any) -> PhaseExamples:
    """Returns the examples of a split in the first phase of a pre-training, with a changed config."""
    run = read_run({}, workdir, '')
    settings = dataclasses.replace(run, config={**run.config, **changes}).pretraining_settings()
    tokenizer = load_tokenizer(workdir / 'tokenizer')
    stores = open_stores(settings, workdir, tokenizer, verify=False)
    return StoreExamples(settings, stores, tokenizer, None).get(settings.first_shape, split, 0)


def results(workdir: pathlib.Path) -> dict:
    """Reads results.json of a workdir."""
    return json.loads((workdir / 'results.json').read_text(encoding='utf-8'))


def assert_same_numbers(objects: Mapping[str, bytes], alone: pathlib.Path) -> None:
    """Checks that the files {name: content} of a run have the text and, up to rounding, the numbers of a workdir."""
    assert objects['ledger.jsonl'] == (alone / 'ledger.jsonl').read_bytes()
    published = [json.loads(line) for line in objects['metrics.jsonl'].splitlines()]
    losses = [[row['loss'] for row in some if row.get('loss')] for some in (published, rows(alone / 'metrics.jsonl'))]
    assert losses[0][-10:] == pytest.approx(losses[1][-10:], rel=1e-5)
    together, expected = load(objects[WEIGHTS]), load_file(alone / WEIGHTS)
    assert together.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(together[name], values, atol=1e-5)


def bucket_variables() -> dict[str, str]:
    """Returns the environment variables that point a process to the bucket and the cache of a test."""
    return {name: value for name, value in os.environ.items() if name.startswith(('AWS_', 'BERTJAX_'))}


def copy_workdir(workdir: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    """Copies a workdir, so that a test may change it; returns the copy."""
    shutil.copytree(workdir, target, dirs_exist_ok=True)
    return target
