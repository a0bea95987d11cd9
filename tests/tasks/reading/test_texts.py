"""Tests reading text files: compressed, with a byte order mark, and errors about anything but text."""

import bz2
import errno
import gzip
import io
import lzma
import os
import pathlib
import threading

import pytest
import zstandard

from bertjax.errors import UserError
from bertjax.files.disk import explain_os_error
from bertjax.tasks.reading.texts import check_text, number_lines, read_lines, read_text, stream_lines

TEXT = 'caf\u00e9\r\n\U0001f600\n'


@pytest.mark.parametrize(
    ('suffix', 'encode'),
    [
        ('', bytes),
        ('', lambda raw: b'\xef\xbb\xbf' + raw),
        ('.gz', gzip.compress),
        ('.bz2', bz2.compress),
        ('.xz', lzma.compress),
        ('.zst', zstandard.ZstdCompressor().compress),
    ],
)
def test_text_is_decompressed_without_its_byte_order_mark(tmp_path: pathlib.Path, suffix: str, encode):
    path = tmp_path / f'a.txt{suffix}'
    path.write_bytes(encode(TEXT.encode()))
    assert read_text(path) == TEXT
    stream = io.BufferedReader(io.BytesIO(encode(TEXT.encode())))
    lines = [line for _, line in stream_lines(stream, 'standard input')]
    assert lines == TEXT.replace('\r', '').splitlines()


@pytest.mark.parametrize(
    ('name', 'raw', 'where', 'found'),
    [
        ('a.txt', b'a\n\xe9 b\n', 'a.txt:2', 'the byte 0xe9'),
        ('a.txt', b'\xef\xbb\xbfa\nb\n\xff', 'a.txt:3', 'the byte 0xff'),
        ('a.txt', b'a\rb\r\xff', 'a.txt:3', 'the byte 0xff'),
        ('a.txt.gz', gzip.compress(TEXT.encode(), mtime=0)[:-9], 'a.txt.gz', 'a damaged gzip file'),
        ('a.txt.gz', b'plain', 'a.txt.gz', 'a damaged gzip file'),
    ],
)
def test_invalid_text_is_an_error_with_file_and_line(
    tmp_path: pathlib.Path, name: str, raw: bytes, where: str, found: str
):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UserError) as error:
        read_text(tmp_path / name)
    assert error.value.where == str(tmp_path / where) and error.value.found.startswith(found)


def test_a_missing_file_is_an_error(tmp_path: pathlib.Path):
    for path in (tmp_path, tmp_path / 'none'):
        with pytest.raises(UserError, match='expected a file'):
            read_text(path)


class FailingDisk(io.RawIOBase):
    def __init__(self, number: int):
        self._number = number

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        raise OSError(self._number, os.strerror(self._number))


@pytest.mark.parametrize('number', [errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN])
@pytest.mark.parametrize('read', [read_text, lambda path: list(read_lines(path))])
def test_an_error_of_the_disk_is_not_damage_of_the_file(
    read, number: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('bertjax.tasks.reading.texts._open', lambda path: io.BufferedReader(FailingDisk(number)))
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        read(tmp_path / 'a.txt.gz')
    assert explain_os_error(caught.value, 'workdir').where == str(tmp_path / 'a.txt.gz')


def test_carriage_returns_end_lines_if_there_is_no_line_feed(tmp_path: pathlib.Path):
    """A column file with such lines was read as a single word."""
    for end in ('\r', '\n', '\r\n'):
        text = end.join(['EU B-ORG', 'rejects O', '', 'Bonn B-LOC'])
        (tmp_path / 'a.txt').write_bytes(text.encode())
        expected = [(1, 'EU B-ORG'), (2, 'rejects O'), (3, ''), (4, 'Bonn B-LOC')]
        assert [*read_lines(tmp_path / 'a.txt')] == [*number_lines(text)] == expected
    assert [*number_lines('a\rb\nc')] == [(1, 'a\rb'), (2, 'c')]


def test_a_lone_surrogate_is_refused():
    assert check_text(TEXT, 'a.txt') == TEXT
    with pytest.raises(UserError, match=r'a\.txt: found a lone surrogate'):
        check_text('cut \ud83d', 'a.txt')


@pytest.mark.parametrize('path', ['/dev/zero', 'http://example.org/a.txt'])
def test_devices_and_addresses_are_refused(path: str):
    with pytest.raises(UserError, match=r'a device|the address'):
        read_text(path)


def test_the_lines_of_a_pipe_are_read(tmp_path: pathlib.Path):
    """As in --config.input=<(zcat a.gz)."""
    os.mkfifo(tmp_path / 'pipe')
    content = gzip.compress(b'one\r\ntwo\n' * 5000)
    threading.Thread(target=(tmp_path / 'pipe').write_bytes, args=(content,), daemon=True).start()
    lines = list(read_lines(tmp_path / 'pipe'))
    assert len(lines) == 10_000 and lines[-2:] == [(9999, 'one'), (10_000, 'two')]
