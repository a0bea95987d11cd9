"""What the system refuses is said in one line."""

import errno
import os
import resource

import pytest
import safetensors

from bertjax.errors import UserError
from bertjax.files import disk


def refused(error: BaseException, workdir) -> str:
    return str(disk.explain_os_error(error, str(workdir)))


def test_a_full_disk_names_folder_and_bytes(tmp_path):
    with pytest.raises(OSError) as error, disk.annotate_write_errors(tmp_path / 'none' / 'a', 12_345):
        raise OSError(errno.ENOSPC, 'No space left on device')
    line = refused(error.value, '/')
    assert line.startswith(f'{tmp_path}: found a full disk with ') and ' bytes free' in line
    assert f'12,345 bytes for {tmp_path / "none" / "a"}' in line


@pytest.mark.parametrize(
    'raised',
    [
        ValueError("RESOURCE_EXHAUSTED: Failed to write 16 bytes: No space left on device [os_error_code='28']"),
        safetensors.SafetensorError('Error while serializing: I/O error: No space left on device (os error 28)'),
    ],
)
def test_what_native_code_says_of_a_full_disk(tmp_path, raised):
    with pytest.raises(OSError, match='No space left') as error, disk.annotate_write_errors(tmp_path, 3_000_000):
        raise raised
    assert '3,000,000 bytes' in refused(error.value, '/')


def test_what_is_no_refusal_stays_what_it_is(tmp_path):
    for kind in (ValueError('x'), OSError('without a number'), FileNotFoundError(errno.ENOENT, 'No such file', 'x')):
        with pytest.raises(type(kind)) as error, disk.annotate_write_errors(tmp_path, 3):
            raise kind
        assert error.value is kind and disk.explain_os_error(kind, '.') is None


@pytest.mark.parametrize(
    ('number', 'fix'),
    [
        (errno.EFBIG, 'ulimit -f unlimited'),
        (errno.EROFS, 'on a disk that can be written to'),
        (errno.EACCES, 'permissions'),
        (errno.EIO, 'check the disk'),
        (errno.ENOTDIR, 'in its way'),
        (errno.EMFILE, 'ulimit -n 1024'),
    ],
)
def test_others(tmp_path, number, fix):
    cause = OSError(number, os.strerror(number), str(tmp_path / 'a'))
    try:
        raise RuntimeError('a worker failed') from cause
    except RuntimeError as error:
        line = refused(error, '.')
    assert fix in line and (str(tmp_path / 'a') in line or number == errno.EMFILE)


def test_a_folder_that_goes_while_it_is_written_in(tmp_path):
    """Removed or moved: what Python and what native code say of it, and of a temporary folder that is not there."""
    native = ValueError("NOT_FOUND: Error opening file [os_error_code='2']")
    for raised in (FileNotFoundError(errno.ENOENT, 'No such file', str(tmp_path / 'gone' / 'x')), native):
        with pytest.raises(FileNotFoundError) as error, disk.annotate_write_errors(tmp_path / 'gone' / 'x', 0):
            raise raised
        assert f'{tmp_path}/gone/x: found that its folder was moved or removed' in refused(error.value, '.')
    none = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")
    assert refused(none, '.').startswith('TMPDIR: found no folder for temporary files')


@pytest.mark.parametrize(
    ('soft', 'hard', 'then'),
    [(24, 24, None), (64, 4096, 1024), (64, 256, 256), (4096, 4096, 4096), (256, -1, 1024), (-1, -1, -1)],
)
def test_open_files(monkeypatch, soft, hard, then):
    limits = [soft, hard]
    monkeypatch.setattr(resource, 'getrlimit', lambda which: tuple(limits))
    monkeypatch.setattr(resource, 'setrlimit', lambda which, pair: limits.__setitem__(slice(None), pair))
    if then is None:
        with pytest.raises(UserError, match=r'ulimit -n: found 24 open files allowed.*ulimit -n 1024'):
            disk.check_open_files()
    else:
        disk.check_open_files()
        assert limits == [then, hard]
