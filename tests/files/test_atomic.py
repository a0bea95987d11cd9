"""Tests atomic files and directories, and the lock of a directory."""

import errno
import hashlib
import os
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
from killing import kill_at_each, watch
from marks import slow

from bertjax.errors import UserError
from bertjax.files import atomic
from bertjax.files.atomic import (
    AtomicFile,
    atomic_directory,
    checksum,
    lock_directory,
    recover_directory,
    write_atomic,
    write_zip,
)


@pytest.fixture
def synced(monkeypatch) -> list[str]:
    """Returns a list that records the paths that are synced to disk."""
    names = []
    real = os.fsync
    monkeypatch.setattr(
        atomic.os, 'fsync', lambda handle: names.append(os.readlink(f'/proc/self/fd/{handle}')) or real(handle)
    )
    return names


@pytest.mark.parametrize(('data', 'written'), [('é\n', 'é\n'.encode()), (b'\xff\0', b'\xff\0'), ('', b'')])
def test_a_file_is_synced_and_renamed(data, written, tmp_path, synced):
    path = tmp_path / 'deep' / 'a.txt'
    write_atomic(path, data)
    write_atomic(path, data)
    assert path.read_bytes() == written and os.listdir(path.parent) == ['a.txt']
    # The parent of a new folder; then, for each write, the temporary file and its folder.
    temporary = [synced[1], synced[3]]
    assert all(name.startswith(str(path.with_name('.a.txt.tmp-'))) for name in temporary) and len(set(temporary)) == 2
    assert synced == [str(tmp_path), temporary[0], str(path.parent), temporary[1], str(path.parent)]


def test_a_failed_write_keeps_the_old_file(tmp_path):
    write_atomic(tmp_path / 'a', 'old')
    with pytest.raises(ZeroDivisionError), AtomicFile(tmp_path / 'a') as file:
        file.write(np.arange(3, dtype='<u4'))
        raise ZeroDivisionError
    assert (tmp_path / 'a').read_text() == 'old' and os.listdir(tmp_path) == ['a']


def test_an_open_file_can_be_read_but_has_no_name_yet(tmp_path):
    file = AtomicFile(tmp_path / 'a')
    file.write(np.arange(3, dtype='<u4'))
    assert not (tmp_path / 'a').exists()
    file.file.seek(4)
    assert file.file.read() == np.array([1, 2], '<u4').tobytes()
    assert file.close() == 12
    assert np.fromfile(tmp_path / 'a', '<u4').tolist() == [0, 1, 2]


def test_equal_files_give_equal_archives_that_are_synced(tmp_path, synced):
    files = {'b.tsv': 'é\n' * 1000, 'a/c.tsv': ''}
    for name in ('one.zip', 'two.zip'):
        write_zip(tmp_path / name, files)
    assert (tmp_path / 'one.zip').read_bytes() == (tmp_path / 'two.zip').read_bytes() and len(synced) == 4
    with zipfile.ZipFile(tmp_path / 'one.zip') as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files


def test_a_directory_is_replaced_atomically(tmp_path):
    target = tmp_path / 'export'
    for text in ('one', 'two'):
        with atomic_directory(target) as staging:
            assert not target.exists() or (target / 'config.json').read_text() == 'one'
            with open(os.path.join(staging, 'config.json'), 'w') as file:
                file.write(text)
    with pytest.raises(ZeroDivisionError), atomic_directory(target) as staging:
        raise ZeroDivisionError
    assert (target / 'config.json').read_text() == 'two' and os.listdir(tmp_path) == ['export']


def test_a_directory_behind_a_link_is_replaced_there(tmp_path):
    (tmp_path / 'disk' / 'export').mkdir(parents=True)
    (tmp_path / 'export').symlink_to(tmp_path / 'disk' / 'export')
    for text in ('one', 'two'):
        with atomic_directory(tmp_path / 'export') as staging:
            pathlib.Path(staging, 'a').write_text(text)
        assert (tmp_path / 'export').is_symlink() and (tmp_path / 'disk' / 'export' / 'a').read_text() == text
    assert os.listdir(tmp_path / 'disk') == ['export']


