"""Tests finding files: below a directory, by pattern, and under one of several names."""

import inspect
import os
import socket
import sys

import pytest
from etils import epath

from bertjax.errors import UserError
from bertjax.files import paths


@pytest.fixture
def folder(tmp_path) -> epath.Path:
    """Returns a folder with b.txt, a.txt, sub/c.txt, and with hidden names, which are ignored."""
    for name in ('b.txt', 'a.txt', 'sub/c.txt', '.hidden', '_logs/d.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return epath.Path(tmp_path)


def test_remote_paths_have_a_scheme():
    assert paths.is_remote('gs://bucket/a') and paths.is_remote(epath.Path('gs://bucket/a'))
    assert not paths.is_remote('/tmp/a') and not paths.is_remote('a:/b')


def test_paths_to_the_same_place_are_equal(folder, monkeypatch):
    monkeypatch.setenv('HOME', str(folder))
    os.symlink(folder / 'sub', folder / 'link')
    assert paths.real_path('~/link/') == paths.real_path(str(folder / 'sub')) != paths.real_path(str(folder))
    assert paths.real_path('gs://bucket/a/') == 'gs://bucket/a' and paths.real_path('') == ''


def test_files_below_a_directory_are_found(folder):
    assert [path.relative_to(folder).as_posix() for path in paths.walk_files(folder)] == ['a.txt', 'b.txt', 'sub/c.txt']


def test_files_that_match_a_pattern_are_found(folder, monkeypatch):
    assert paths.is_pattern('a?.txt') and not paths.is_pattern('a.txt')
    root, found = paths.match_files(f'{folder}/*')
    assert root == folder and {path.name for path in found} == {'a.txt', 'b.txt'}
    root, found = paths.match_files(f'{folder}/s*/*.txt')
    assert root == folder and [path.name for path in found] == ['c.txt']
    monkeypatch.chdir(folder)
    assert [path.name for path in paths.match_files('[ab].txt')[1]] == ['a.txt', 'b.txt']


def test_files_under_one_of_several_names_are_found(folder):
    found = list(paths.existing_files(folder, ('c.txt', 'b.txt', 'sub', 'a.txt')))
    assert [path.name for path in found] == ['b.txt', 'a.txt']


def test_each_folder_is_read_once_despite_links(folder, caplog):
    """Links may lead to a parent, to another folder, to themselves, or to nothing. Skipped links are logged."""
    links = (('loop', '.'), ('sub/up', '..'), ('sub/self', 'self'), ('twin', 'sub'), ('broken', '/nowhere'))
    for link, target in links:
        os.symlink(target, folder / link)
    found = [path.relative_to(folder).as_posix() for path in paths.walk_files(folder)]
    assert found == ['a.txt', 'b.txt', 'broken', 'sub/c.txt', 'sub/self']
    assert f'Skipped {folder}/loop, which a link reaches a second time' in caplog.text


def test_a_walk_over_many_folders_that_link_to_each_other_ends(tmp_path):
    for i in range(30):
        (tmp_path / f'd{i}').mkdir()
        (tmp_path / f'd{i}' / 'a.txt').touch()
        for j in range(30):
            (tmp_path / f'd{i}' / f'l{j}').symlink_to(f'../d{j}')
    assert len(list(paths.walk_files(epath.Path(tmp_path)))) == 30


def test_a_folder_may_be_deeper_than_the_recursion_limit(tmp_path):
    (tmp_path / '/'.join('d' * 200)).mkdir(parents=True)
    (tmp_path / '/'.join('d' * 200) / 'a.txt').touch()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 100)
    try:
        found = list(paths.walk_files(epath.Path(tmp_path)))
    finally:
        sys.setrecursionlimit(limit)
    assert [path.name for path in found] == ['a.txt']


def test_a_folder_that_cannot_be_listed_is_an_error(folder, monkeypatch):
    def deny(path):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(os, 'listdir', deny)
    with pytest.raises(UserError, match=r'found permission denied, expected a folder that can be listed'):
        list(paths.walk_files(folder))


@pytest.mark.parametrize(
    ('pattern', 'names'),
    [
        ('**', ['a.txt', 'b.txt', 'sub/c.txt', 'sub/deep/d.md']),
        ('**/*.txt', ['a.txt', 'b.txt', 'sub/c.txt']),
        ('**/deep/**', ['sub/deep/d.md']),
        ('s*/**/*.md', ['sub/deep/d.md']),
        ('sub/**/d.*', ['sub/deep/d.md']),
        ('a**t', ['a.txt']),
        ('no/**', []),
    ],
)
def test_patterns_match_at_any_depth(pattern, names, folder):
    (folder / 'sub' / 'deep').mkdir()
    (folder / 'sub' / 'deep' / 'd.md').touch()
    os.symlink('..', folder / 'sub' / 'loop')
    _, found = paths.match_files(f'{folder}/{pattern}')
    assert [path.relative_to(folder).as_posix() for path in found] == names


def test_pipes_sockets_and_devices_are_recognized(folder):
    os.mkfifo(folder / 'pipe')
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / 'socket'))
    kinds = {'pipe': 'a pipe', 'socket': 'a socket', '/dev/zero': 'a device', 'a.txt': '', 'sub': '', 'absent': ''}
    assert {name: paths.unusual_kind(folder / name) for name in kinds} == kinds
