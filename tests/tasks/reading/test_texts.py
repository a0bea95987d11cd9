"""Whole files of text: packed or not, with a mark or not, and what is no text."""

import bz2
import gzip
import io
import lzma
import pathlib

import pytest
import zstandard

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import check_text, decode_file, read_text

TEXT = 'caf\u00e9\r\n\U0001f600\n'


@pytest.mark.parametrize(
    ('suffix', 'pack'),
    [
        ('', bytes),
        ('', lambda raw: b'\xef\xbb\xbf' + raw),
        ('.gz', gzip.compress),
        ('.bz2', bz2.compress),
        ('.xz', lzma.compress),
        ('.zst', zstandard.ZstdCompressor().compress),
    ],
)
def test_text_is_unpacked_and_has_no_mark(tmp_path: pathlib.Path, suffix: str, pack):
    path = tmp_path / f'a.txt{suffix}'
    path.write_bytes(pack(TEXT.encode()))
    assert read_text(path) == TEXT
    assert decode_file(io.BytesIO(pack(TEXT.encode())), 'standard input') == TEXT


@pytest.mark.parametrize(
    ('name', 'raw', 'where', 'found'),
    [
        ('a.txt', b'a\n\xe9 b\n', 'a.txt:2', 'the byte 0xe9'),
        ('a.txt', b'\xef\xbb\xbfa\nb\n\xff', 'a.txt:3', 'the byte 0xff'),
        ('a.txt.gz', gzip.compress(TEXT.encode(), mtime=0)[:-9], 'a.txt.gz', 'a damaged gzip file'),
        ('a.txt.gz', b'plain', 'a.txt.gz', 'a damaged gzip file'),
    ],
)
def test_what_is_no_text_is_named(tmp_path: pathlib.Path, name: str, raw: bytes, where: str, found: str):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError) as error:
        read_text(tmp_path / name)
    assert error.value.where == str(tmp_path / where) and error.value.found.startswith(found)


def test_no_file(tmp_path: pathlib.Path):
    for path in (tmp_path, tmp_path / 'none'):
        with pytest.raises(UserError, match='expected a file'):
            read_text(path)


def test_half_a_surrogate_pair_is_no_text():
    assert check_text(TEXT, 'here') == TEXT
    with pytest.raises(UserError, match='here: found a lone surrogate'):
        check_text('cut \ud83d', 'here')


@pytest.mark.parametrize('path', ['/dev/zero', 'http://example.org/a.txt'])
def test_what_would_never_end_or_is_elsewhere(path: str):
    with pytest.raises(UserError, match=r'a device|the address'):
        read_text(path)
