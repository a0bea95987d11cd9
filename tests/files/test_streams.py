"""Lines of bytes, cut where they are too long."""

from bertjax.files import streams


def test_lines_have_numbers_and_limits(monkeypatch):
    monkeypatch.setattr(streams, 'MAX_LINE', 10)
    lines = streams.Lines(iter([b'one\ntw', b'o\n' + b'word ' * 5, b'end\n', b'\nla', b'st']))
    found = [(lines.number, line) for line in lines]
    assert b''.join(line for number, line in found if number == 3) == b'word ' * 5 + b'end'
    assert all(len(line) <= 10 for _, line in found)
    assert [pair for pair in found if pair[0] != 3] == [(1, b'one'), (2, b'two'), (4, b''), (5, b'last')]
    pieces = list(streams.Lines(iter(['é'.encode() * 40])))
    assert ''.join(piece.decode() for piece in pieces) == 'é' * 40
    monkeypatch.setattr(streams, 'MAX_RECORD', 10)
    long = streams.Lines(iter([b'{"a": 1}\n{"text": "a long', b'one"', b'}\n{"b": 2}\n']), cut=False)
    assert [(long.number, line) for line in long] == [(1, b'{"a": 1}'), (2, streams.TOO_LONG), (3, b'{"b": 2}')]
