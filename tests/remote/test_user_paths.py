"""Tests errors about paths that users give."""

import pytest

from bertjax.errors import UserError
from bertjax.remote.paths import data_directory, user_path


@pytest.mark.parametrize('data', ['', '/nowhere/at/all', '{}/a.txt'])
def test_anything_but_a_data_directory_is_refused(data, tmp_path):
    (tmp_path / 'a.txt').touch()
    assert data_directory(str(tmp_path), 'a folder') == tmp_path
    with pytest.raises(UserError, match=r'config\.data: .*expected a folder; check the path'):
        data_directory(data.format(tmp_path), 'a folder')


@pytest.mark.parametrize('address', ['http://example.org/a.txt', 'file:///a.txt', 'ftp://a', 'gs:///a'])
def test_addresses_that_cannot_be_read_are_refused(address):
    with pytest.raises(UserError, match=r"^config\.corpus: found .*'(http|file|ftp|gs)://"):
        user_path(address, 'config.corpus')
