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
from unittest import mock

import jax
from golden_files import MEASURED, observe
from golden_runs import FIRST, RUNS, write_data
from running import as_in_a_new_process

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

    def call(self, *arguments: str) -> Ended:
        """Runs the program in this process, which is quicker; never compare bits between the two."""
        out, err, fault, status = io.StringIO(), io.StringIO(), '', 0
        with (
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, 'argv', ['bertjax', *arguments]),
            as_in_a_new_process(),
            _limited(HANGS),
        ):
            try:
                console()
            except SystemExit as ended:
                status = ended.code or 0
            except BaseException as error:
                fault = repr(error)
        return Ended(status, out.getvalue(), err.getvalue(), fault)


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
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
