"""Finding files: below a directory, by pattern, under one of several names."""

import pytest
from etils import epath

from bertjax.errors import UserError
from bertjax.files import paths


@pytest.fixture
def folder(tmp_path) -> epath.Path:
    """b.txt, a.txt, sub/c.txt, and names that are left out."""
    for name in ('b.txt', 'a.txt', 'sub/c.txt', '.hidden', '_logs/d.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return epath.Path(tmp_path)


def test_remote_paths_have_a_scheme():
    assert paths.is_remote('gs://bucket/a') and paths.is_remote(epath.Path('gs://bucket/a'))
    assert not paths.is_remote('/tmp/a') and not paths.is_remote('a:/b')


def test_files_below_a_directory(folder):
    assert [path.relative_to(folder).as_posix() for path in paths.walk_files(folder)] == ['a.txt', 'b.txt', 'sub/c.txt']


def test_files_that_match_a_pattern(folder, monkeypatch):
    assert paths.is_pattern('a?.txt') and not paths.is_pattern('a.txt')
    root, found = paths.match_files(f'{folder}/*')
    assert root == folder and {path.name for path in found} == {'a.txt', 'b.txt'}
    root, found = paths.match_files(f'{folder}/s*/*.txt')
    assert root == folder and [path.name for path in found] == ['c.txt']
    monkeypatch.chdir(folder)
    assert [path.name for path in paths.match_files('[ab].txt')[1]] == ['a.txt', 'b.txt']


def test_files_under_one_of_several_names(folder):
    found = list(paths.existing_files(folder, ('c.txt', 'b.txt', 'sub', 'a.txt')))
    assert [path.name for path in found] == ['b.txt', 'a.txt']
    assert paths.at_most_one(found[:1], 'here', 'dev', 'remove one') == found[0]
    assert paths.at_most_one([], 'here', 'dev', 'remove one') is None
    with pytest.raises(UserError, match=r'here: found b.txt and a.txt, expected one file of the dev split; remove one'):
        paths.at_most_one(found, 'here', 'dev', 'remove one')


@pytest.mark.parametrize('data', ['', '/nowhere/at/all', '{}/a.txt'])
def test_a_data_directory_that_is_none_is_refused(data, folder):
    assert paths.data_directory(str(folder), 'a folder') == folder
    with pytest.raises(UserError, match=r'config\.data: .*expected a folder; check the path'):
        paths.data_directory(data.format(folder), 'a folder')
