"""Files and directories that appear whole or not at all, and the lock of a directory."""

import hashlib
import os
import zipfile

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.files import atomic
from bertjax.files.atomic import AtomicFile, atomic_directory, checksum, exclusive, write_atomic, write_zip


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """The files that were flushed to disk."""
    names = []
    real = os.fsync
    monkeypatch.setattr(
        atomic.os, 'fsync', lambda handle: names.append(os.readlink(f'/proc/self/fd/{handle}')) or real(handle)
    )
    return names


@pytest.mark.parametrize(('data', 'written'), [('é\n', 'é\n'.encode()), (b'\xff\0', b'\xff\0'), ('', b'')])
def test_a_file_is_written_whole_and_synced(data, written, tmp_path, synced):
    path = tmp_path / 'deep' / 'a.txt'
    write_atomic(path, data)
    write_atomic(path, data)
    assert path.read_bytes() == written and os.listdir(path.parent) == ['a.txt']
    assert len(synced) == 2 and all(os.path.basename(name).startswith('.a.txt.tmp-') for name in synced)


def test_a_file_that_fails_leaves_the_old_one(tmp_path):
    write_atomic(tmp_path / 'a', 'old')
    with pytest.raises(ZeroDivisionError), AtomicFile(tmp_path / 'a') as file:
        file.write(np.arange(3, dtype='<u4'))
        raise ZeroDivisionError
    assert (tmp_path / 'a').read_text() == 'old' and os.listdir(tmp_path) == ['a']


def test_an_open_file_is_not_there_yet_and_can_be_read(tmp_path):
    file = AtomicFile(tmp_path / 'a')
    file.write(np.arange(3, dtype='<u4'))
    assert not (tmp_path / 'a').exists()
    file.file.seek(4)
    assert file.file.read() == np.array([1, 2], '<u4').tobytes()
    assert file.close() == 12
    assert np.fromfile(tmp_path / 'a', '<u4').tolist() == [0, 1, 2]


def test_equal_files_give_an_equal_synced_archive(tmp_path, synced):
    files = {'b.tsv': 'é\n' * 1000, 'a/c.tsv': ''}
    for name in ('one.zip', 'two.zip'):
        write_zip(tmp_path / name, files)
    assert (tmp_path / 'one.zip').read_bytes() == (tmp_path / 'two.zip').read_bytes() and len(synced) == 2
    with zipfile.ZipFile(tmp_path / 'one.zip') as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files


def test_a_directory_is_replaced_whole(tmp_path):
    target = tmp_path / 'export'
    for text in ('one', 'two'):
        with atomic_directory(target, 'config.json') as staging:
            assert not target.exists() or (target / 'config.json').read_text() == 'one'
            with open(os.path.join(staging, 'config.json'), 'w') as file:
                file.write(text)
    with pytest.raises(ZeroDivisionError), atomic_directory(target, 'config.json') as staging:
        raise ZeroDivisionError
    assert (target / 'config.json').read_text() == 'two' and os.listdir(tmp_path) == ['export']


def test_checksums(tmp_path):
    (tmp_path / 'a').write_bytes(b'abc')
    assert checksum(tmp_path / 'a') == hashlib.sha256(b'abc').hexdigest()
    assert checksum(tmp_path / 'a', 'blake2b-128') == hashlib.blake2b(b'abc', digest_size=16).hexdigest()


def test_one_process_holds_a_directory(tmp_path):
    refused = pytest.raises(UserError, match='another process that works here')
    with exclusive(tmp_path, 'works here'), refused, exclusive(tmp_path, 'works here'):
        pass
    with exclusive(tmp_path, 'works here'):
        pass
