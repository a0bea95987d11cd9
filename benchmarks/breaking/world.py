"""The environment of the attempts: data, reference runs, and ways to run the program."""

import contextlib
import dataclasses
import functools
import io
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import numpy as np
from golden_files import MEASURED, observe
from golden_runs import FIRST, RUNS, write_data
from running import as_in_a_new_process

import bertjax
from bertjax.main import console

HANGS = 120  # seconds after which a run of the tiny model counts as hanging
# Runs of small models spend most of their time in the compiler, so its expensive passes are turned off.
XLA_FLAGS = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt.

    Attributes:
      held: Whether the program held.
      what: A description of the attempt and its result.
    """

    held: bool
    what: str


@dataclasses.dataclass(frozen=True)
class CommandResult:
    """The exit status and the output of a run. `fault` describes an uncaught exception or a hang."""

    status: int
    out: str
    err: str
    fault: str = ''

    @property
    def wrong(self) -> str:
        """A description of the fault; '' if the run finished, or refused in one line."""
        if self.fault or 'Traceback' in self.err:
            return self.fault or self.err.strip().splitlines()[-1]
        if self.status == 2:
            errors = [line for line in self.err.splitlines() if line.startswith('error: ')]
            return '' if len(errors) == 1 and ': found ' in errors[0] else f'status 2, but {self.err!r}'
        return '' if self.status == 0 else f'status {self.status}: {self.err.strip()[-300:]}'


class ComputesError(BaseException):
    """Raised instead of the first step, after a run has passed all its checks."""


class World:
    """A folder with data, a subfolder for each attempt, and reference runs, which are run on first use."""

    def __init__(self, folder: pathlib.Path, repository: pathlib.Path):
        self.folder, self.repository = folder, repository
        if not (folder / 'data').exists():
            write_data(folder / 'data')
        os.environ.setdefault('XLA_FLAGS', XLA_FLAGS)
        os.environ['PYTHONPATH'] = str(repository)
        compiled = os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(folder / 'compiled'))
        os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
        os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
        jax.config.update('jax_compilation_cache_dir', compiled)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
        jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)

    def make_folder(self, name: str) -> pathlib.Path:
        """Returns an empty folder for an attempt."""
        folder = self.folder / 'attempts' / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    @functools.cache  # noqa: B019  only one World exists
    def reference(self, kind: str) -> tuple[pathlib.Path, dict]:
        """Returns the workdir of an undisturbed run of golden_runs.RUNS, and its contents."""
        if kind != FIRST:
            self.make_encoder()
        workdir = self.make_folder(f'reference-{kind}')
        ended = self.finish(kind, workdir)
        assert ended.status == 0, ended
        return workdir, contents(workdir)

    @functools.cache  # noqa: B019  only one World exists
    def seconds(self, kind: str) -> float:
        """Returns the time of an undisturbed run whose steps are already compiled."""
        self.reference(kind)
        workdir, began = self.make_folder(f'timed-{kind}'), time.monotonic()
        self.finish(kind, workdir)
        return time.monotonic() - began

    @functools.cache  # noqa: B019  only one World exists
    def make_encoder(self) -> None:
        """Copies the model of the pre-training to the folder from which the runs on tasks start."""
        encoder = self.folder / 'data' / 'encoder'
        shutil.copytree(self.reference(FIRST)[0] / 'export', encoder / 'export', dirs_exist_ok=True)

    def arguments(self, kind: str, workdir: pathlib.Path) -> list[str]:
        """Returns the arguments of the first command of a run of golden_runs.RUNS."""
        words = [word.replace('=configs/', f'={self.repository}/configs/') for word in RUNS[kind].commands[0]]
        return [*words, f'--workdir={workdir}']

    def start(self, kind: str, workdir: pathlib.Path, program: Sequence[str] = ('-m', 'bertjax.main')):
        """Starts a run in a new process; its output goes to the file WORKDIR.log."""
        with workdir.with_suffix('.log').open('a') as log:
            command = [sys.executable, *program, *self.arguments(kind, workdir)]
            return subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self, kind: str, workdir: pathlib.Path) -> CommandResult:
        """Runs a run of golden_runs.RUNS to its end in a new process."""
        process = self.start(kind, workdir)
        try:
            status = process.wait(timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            return CommandResult(-9, '', '', 'it hangs')
        output = workdir.with_suffix('.log').read_text(errors='replace')
        return CommandResult(status, '', output)

    @functools.cache  # noqa: B019  only one World exists
    def trained(self, kind: str) -> pathlib.Path:
        """Returns the workdir of a run of golden_runs.RUNS that trained for two steps and exported."""
        if kind == FIRST:
            return self.reference(FIRST)[0]
        self.make_encoder()
        workdir = self.make_folder(f'trained-{kind}') / 'run'
        ended = self.call(*self.arguments(kind, workdir), '--config.steps=2', '--config.eval_every=0')
        assert ended.status == 0, ended
        return workdir

    def call(self, *arguments: str, training: bool = True) -> CommandResult:
        """Runs the program in this process. This is faster than `finish`, but the bits of the results may differ.

        If `training` is False, a run ends with status 0 before its first step.
        """
        out, err, fault, status = io.StringIO(), io.StringIO(), '', 0
        with (
            contextlib.nullcontext() if training else _no_training(),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, 'argv', ['bertjax', *arguments]),
            as_in_a_new_process(),
            limited(HANGS),
        ):
            try:
                console()
            except SystemExit as ended:
                status = ended.code or 0
            except ComputesError:
                pass
            except BaseException as error:
                fault = repr(error)
        return CommandResult(status, out.getvalue(), err.getvalue(), fault)


@contextlib.contextmanager
def _no_training() -> Iterator[None]:
    where = ('bertjax.training.trainer', 'bertjax.finetune.sweep')
    with contextlib.ExitStack() as patches:
        for module in where:
            patches.enter_context(mock.patch(f'{module}.resume_or_start', side_effect=ComputesError))
        yield


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the body of the `with` statement after this many seconds."""

    def hangs(number: int, frame: object) -> None:
        raise TimeoutError(f'it hangs: {seconds} s')

    previous = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def contents(workdir: pathlib.Path) -> dict:
    """Returns the content of a workdir, without values that depend on where a run was interrupted.

    Training rows are excluded, because each is a mean since the previous row or the start of the process.
    """
    content = observe(workdir)
    content.pop('summary.json', None)
    path = workdir / 'metrics.jsonl'
    if path.exists():
        rows = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
        measured = [{key: row[key] for key in row if key not in MEASURED} for row in rows if row['split'] != 'train']
        content['metrics.jsonl'] = {'evaluations': measured}
    return content


