"""Tests that broken input is reported by file and line, dropped and counted, and that it stops a strict build."""

import bz2
import errno
import gzip
import lzma
import os
import re
import sys
import tarfile

import pytest
import zstandard
from corpus_text import as_text, documents, ids_of, stored
from etils import epath
from marks import mostly_slow

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions, resolve_sources
from bertjax.corpus.store import open_store
from bertjax.corpus.texts import iter_texts
from bertjax.errors import UserError
from bertjax.files import disk, streams

GOOD = documents(8)
TEXT = as_text(GOOD)  # Documents, with a blank line between them.
LINES = TEXT.count(b'\n')

BROKEN = {
    # file name: (content, kind of problem, line or 0, remaining documents)
    'latin.txt': (TEXT + b'\nThe old mill.\nThe caf\xe9 ran.\nA town.\n\n' + TEXT, 'invalid UTF-8', LINES + 3, 16),
    'nul.txt': (b'The ri\0ver ran.\n\n' + TEXT, 'NUL byte', 1, 8),
    'only.txt': (b'\0\n\n' + TEXT, 'NUL byte', 1, 8),
    'only.jsonl': (b'{"text": "The mill."}\n\0\n', 'NUL byte', 2, 1),
    'twice.txt': (TEXT + b'\n\xff\n\xfe\n', 'invalid UTF-8', LINES + 2, 8),
    'utf16.txt': ('The mill.\nA town.\n'.encode('utf-16'), 'invalid UTF-8', 1, 0),
    'json.jsonl': (b'{"text": "The mill."}\n{"text": "A town.\n\n{"text": "A river."}\n', 'wrong JSON', 2, 2),
    'list.jsonl': (b'{"text": "The mill."}\n["A town."]\n', 'wrong JSON', 2, 1),
    'field.jsonl': (b'{"text": "The mill."}\n{"body": "A town."}\n', 'missing text field', 2, 1),
    'number.jsonl': (b'{"text": "The mill."}\n{"text": 7}\n', 'missing text field', 2, 1),
    'null.jsonl': (b'{"text": "The mill."}\n{"text": "A \\u0000."}\n', 'NUL byte', 2, 1),
    'surrogate.jsonl': (b'{"text": "The mill."}\n{"text": "A \\ud83d."}\n', 'invalid UTF-8', 2, 1),
    'latin.jsonl': (b'{"text": "The mill."}\n{"text": "caf\xe9"}\n', 'invalid UTF-8', 2, 1),
    'unclosed': (b'<doc id="1">\nA\n\nThe mill.\n<doc id="2">\nB\n\nA town.\n</doc>\n', 'unclosed <doc>', 5, 1),
    'cut': (b'<doc id="1">\nA\n\nThe mill.\n</doc>\n<doc id="2">\nB\n\nA town.\n', 'unclosed <doc>', 9, 1),
    'outside': (b'<doc id="1">\nA\n\nThe mill.\n</doc>\nA town.\n', 'text outside <doc>', 6, 1),
    'empty.txt': (b'', 'empty file', 0, 0),
    'no.txt.gz': (b'This is no gzip.\n', 'damaged file', 0, 0),
    'no.txt.xz': (b'This is no xz.\n', 'damaged file', 0, 0),
}


def _build(path, tmp_path, vocabulary, **options):
    # The good file makes sure that the store has documents.
    (tmp_path / 'good.txt').write_bytes(as_text(documents(20, first=100_000)))
    spec = f'{path},{tmp_path / "good.txt"}'
    return build_store(spec, tmp_path / 'store', str(vocabulary), CorpusOptions(**options), progress=False)


def _characters(docs: list[list[str]]) -> int:
    return sum(len(line) for doc in docs for line in doc)


@pytest.mark.parametrize('name', BROKEN)
def test_a_broken_document_is_dropped_and_reported(name, tmp_path, vocabulary):
    content, kind, line, left = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    report = _build(tmp_path / name, tmp_path, vocabulary)
    assert report['dropped'] == {kind: 1}
    assert report['documents_read'] == left + 20
    if name == 'latin.txt':  # The part of a document before the broken line is not counted.
        assert report['characters'] == _characters([*GOOD, *GOOD, *documents(20, first=100_000)])
    assert report['problems'][kind][0].startswith(f'{name}:{line}: ' if line else f'{name}: ')
    assert any('broken' in warning for warning in report['warnings'])


