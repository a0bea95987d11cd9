"""Tests that errors of the operating system are explained in one line."""

import errno
import os
import resource

import pytest
import safetensors

from bertjax.errors import UserError
from bertjax.files import disk


def explanation(error: BaseException, workdir) -> str:
    return str(disk.explain_os_error(error, str(workdir)))


def test_the_error_of_a_full_disk_names_folder_and_bytes(tmp_path):
    with pytest.raises(OSError) as error, disk.annotate_write_errors(tmp_path / 'none' / 'a', 12_345):
        raise OSError(errno.ENOSPC, 'No space left on device')
    line = explanation(error.value, '/')
    assert line.startswith(f'{tmp_path}: found a full disk with ') and ' bytes free' in line
    assert f'12,345 bytes for {tmp_path / "none" / "a"}' in line
    assert 'found a used-up disk quota, expected room for' in explanation(OSError(errno.EDQUOT, 'Disk quota'), tmp_path)


@pytest.mark.parametrize(
    'raised',
    [
        ValueError("RESOURCE_EXHAUSTED: Failed to write 16 bytes: No space left on device [os_error_code='28']"),
        safetensors.SafetensorError('Error while serializing: I/O error: No space left on device (os error 28)'),
    ],
)
def test_errors_of_native_code_about_a_full_disk_are_recognized(tmp_path, raised):
    with pytest.raises(OSError, match='No space left') as error, disk.annotate_write_errors(tmp_path, 3_000_000):
        raise raised
    assert '3,000,000 bytes' in explanation(error.value, '/')


def test_other_errors_are_unchanged(tmp_path):
    for other in (ValueError('x'), OSError('without a number'), FileNotFoundError(errno.ENOENT, 'No such file', 'x')):
        with pytest.raises(type(other)) as error, disk.annotate_write_errors(tmp_path, 3):
            raise other
        assert error.value is other and disk.explain_os_error(other, '.') is None


@pytest.mark.parametrize(
    ('number', 'fix'),
    [
        (errno.EFBIG, 'another file system'),
        (errno.EROFS, 'on a disk that can be written to'),
        (errno.EACCES, 'permissions'),
        (errno.EIO, 'check the disk'),
        (errno.ENOTDIR, 'in its way'),
        (errno.ENFILE, 'fs.file-max'),
        (errno.EMFILE, f'ulimit -n {4 * resource.getrlimit(resource.RLIMIT_NOFILE)[0]}'),
    ],
)
def test_the_explanation_has_a_fix(tmp_path, number, fix):
    cause = OSError(number, os.strerror(number), str(tmp_path / 'a'))
    try:
        raise RuntimeError('a worker failed') from cause
    except RuntimeError as error:
        line = explanation(error, '.')
    assert fix in line and (str(tmp_path / 'a') in line or number in (errno.EMFILE, errno.ENFILE))


def test_a_missing_folder_is_explained(tmp_path):
    """The folder of a file was moved or removed, as Python or native code reports, or there is no temporary folder."""
    native = ValueError("NOT_FOUND: Error opening file [os_error_code='2']")
    for raised in (FileNotFoundError(errno.ENOENT, 'No such file', str(tmp_path / 'gone' / 'x')), native):
        with pytest.raises(FileNotFoundError) as error, disk.annotate_write_errors(tmp_path / 'gone' / 'x', 0):
            raise raised
        assert f'{tmp_path}/gone/x: found that its folder was moved or removed' in explanation(error.value, '.')
    none = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")
    assert explanation(none, '.').startswith('TMPDIR: found no folder for temporary files')


@pytest.mark.parametrize(
    ('soft', 'hard', 'new_soft', 'most'),
    [
        (24, 24, None, 1 << 20),
        (64, 4096, 4096, 1 << 20),
        (64, 256, 256, 1 << 20),
        (4096, 4096, 4096, 1 << 20),
        (256, -1, 1 << 20, 1 << 20),
        (256, -1, 10_240, 10_240),  # as on macOS
        (-1, -1, -1, 1 << 20),
    ],
)
def test_the_limit_of_open_files_is_raised_or_refused(monkeypatch, soft, hard, new_soft, most):
    limits = [soft, hard]

    def set_limits(which, pair):
        if pair[0] > most:
            raise ValueError('current limit exceeds maximum limit')
        limits[:] = pair

    monkeypatch.setattr(resource, 'getrlimit', lambda which: tuple(limits))
    monkeypatch.setattr(resource, 'setrlimit', set_limits)
    if new_soft is None:
        with pytest.raises(UserError, match=r'ulimit -n: found 24 open files allowed.*ulimit -n 1024'):
            disk.check_open_files()
    else:
        disk.check_open_files()
        assert limits == [new_soft, hard]
