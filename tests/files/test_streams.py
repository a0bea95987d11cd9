"""Tests reading lines and compressed streams of bytes."""

import bz2
import io

import pytest
import zstandard

from bertjax.files import streams


def test_lines_have_numbers_and_a_maximum_length(monkeypatch):
    monkeypatch.setattr(streams, 'MAX_LINE', 10)
    lines = streams.Lines(iter([b'one\ntw', b'o\n' + b'word ' * 5, b'end\n', b'\nla', b'st']))
    found = [(lines.number, line) for line in lines]
    assert b''.join(line for number, line in found if number == 3) == b'word ' * 5 + b'end'
    assert all(len(line) <= 10 for _, line in found)
    assert [pair for pair in found if pair[0] != 3] == [(1, b'one'), (2, b'two'), (4, b''), (5, b'last')]
    pieces = list(streams.Lines(iter(['é'.encode() * 40])))
    assert ''.join(piece.decode() for piece in pieces) == 'é' * 40
    monkeypatch.setattr(streams, 'MAX_RECORD', 10)
    long = streams.Lines(iter([b'{"a": 1}\n{"text": "a long', b'one"', b'}\n{"b": 2}\n{"text": "long"}\n']), cut=False)
    records = {1: b'{"a": 1}', 2: streams.TOO_LONG, 3: b'{"b": 2}', 4: streams.TOO_LONG}
    assert [(long.number, line) for line in long] == [*records.items()]


def test_a_carriage_return_ends_a_line_only_in_text_without_line_feeds(monkeypatch):
    texts = {
        b'one\rtwo\r\rfour': [b'one', b'two', b'', b'four'],
        b'o\rne\r\ntw\ro\n': [b'o\rne\r', b'tw\ro'],
        b'one line\r': [b'one line\r'],
    }
    for text, expected in texts.items():
        for size in (1, 3, 5, 100):  # with 5, a chunk ends between \r and \n
            assert [*streams.Lines(text[i : i + size] for i in range(0, len(text), size))] == expected
    monkeypatch.setattr(streams, 'MAX_LINE', 10)  # longer texts are not read to their end
    assert [*streams.Lines(iter([b'one two\rthree', b' four', b'\rfive']))] == [b'one two', b'three four', b'five']
    assert b'' not in streams.Lines(iter([b'one two three\r', b'\nfour']))
    stray = [b'one two\rthree', b' four\r', b'\nfive\r\nsix\r']
    assert [*streams.Lines(iter(stray))] == [b'one two', b'three four', b'five', b'six']


@pytest.mark.parametrize('text', [b'one\rtwo\rth', b'one\ntwo\nth'])
def test_the_lines_before_damage_are_read(text):
    def source():
        yield text
        raise streams.DamagedFileError

    lines = []
    with pytest.raises(streams.DamagedFileError):
        lines.extend(streams.Lines(source()))
    assert lines == [b'one', b'two']


def test_only_a_line_without_text_is_blank(monkeypatch):
    """A blank part of a long line would end a document."""
    monkeypatch.setattr(streams, 'MAX_LINE', 10)
    text = b'one word' + b' ' * 9 + b'\n' + b' ' * 25 + b'two\n' + b' ' * 35 + b'\n'
    for size in (1, 7, 100):
        lines = streams.Lines(text[i : i + size] for i in range(0, len(text), size))
        assert [lines.number for line in lines if not line.strip()] == [3]


def test_a_text_may_begin_like_a_bzip2_file():
    heads = {b'BZhang w': '', b'BZh9 are': '', bz2.compress(b'text')[:8]: 'bzip2', bz2.compress(b'')[:8]: 'bzip2'}
    assert {head: streams.detect_compression('a.txt', head) for head in heads} == heads


def test_zstd_is_decompressed_in_small_chunks():
    """A zstd block of one repeated byte encodes 128 KiB in 4 bytes, so 100 MiB are compressed to a few kilobytes."""
    size = 100 << 20
    compressor = zstandard.ZstdCompressor().compressobj()
    data = b''.join([*(compressor.compress(bytes(1 << 22)) for _ in range(size >> 22)), compressor.flush()])
    assert len(data) < streams.CHUNK
    lengths = [len(chunk) for chunk in streams.chunks(io.BytesIO(data), 'zstd')]
    assert sum(lengths) == size and max(lengths) <= 33 << 20


def test_truncated_zstd_is_decompressed_up_to_its_damage():
    text = b''.join(b'line %d of some text\n' % number for number in range(400_000))
    data = zstandard.compress(text)
    chunks, damaged = [], False
    try:
        for chunk in streams.chunks(io.BytesIO(data[: len(data) // 2]), 'zstd'):
            chunks.append(chunk)
    except streams.DAMAGE:
        damaged = True
    assert damaged and text.startswith(b''.join(chunks)) and len(text) // 3 < len(b''.join(chunks)) < len(text)
    assert all(len(chunk) >= streams.CHUNK for chunk in chunks[:-1])
