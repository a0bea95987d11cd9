"""Tests reading small files, and errors about anything else at their path."""

import os

import pytest

from bertjax.errors import UserError
from bertjax.files.small_files import read_bytes, read_json_object, read_json_or_none


@pytest.mark.parametrize(
    ('content', 'found'),
    [
        (b'', 'an empty file'),
        (b'{"a": 1', 'no JSON'),
        (b'["a"]', 'a JSON list'),
        (b'null', 'a JSON NoneType'),
        (b'{"a": "\xff"}', 'no JSON'),
        (b'[' * 100_000, r'no JSON \(nested too deeply\)'),
        (b'{"a": ' + b'1' * 10_000 + b'}', 'no JSON'),
    ],
    ids=range(7),
)
def test_anything_but_a_json_object_is_refused(content, found, tmp_path):
    (tmp_path / 'a.json').write_bytes(content)
    with pytest.raises(UserError, match=rf'a\.json: found {found}.*expected a JSON object; copy it again'):
        read_json_object(tmp_path / 'a.json', 'copy it again')


@pytest.mark.parametrize('content', [None, b'', b'{"a": 1', b'["a"]', b'null', b'\xff', b'[' * 100_000, b'{"b": 1}'])
def test_a_missing_or_damaged_optional_file_is_none(content, tmp_path):
    if content is not None:
        (tmp_path / 'a.json').write_bytes(content)
    assert read_json_or_none(tmp_path / 'a.json', lambda value: value.get('a') + 1) is None
    (tmp_path / 'a.json').write_text('{"a": 1}')
    assert read_json_or_none(tmp_path / 'a.json', lambda value: value.get('a') + 1) == 2


def test_a_json_object_may_start_with_a_byte_order_mark(tmp_path):
    (tmp_path / 'a.json').write_bytes(b'\xef\xbb\xbf{"a": "\xc3\xa9"}')
    assert read_json_object(tmp_path / 'a.json', '') == {'a': 'é'}


def test_anything_but_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    for path, found in ((tmp_path, 'a folder'), (tmp_path / 'pipe', 'a pipe'), ('/dev/zero', 'a device')):
        with pytest.raises(UserError, match=f'found {found}, expected text; fix'):
            read_bytes(path, 'text', 'fix')
    with pytest.raises(UserError, match='no such file'):
        read_bytes(tmp_path / 'absent', 'text', 'fix')


def test_a_file_that_is_too_large_is_refused(tmp_path):
    (tmp_path / 'a').write_bytes(b'12345')
    assert read_bytes(tmp_path / 'a', 'text', 'fix', max_bytes=5) == b'12345'
    with pytest.raises(UserError, match='a file of 5 bytes, expected text of up to 4'):
        read_bytes(tmp_path / 'a', 'text', 'fix', max_bytes=4)
