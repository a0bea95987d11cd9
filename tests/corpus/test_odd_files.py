"""Tests pipes, links, and names and keys with control characters in a corpus."""

import os
import pathlib

import pytest
from corpus_text import as_text, documents

from bertjax.corpus.build import build_store
from bertjax.corpus.report import print_report
from bertjax.corpus.sources import CorpusOptions, resolve_sources
from bertjax.corpus.store import open_store
from bertjax.errors import UserError

KEYS = b'{"\\u001b[2J": 1, "\\ud800": 2, "' + b'x' * 500 + b'": 3}\n'
NESTED = b'{"a": ' + b'[' * 5000 + b']' * 5000 + b'}\n'


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """Returns a folder with one good file."""
    (tmp_path / 'in').mkdir()
    (tmp_path / 'in' / 'good.txt').write_bytes(as_text(documents(40)))
    return tmp_path / 'in'


def build(spec, tmp_path, vocabulary, **options) -> dict:
    return build_store(str(spec), tmp_path / 'store', str(vocabulary), CorpusOptions(**options), progress=False)


def test_odd_files_are_reported_and_the_other_files_are_read(folder, tmp_path, vocabulary, capsys):
    """The odd files are a pipe without a writer, a link to its own folder, names that are not UTF-8 or contain control
    characters, keys with control characters, and deeply nested JSON."""
    os.mkfifo(folder / 'pipe.txt')
    (folder / 'loop').symlink_to('.')
    (folder / 'keys.jsonl').write_bytes(KEYS)
    (folder / 'nested.jsonl').write_bytes(NESTED)
    for name in (b'caf\xe9\x1b[31m.txt', b'two\nlines.txt'):
        with open(os.fsencode(folder) + b'/' + name, 'wb') as file:
            file.write(b'\xff\n')
    report = build(folder, tmp_path, vocabulary)
    expected = {'invalid UTF-8': 2, 'missing text field': 1, 'unreadable file': 1, 'wrong JSON': 1}
    assert report['dropped'] == expected and report['documents'] > 0
    assert report['problems']['unreadable file'] == ['in/pipe.txt: a pipe']
    assert r'there are: \x1b[2J, \ud800, xxxx' in report['problems']['missing text field'][0]
    assert len(report['problems']['missing text field'][0]) < 200
    open_store(tmp_path / 'store')
    print_report(report)
    text = capsys.readouterr().out
    assert r'in/caf\xe9\x1b[31m.txt:1: ' in text and r'in/two\nlines.txt:1: ' in text and '\x1b' not in text
    with pytest.raises(UserError, match=r'caf\\xe9\\x1b\[31m\.txt:1: found invalid UTF-8'):
        build(folder / 'caf*', tmp_path, vocabulary, strict=True)


@pytest.mark.parametrize(
    ('spec', 'found'),
    [
        ('{}/pipe', "a pipe, '.*/pipe', expected a file; write its text into a file first"),
        ('/dev/zero', "a device, '/dev/zero'"),
        ('{}/socket/**', 'no file for'),
        ('http://example.org/wiki.txt', "the address 'http://example.org/wiki.txt'"),
    ],
)
def test_sources_that_are_not_text_are_refused(spec, found, folder):
    os.mkfifo(folder / 'pipe')
    with pytest.raises(UserError, match=found):
        resolve_sources(spec.format(folder))


def test_a_glob_matches_at_any_depth(folder):
    (folder / 'a' / 'b').mkdir(parents=True)
    (folder / 'a' / 'b' / 'deep.txt').write_text('The mill.\n')
    assert [source.name for source in resolve_sources(f'{folder}/**')] == ['a/b/deep.txt', 'good.txt']
    assert [source.name for source in resolve_sources(f'{folder}/**/d*.txt')] == ['a/b/deep.txt']