def differing(workdir: pathlib.Path, expected: dict) -> list[str]:
    """Returns the names of the files that differ from the expected content."""
    content = contents(workdir)
    return sorted(name for name in content.keys() | expected.keys() if content.get(name) != expected.get(name))


def finite(value: Any) -> bool:
    """Returns whether all numbers in a nested result are finite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    if isinstance(value, float) or (hasattr(value, 'dtype') and np.issubdtype(value.dtype, np.floating)):
        return bool(np.isfinite(np.asarray(value, np.float64)).all())
    return not dataclasses.is_dataclass(value) or finite(list(vars(value).values()))


def check_trained(workdir: pathlib.Path) -> str:
    """Describes the fault of a workdir whose run ended with status 0; '' if there is no fault."""
    results = workdir / 'results.json'
    rows = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text(encoding='utf-8').splitlines()]
    rows += [json.loads(results.read_text(encoding='utf-8'))] if results.exists() else []
    if not finite(rows):
        return f'not finite: {str(rows)[:300]}'
    if not json.loads((workdir / 'config.json').read_text(encoding='utf-8'))['export']:
        return ''
    if not (workdir / 'export').exists():
        return 'no export'
    try:
        features = bertjax.load(workdir / 'export' / 'hf').encode(['the river', 'a bird'])
    except Exception as error:
        return f'the export cannot be used: {error!r}'
    return '' if finite(features) else 'features of the export are not finite'