@pytest.mark.parametrize('name', BROKEN)
def test_strict_stops_at_broken_input(name, tmp_path, vocabulary):
    content, kind, line, _ = BROKEN[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        _build(tmp_path / name, tmp_path, vocabulary, strict=True)
    assert caught.value.where == f'{tmp_path / name}' + (f':{line}' if line else '')
    assert caught.value.found.startswith(kind)
    with pytest.raises(UserError):
        list(iter_texts(str(tmp_path / name), CorpusOptions(strict=True)))


@pytest.mark.parametrize('name', ['latin.txt', 'json.jsonl', 'no.txt.gz'])
def test_strict_refuses_a_store_that_was_built_without_strict(name, tmp_path, vocabulary):
    (tmp_path / name).write_bytes(BROKEN[name][0])
    _build(tmp_path / name, tmp_path, vocabulary)
    with pytest.raises(UserError, match=name):
        _build(tmp_path / name, tmp_path, vocabulary, strict=True)


COMPRESSORS = {'gz': gzip.compress, 'bz2': bz2.compress, 'xz': lzma.compress, 'zst': zstandard.compress}


@pytest.mark.parametrize('suffix', mostly_slow(COMPRESSORS, 'gz', 'zst'))
def test_a_truncated_file_keeps_complete_documents(suffix, tmp_path, vocabulary, tokenizer):
    docs = documents(20_000 if suffix == 'bz2' else 6000)  # Several blocks of the compressor.
    data = COMPRESSORS[suffix](as_text(docs))
    path = tmp_path / f'a.txt.{suffix}'
    path.write_bytes(data[: len(data) * 4 // 5])
    report = _build(path, tmp_path, vocabulary)
    assert report['dropped'] == {'damaged file': 1}
    assert report['problems']['damaged file'][0].startswith(f'a.txt.{suffix}')
    kept = report['documents_read'] - 20
    assert len(docs) // 10 < kept < len(docs)
    assert stored(open_store(tmp_path / 'store')) == sorted(
        ids_of(docs[:kept] + documents(20, first=100_000), tokenizer)
    )
    with pytest.raises(UserError, match='damaged file'):
        _build(path, tmp_path, vocabulary, strict=True)


def test_a_flipped_bit_in_gzip_is_damage(tmp_path, vocabulary):
    data = bytearray(gzip.compress(as_text(documents(3000))))
    data[len(data) // 2] ^= 4
    (tmp_path / 'a.txt.gz').write_bytes(data)
    assert _build(tmp_path / 'a.txt.gz', tmp_path, vocabulary)['dropped']['damaged file'] == 1


def test_an_unreadable_file_of_a_directory_is_reported(tmp_path, vocabulary):
    (tmp_path / 'in').mkdir()
    (tmp_path / 'in' / 'gone.txt').symlink_to(tmp_path / 'nowhere')
    report = _build(tmp_path / 'in', tmp_path, vocabulary)
    assert report['dropped'] == {'unreadable file': 1}
    assert report['problems']['unreadable file'][0].startswith('in/gone.txt: ')
    with pytest.raises(UserError, match=r'gone\.txt'):
        _build(tmp_path / 'in', tmp_path, vocabulary, strict=True)


@pytest.mark.parametrize(
    ('spec', 'found'),
    [
        ('{}/missing.txt', 'no such file'),
        ('pydoc:topics', 'no such file'),
        ('{}/*.none', 'no file for'),
        ('{}/void', 'an empty directory'),
        ('{}/blank.txt', 'no document at all'),
        ('{}/bytes.txt', r'no document at all \(1 invalid UTF-8; first: bytes.txt:1: the byte 0xff'),
        ('{}/void.txt', 'empty file'),
        ('', 'an empty component'),
        ('{}/blank.txt,', 'an empty component'),
        ('tfds:', 'tfds:'),
    ],
)
def test_nothing_to_read_is_always_an_error(spec, found, tmp_path, vocabulary):
    (tmp_path / 'void').mkdir()
    (tmp_path / 'void.txt').touch()
    (tmp_path / 'blank.txt').write_text('\n \n\n')
    (tmp_path / 'bytes.txt').write_bytes(b'a \xff byte\nand a \0 byte\n')
    with pytest.raises(UserError, match=found):
        build_store(spec.format(tmp_path), tmp_path / 'store', str(vocabulary), progress=False)
    assert not (tmp_path / 'store' / 'manifest.json').exists()


def test_a_document_without_tokens_is_counted(tmp_path, vocabulary):
    (tmp_path / 'a.jsonl').write_text('{"text": "The mill."}\n{"text": "  "}\n{"text": "\\u200b"}\n')
    report = _build(tmp_path / 'a.jsonl', tmp_path, vocabulary)
    assert report['dropped'] == {'empty document': 2}
    assert report['characters'] == _characters([['The mill.'], *documents(20, first=100_000)])


def test_a_too_long_json_line_is_dropped(monkeypatch, tmp_path, vocabulary):
    monkeypatch.setattr('bertjax.files.streams.MAX_RECORD', 1 << 20)
    content = '{"text": "The mill."}\n{"text": "' + 'A town. ' * 200_000 + '"}\n{"text": "A river."}\n'
    (tmp_path / 'a.jsonl').write_text(content)
    report = _build(tmp_path / 'a.jsonl', tmp_path, vocabulary)
    assert report['dropped'] == {'line too long': 1} and report['documents_read'] == 22
    assert report['problems']['line too long'][0].startswith('a.jsonl:2: ')


@pytest.mark.parametrize(
    ('at', 'number'), [('open', errno.EMFILE), ('read', errno.EIO), ('read', errno.ESTALE), ('stat', errno.ESTALE)]
)
def test_errors_of_the_machine_stop_the_build(at, number, tmp_path, vocabulary, monkeypatch):
    """If file handles run out or a disk fails, no file is dropped, and the next build is complete."""
    path = tmp_path / 'a.txt'
    path.write_bytes(TEXT)
    owner, name = {
        'open': (type(epath.Path('')), 'open'),
        'read': (streams.CountedFile, 'readinto'),
        'stat': (os, 'stat'),
    }[at]
    real = getattr(owner, name)

    def fail(which, *arguments, **options):
        if at == 'read' or which == path:
            raise OSError(number, os.strerror(number))
        return real(which, *arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(OSError, match=os.strerror(number)) as caught:
        patch.setattr(owner, name, fail)
        _build(path, tmp_path, vocabulary, format='text')
    error = disk.explain_os_error(caught.value, str(tmp_path))
    assert error and (number == errno.EMFILE or error.where == str(path))
    assert _build(path, tmp_path, vocabulary, format='text')['documents'] == len(GOOD) + 20


def test_a_failure_to_print_progress_is_not_a_damaged_file(tmp_path, vocabulary, monkeypatch):
    class FailingStream:
        def write(self, text):
            raise PermissionError(errno.EACCES, 'not to be written')

    (tmp_path / 'a.txt').write_bytes(TEXT)
    monkeypatch.setattr('bertjax.progress._LINE_INTERVAL', 0)
    monkeypatch.setattr(sys, 'stdout', FailingStream())
    with pytest.raises(RuntimeError, match='progress'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary))


@pytest.mark.parametrize(
    ('name', 'text', 'found'),
    [
        ('a.json', '[\n {"text": "The mill."}\n]', 'JSON with a list, expected JSON lines'),
        ('a.json', '["The mill."]', 'JSON with a list, expected JSON lines'),
        ('a.json', '{\n "text": "The mill."\n}', 'JSON with an object on several lines, expected JSON lines'),
        ('a.jsonl', '{"text": ["The mill."]}\n', 'a JSON list in place of a string'),
        ('a.jsonl', '{"text": null}\n', 'null in place of a string'),
        ('a.feather', 'ARROW1', 'a.feather, expected plain text or JSON lines'),
    ],
)
def test_files_that_are_neither_text_nor_json_lines_are_refused(tmp_path, vocabulary, name, text, found):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=re.escape(found)):
        build_store(str(tmp_path / name), tmp_path / 'store', str(vocabulary), progress=False)


@pytest.mark.parametrize(
    ('name', 'magic', 'format', 'found'),
    [
        ('a.tar.gz', tarfile.PAX_FORMAT, 'auto', '/a.tar.gz, expected plain text or JSON lines; extract or convert it'),
        ('a.tar.gz', tarfile.PAX_FORMAT, 'text', 'a tar archive, expected a text file'),
        ('a.gz', tarfile.GNU_FORMAT, 'auto', 'a tar archive, expected a text file'),
    ],
)
def test_a_tar_archive_is_refused(tmp_path, vocabulary, name, magic, format, found):
    text = f'{"." * 257}ustar is the magic of tar.'
    (tmp_path / 'good.txt').write_text(text)
    assert list(iter_texts(str(tmp_path / 'good.txt'))) == [text]
    with tarfile.open(tmp_path / name, 'w:gz', format=magic) as archive:
        archive.add(tmp_path / 'good.txt')
    with pytest.raises(UserError, match=re.escape(found)):
        build_store(str(tmp_path / name), tmp_path / 's', str(vocabulary), CorpusOptions(format=format), progress=False)


def test_a_file_with_two_paths_is_read_once(tmp_path):
    (tmp_path / 'a.txt').write_bytes(TEXT)
    (tmp_path / 'b.txt').symlink_to(tmp_path / 'a.txt')
    sources = resolve_sources(f'{tmp_path}/a.txt,{tmp_path}/../{tmp_path.name}/a.txt,{tmp_path}/b.txt')
    assert [source.path for source in sources] == [f'{tmp_path}/a.txt']
