"""Where attempts happen: data, runs that nobody touched, the program in its own process and in this one."""

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

HANGS = 120  # seconds after which a run of the tiny model is one that hangs
# Small models spend their time in the compiler: its cheaper half is enough for them.
XLA_FLAGS = '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true'


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of an attempt: whether the program held, and what was done and seen."""

    held: bool
    what: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """A run: its exit status and what it said. `fault` names an exception that reached the top, or a hang."""

    status: int
    out: str
    err: str
    fault: str = ''

    @property
    def wrong(self) -> str:
        """What a user must never see; '' where the run was done, or refused in one line."""
        if self.fault or 'Traceback' in self.err:
            return self.fault or self.err.strip().splitlines()[-1]
        if self.status == 2:
            errors = [line for line in self.err.splitlines() if line.startswith('error: ')]
            return '' if len(errors) == 1 and ': found ' in errors[0] else f'status 2, but {self.err!r}'
        return '' if self.status == 0 else f'status {self.status}: {self.err.strip()[-300:]}'


class ComputesError(BaseException):
    """Raised in place of a training, by a run that has checked all there is to check before its first step."""


class World:
    """A folder with data, one place for each attempt, and the references, each made when it is first asked for."""

    def __init__(self, folder: pathlib.Path, repository: pathlib.Path):
        self.folder, self.repository = folder, repository
        if not (folder / 'data').exists():
            write_data(folder / 'data')
        os.environ['XLA_FLAGS'] = XLA_FLAGS
        os.environ['PYTHONPATH'] = str(repository)
        os.environ['JAX_COMPILATION_CACHE_DIR'] = str(folder / 'compiled')
        os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
        os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'
        jax.config.update('jax_compilation_cache_dir', str(folder / 'compiled'))
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
        jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)

    def place(self, name: str) -> pathlib.Path:
        """An empty folder for an attempt."""
        place = self.folder / 'attempts' / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return place

    @functools.cache  # noqa: B019  There is one world.
    def reference(self, kind: str) -> tuple[pathlib.Path, dict, float]:
        """The workdir of an untouched run of golden_runs.RUNS, what it holds, and the seconds that it took."""
        if kind != FIRST:
            encoder = self.folder / 'data' / 'encoder'
            shutil.copytree(self.reference(FIRST)[0] / 'export', encoder / 'export', dirs_exist_ok=True)
        workdir = self.place(f'reference-{kind}')
        self.finish(kind, workdir)  # compiles
        shutil.rmtree(workdir)
        began = time.monotonic()
        ended = self.finish(kind, workdir)
        assert ended.status == 0, ended
        return workdir, contents(workdir), time.monotonic() - began

    def arguments(self, kind: str, workdir: pathlib.Path) -> list[str]:
        """Of the first command of a run of golden_runs.RUNS."""
        words = [word.replace('=configs/', f'={self.repository}/configs/') for word in RUNS[kind].commands[0]]
        return [*words, f'--workdir={workdir}']

    def start(self, kind: str, workdir: pathlib.Path, program: Sequence[str] = ('-m', 'bertjax.main')):
        """The run in a process of its own; what it says goes to the file WORKDIR.log."""
        with workdir.with_suffix('.log').open('a') as log:
            command = [sys.executable, *program, *self.arguments(kind, workdir)]
            return subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def finish(self, kind: str, workdir: pathlib.Path) -> Ended:
        """Runs it to the end, in a process of its own."""
        process = self.start(kind, workdir)
        try:
            status = process.wait(timeout=HANGS)
        except subprocess.TimeoutExpired:
            process.kill()
            return Ended(-9, '', '', 'it hangs')
        said = workdir.with_suffix('.log').read_text(errors='replace')
        return Ended(status, '', said)

    @functools.cache  # noqa: B019  There is one world.
    def trained(self, kind: str) -> pathlib.Path:
        """The workdir of a run of golden_runs.RUNS, trained for two steps and exported."""
        if kind == FIRST:
            return self.reference(FIRST)[0]
        self.reference('rte')  # makes the encoder
        workdir = self.place(f'trained-{kind}') / 'run'
        ended = self.call(*self.arguments(kind, workdir), '--config.steps=2', '--config.eval_every=0')
        assert ended.status == 0, ended
        return workdir

    def call(self, *arguments: str, training: bool = True) -> Ended:
        """Runs the program in this process, which is quicker; never compare bits between the two.

        Without `training`, a run ends with status 0 where its first step would be.
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
        return Ended(status, out.getvalue(), err.getvalue(), fault)


@contextlib.contextmanager
def _no_training() -> Iterator[None]:
    where = ('bertjax.train.trainer', 'bertjax.finetune.sweep')
    with contextlib.ExitStack() as patches:
        for module in where:
            patches.enter_context(mock.patch(f'{module}.resume_or_start', side_effect=ComputesError))
        yield


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in what takes longer."""

    def hangs(number: int, frame: object) -> None:
        raise TimeoutError(f'it hangs: {seconds} s')

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def contents(workdir: pathlib.Path) -> dict:
    """What a workdir holds, without what depends on where a run was stopped: a training row is the mean since the
    row before it or since the start of the process."""
    found = observe(workdir)
    found.pop('summary.json', None)
    path = workdir / 'metrics.jsonl'
    if path.exists():
        rows = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
        measured = [{key: row[key] for key in row if key not in MEASURED} for row in rows if row['split'] != 'train']
        found['metrics.jsonl'] = {'evaluations': measured}
    return found


def differing(workdir: pathlib.Path, expected: dict) -> list[str]:
    """The files that are not as expected."""
    found = contents(workdir)
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def finite(value: Any) -> bool:
    """Whether no number in a result, however nested, is NaN or infinite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(finite, value))
    if isinstance(value, float) or (hasattr(value, 'dtype') and np.issubdtype(value.dtype, np.floating)):
        return bool(np.isfinite(np.asarray(value, np.float64)).all())
    return not dataclasses.is_dataclass(value) or finite(list(vars(value).values()))


def check_trained(workdir: pathlib.Path) -> str:
    """What is wrong with a workdir whose run ended with status 0; '' for nothing."""
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
