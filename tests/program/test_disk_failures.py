"""Damaged files are reported, a failed write is a one-line error, and the same command resumes later."""

import contextlib
import errno
import os
import pathlib
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from killing import watch
from running import GLUE, RUN, WEIGHTS, Program, assert_one_line, copy_workdir, rows
from test_resume import assert_same_run

from bertjax.files import disk

SHORT = ('--config.steps=2', '--config.eval_every=0', '--config.checkpoint_every=0')


def test_checkpoints_without_seals_do_not_start_a_new_run(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(trained, tmp_path / 'run')
    for seal in (workdir / 'checkpoints').rglob('seal.json'):
        seal.unlink()
    before = sorted(path for path in workdir.rglob('*') if 'tensorboard' not in str(path))
    error = program.error(f'--workdir={workdir}', *RUN)
    assert 'may be checkpoints' in error and 'move the folder(s) away' in error
    assert sorted(path for path in workdir.rglob('*') if 'tensorboard' not in str(path)) == before


def test_damaged_rows_are_reported_and_do_not_stop_the_run(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    """The ledger lacks steps and metrics.jsonl has garbage, but the run resumes, warns and exports."""
    workdir = copy_workdir(trained, tmp_path / 'run')
    ledger, metrics = workdir / 'ledger.jsonl', workdir / 'metrics.jsonl'
    lines = ledger.read_bytes().splitlines(keepends=True)
    lines[4], lines[9:12] = b'\xff\x00garbage\n', []
    ledger.write_bytes(b''.join(lines))
    metric_lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b''.join([*metric_lines[:2], b'{"step": 4, "spl\n', *metric_lines[2:]]))
    shutil.rmtree(workdir / 'export')
    result = program.run(f'--workdir={workdir}', *RUN)
    assert f'warning: {ledger} is damaged: unreadable: line 5.' in result.stderr
    assert f'warning: {ledger} is damaged: missing: step 5, 10-12.' in result.stderr
    assert f'warning: {metrics} is damaged: 1 lines are skipped (line 3)' in result.stderr
    assert ledger.read_bytes() == b''.join(lines)
    assert (workdir / WEIGHTS).read_bytes() == (trained / WEIGHTS).read_bytes()
    program.run(f'--workdir={workdir}', '--config.run=export')


def fill_disk(name: str) -> Callable[[str, str], None]:
    """Returns a hook for `watch`: the disk is full when a file whose path contains `name` is opened for writing."""

    def refuse(operation: str, path: str) -> None:
        if operation == 'open' and name in path:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    return refuse


@pytest.mark.parametrize('name', ['run/tokenizer/', 'store/.manifest', 'run/.config.json'])
def test_a_full_disk_is_a_one_line_error(program: Program, tmp_path: pathlib.Path, name: str):
    workdir = tmp_path / 'run'
    with watch(fill_disk(name), workdir):
        error = program.error(f'--workdir={workdir}', *SHORT)
    assert 'found a full disk with ' in error and f'room for {workdir}' in error and 'make room' in error


def test_a_read_only_workdir_is_reported_before_the_vocabulary_is_trained(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    """A verb that writes nothing works there."""

    def refuse(operation: str, path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    with watch(refuse, tmp_path):
        result = program.run(f'--workdir={tmp_path}', *SHORT, status=2)
    assert assert_one_line(result).startswith(f'error: {tmp_path}: found read-only file system, expected')
    assert 'vocabulary' not in result.stdout
    with watch(refuse, trained):
        program.run(f'--workdir={trained}', '--config.fill.text=a [MASK]', recipe='configs/fill.py', small=False)


def test_a_workdir_that_is_a_file_is_an_error(program: Program, tmp_path: pathlib.Path):
    (tmp_path / 'file').touch()
    for workdir in (tmp_path / 'file', tmp_path / 'file' / 'deep'):
        assert f'--workdir: found {tmp_path / "file"}, which is a file' in program.error(f'--workdir={workdir}')


def move_away(workdir: pathlib.Path, moved: pathlib.Path, name: str) -> Callable[[str, str], None]:
    """Returns a hook for `watch`: the workdir is moved at the first operation on a path that contains `name`."""

    def move(operation: str, path: str) -> None:
        if name in path and not moved.exists():
            workdir.rename(moved)

    return move


def test_a_workdir_that_is_moved_before_training_is_an_error(program: Program, tmp_path: pathlib.Path):
    workdir, moved = tmp_path / 'run', tmp_path / 'moved'
    with watch(move_away(workdir, moved, 'run/store/.manifest'), workdir):
        error = program.error(f'--workdir={workdir}', *SHORT)
    assert str(workdir) in error and ' no such folder any more' in error and 'move it back' in error
    assert not workdir.exists() and (moved / 'store').exists()


@pytest.mark.slow
def test_one_run_after_several_failures(program: Program, tmp_path: pathlib.Path):
    """The disk is full twice, the checkpoints are removed, and the workdir is moved away; then the run continues.

    The path has wildcards, because Orbax treats paths as patterns.
    """
    workdir, moved = tmp_path / 'exp[1]*', tmp_path / 'moved'
    arguments = (f'--workdir={workdir}', *SHORT[:2], '--config.checkpoint_every=1')
    folder = workdir / 'checkpoints'

    def remove(operation: str, path: str) -> None:
        if operation == 'open' and path.endswith('1.unfinished') and folder.exists():
            shutil.rmtree(folder)

    for hook, message in (
        (fill_disk('ledger.jsonl'), f'room for {workdir}'),
        (fill_disk('.seal.json'), f' bytes for {workdir}'),
        (remove, f'{folder}/1.unfinished: found that its folder was moved or removed'),
        (move_away(workdir, moved, 'checkpoints/2.unfinished'), 'no such folder any more'),
    ):
        with watch(hook, tmp_path):
            assert message in program.error(*arguments)
    assert not workdir.exists()
    moved.rename(workdir)
    assert 'continuing at step 1 of 2' in program.run(*arguments).stdout
    assert [row['step'] for row in rows(workdir / 'ledger.jsonl')] == [1, 2]
    assert (workdir / WEIGHTS).exists()


def test_too_little_memory_is_an_error(program: Program, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """A small limit is reported at the start; later, the message of the failed allocation is reported."""

    def exhaust(operation: str, path: str) -> None:
        raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.')

    with watch(exhaust, tmp_path):
        error = program.error(f'--workdir={tmp_path / "run"}')
    assert error.startswith('error: memory: found Out of memory allocating 123 bytes., expected')
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (10**9 if which == resource.RLIMIT_AS else 4096,) * 2)
    error = program.error(f'--workdir={tmp_path / "run"}')
    assert error.startswith('error: ulimit -v: found 1,000,000,000 bytes of address space allowed, expected at least ')


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_is_a_one_line_error(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    """A checkpoint is larger than the limit; without the limit, the same command ends in the same bits."""
    process = program.start(f'--workdir={tmp_path}', *RUN)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    out, err = process.communicate(timeout=300)
    error = assert_one_line(subprocess.CompletedProcess([], process.returncode, out, err))
    assert process.returncode == 2 and 'a limit (ulimit -f) of 20,000 bytes' in error and 'checkpoints' in error
    program.spawn(f'--workdir={tmp_path}', *RUN)
    assert_same_run(tmp_path, trained)


def test_too_few_open_files_are_an_error(program: Program, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, 'getrlimit', lambda which: (24, 24))
    assert program.error(f'--workdir={tmp_path}').startswith('error: ulimit -n: found 24 open files allowed')


@pytest.mark.slow
def test_too_few_open_files_in_a_process(program: Program, tmp_path: pathlib.Path):
    """The process ends at once; OPEN_FILES files are enough for a run."""

    def run(limit: int, *changes: str) -> subprocess.CompletedProcess:
        code = f'import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))'
        command = program.with_startup(tmp_path / str(limit), code).start(f'--workdir={tmp_path / "run"}', *changes)
        out, err = command.communicate(timeout=120)
        return subprocess.CompletedProcess(command.args, command.returncode, out, err)

    few = run(24)
    assert few.returncode == 2 and 'ulimit -n 1024' in assert_one_line(few)
    enough = run(disk.OPEN_FILES, *SHORT, '--config.corpus_options.workers=2')
    assert enough.returncode == 0, enough.stderr


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(['mount', '-t', 'tmpfs', '-o', options, 'tmpfs', folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f'needs the right to mount a disk: {mounted.stderr.strip()}')
    try:
        yield
    finally:
        subprocess.run(['umount', '-l', folder], check=True)


def test_a_read_only_disk_is_an_error(program: Program, tmp_path: pathlib.Path):
    with small_disk(tmp_path / 'disk', 'size=1m,ro'):
        for workdir in (tmp_path / 'disk', tmp_path / 'disk' / 'run'):
            error = program.error(f'--workdir={workdir}')
            assert 'read-only file system' in error and 'give a --workdir on a disk that can be written to' in error


@pytest.mark.slow
def test_a_run_continues_as_its_full_disk_grows(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """Each time the disk is full, there is a one-line error; the final bits are those of an undisturbed run."""
    lines = []
    with small_disk(tmp_path / 'disk', 'size=100k'):
        for size in (100, 400, 1200, 2400, 4800, 20_000):
            subprocess.run(['mount', '-o', f'remount,size={size}k', tmp_path / 'disk'], check=True)
            process = program.start(f'--workdir={tmp_path / "disk" / "run"}', *RUN)
            out, err = process.communicate(timeout=300)
            if process.returncode == 0:
                break
            assert process.returncode == 2, f'{size} kB: {process.returncode}\n{out}\n{err}'
            lines.append(assert_one_line(subprocess.CompletedProcess([], 2, out, err)))
            assert 'found a full disk with ' in lines[-1] and str(tmp_path / 'disk') in lines[-1]
        assert_same_run(tmp_path / 'disk' / 'run', trained)
    assert len(lines) > 2 and any('checkpoints' in line for line in lines)


@pytest.mark.slow
def test_a_full_disk_during_fine_tuning(
    program: Program, tuned: pathlib.Path, tune: tuple[str, ...], tmp_path: pathlib.Path
):
    """Each time the disk is full, there is a one-line error, and the same command gets further."""
    workdir = copy_workdir(tuned, tmp_path / 'run')
    for name in ('features', 'export'):
        shutil.rmtree(workdir / name)
    for name in ('features', 'export', 'results.json'):
        with watch(fill_disk(name), workdir):
            assert 'found a full disk with ' in program.error(f'--workdir={workdir}', *tune, **GLUE)
        assert name == 'features' or (workdir / 'features').exists()
    program.run(f'--workdir={workdir}', *tune, **GLUE)
    assert (workdir / WEIGHTS).exists()