def test_a_directory_is_replaced_although_an_old_one_cannot_be_removed(tmp_path, monkeypatch):
    """On NFS, a file that another program reads stays in the folder."""
    target = tmp_path / 'export'
    with monkeypatch.context() as nfs:
        nfs.setattr(shutil, 'rmtree', lambda path, ignore_errors: None)
        for text in ('one', 'two', 'three', 'four'):
            with atomic_directory(target) as staging:
                pathlib.Path(staging, 'a').write_text(text)
            assert (target / 'a').read_text() == text
    assert (tmp_path / '.export.old' / 'a').read_text() == 'three'  # a killed replacement restores the newest
    recover_directory(target)
    assert os.listdir(tmp_path) == ['export']


@pytest.mark.parametrize('before', ['old', *slow(None)])
def test_a_kill_while_a_directory_is_replaced_leaves_a_complete_one(tmp_path, before):
    """A kill at any operation leaves the old or the new directory, or `recover_directory` restores one of them."""
    target = tmp_path / 'run' / 'export'

    def export(text):
        with atomic_directory(target) as staging:
            for name in ('a', 'b'):
                pathlib.Path(staging, name).write_text(text)

    seen = set()
    if before:
        export(before)
    for _ in kill_at_each(lambda: export('new'), tmp_path / 'run'):
        recover_directory(target)
        seen.add(tuple(path.read_text() for path in sorted(target.iterdir())) if target.exists() else None)
        export('again')
        assert [path.name for path in (tmp_path / 'run').iterdir()] == ['export']
        shutil.rmtree(tmp_path / 'run')
        if before:
            export(before)
    assert seen == {(before, before) if before else None, ('new', 'new')}


def test_a_directory_is_synced_before_it_is_renamed(tmp_path):
    events = []
    target = tmp_path / 'export'
    with (
        watch(lambda name, path: events.append(f'{name} {os.path.relpath(path, tmp_path)}'), tmp_path),
        atomic_directory(target) as staging,
    ):
        pathlib.Path(staging, 'sub').mkdir()
        pathlib.Path(staging, 'sub', 'a').write_text('a')
    assert events[-5:] == [
        'fsync .export.new/sub/a',
        'fsync .export.new/sub',
        'fsync .export.new',
        'rename export',
        'fsync .',
    ]


def test_the_error_of_a_full_disk_names_the_file_and_its_size(tmp_path):
    """The temporary file is removed."""

    def full(name, path):
        if name == 'fsync':
            raise OSError(28, 'No space left on device')

    with watch(full, tmp_path), pytest.raises(OSError) as error:
        write_atomic(tmp_path / 'a.txt', b'12345')
    assert (
        error.value.filename == str(tmp_path / 'a.txt') and error.value.write_size == 5 and os.listdir(tmp_path) == []
    )


def test_checksums_of_a_file(tmp_path):
    (tmp_path / 'a').write_bytes(b'abc')
    assert checksum(tmp_path / 'a') == hashlib.sha256(b'abc').hexdigest()
    assert checksum(tmp_path / 'a', 'blake2b-128') == hashlib.blake2b(b'abc', digest_size=16).hexdigest()


def test_only_one_process_can_lock_a_directory(tmp_path):
    refused = pytest.raises(UserError, match='another process that works here')
    with lock_directory(tmp_path, 'works here'), refused, lock_directory(tmp_path, 'works here'):
        pass
    with lock_directory(tmp_path, 'works here'):
        pass


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, 'No locks available')

    monkeypatch.setattr(atomic.fcntl, 'flock', refuse)
    with lock_directory(tmp_path, 'works here'):
        write_atomic(tmp_path / 'a', '')
    assert f'{tmp_path} cannot be locked' in caplog.text


@pytest.mark.parametrize('recreated', [False, True])
def test_moving_a_locked_directory_is_an_error(tmp_path, recreated):
    """The error is raised whether or not an operation in the moved directory fails."""
    for fails in (True, False):
        folder, refused = tmp_path / f'run{fails}', pytest.raises(UserError, match=r'move it back.*continues')
        folder.mkdir()
        with refused as error, lock_directory(folder, 'works here'):
            folder.rename(tmp_path / f'moved{fails}')
            if recreated:
                write_atomic(folder / 'a', '')
            if fails:
                (folder / 'deep' / 'b').touch()
        assert error.value.found == ('a different folder at this path' if recreated else 'no such folder any more')
    with pytest.raises(ZeroDivisionError), lock_directory(tmp_path, 'works here'):
        raise ZeroDivisionError
