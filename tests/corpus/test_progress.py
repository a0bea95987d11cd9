"""Tests the progress that is shown while a corpus is read."""

import io
import pathlib
import re
import sys

import pytest
from corpus_text import as_text, documents

from bertjax.config.recipes import pretraining_config
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions, TextPart, TextSource
from bertjax.corpus.workers import text_bytes
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.vocabulary import train_vocabulary
from bertjax.progress import show_progress
from bertjax.text import wordpiece


def test_progress_without_a_terminal(tmp_path, vocabulary, monkeypatch, capsys):
    """The lines count bytes of files, and records of a dataset. With FORCE_COLOR, rich sees a terminal everywhere."""
    monkeypatch.delenv('JPY_PARENT_PID', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('FORCE_COLOR', '1')
    monkeypatch.setattr('bertjax.progress._LINE_INTERVAL', 0)
    (tmp_path / 'a.txt').write_bytes(as_text(documents(1000)))
    for number in (1, 2):
        build_store(str(tmp_path / 'a.txt'), tmp_path / f'{number}', str(vocabulary), CorpusOptions(workers=number))
        last = capsys.readouterr().out.splitlines()[-1]
        assert re.fullmatch(r'reading the corpus: 106.9 kB of 106.9 kB \(100%\), [\d.]+ [kM]?B a second', last)
    build_store('pydoc:', tmp_path / 'other', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r'reading the corpus: (\d+) of \1 \(100%\), [\d,]+ a second', last)


@pytest.mark.parametrize(('in_bytes', 'shown'), [(True, '1.0/2.0 MB'), (False, '1000000/2000000')])
def test_the_bar_of_a_terminal_counts_bytes_or_items(in_bytes, shown, monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, 'stderr', screen)
    monkeypatch.setattr('bertjax.progress._BAR_DELAY', -1)
    monkeypatch.delenv('JPY_PARENT_PID', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    with show_progress('reading [a] corpus', 2_000_000, in_bytes=in_bytes) as advance:
        advance(1_000_000)
    screen_text = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', screen.getvalue())
    assert shown in screen_text and 'reading [a] corpus' in screen_text


def settings_of(path: pathlib.Path, **changes: str) -> PretrainingSettings:
    config = pretraining_config('tiny', corpus=str(path), **changes)
    config.vocab.size = 300
    return pretraining_settings(config)


def test_the_training_of_a_vocabulary_shows_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('bertjax.progress._LINE_INTERVAL', 0)
    (tmp_path / 'a.txt').write_bytes(as_text(documents(60)))
    train_vocabulary(settings_of(tmp_path / 'a.txt'), tmp_path / 'run')
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('reading')]
    expected = r'reading the corpus for its vocabulary: (\d+\.\d kB) of \1 \(100%\), [\d.]+ [kM]?B a second'
    assert re.fullmatch(expected, lines[-1])


@pytest.mark.parametrize('installed', [False, True])
def test_a_large_build_suggests_the_fast_tokenizer(installed: bool, tmp_path, vocabulary, monkeypatch):
    monkeypatch.setattr(wordpiece, '_MUCH_TEXT', 3_000)
    if installed:
        pytest.importorskip('nanotoken', reason='needs the extra fast')
    else:
        monkeypatch.setattr(wordpiece, 'nanotoken', None)
    (tmp_path / 'a.txt').write_bytes(as_text(documents(60)))
    lines, options = [], CorpusOptions(workers=1)
    for name in ('first', 'finished'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), options, log=lines.append)
        hints = [line for line in lines if 'the extra `fast` would encode this text in about' in line]
        assert len(hints) == (not installed), name
        assert installed or hints[0].endswith("pip install 'bertjax[fast]'")


def test_the_size_of_a_prepared_dataset_is_estimated_in_bytes():
    """A dataset and its parts only have a number of records."""
    source, part = TextSource('tfds', '', '', 60_000, ''), TextPart('tfds', '', '', 0, 60_000)
    assert text_bytes([source]) == text_bytes([part]) > 50e6
    assert text_bytes([TextPart('file', 'a.gz', '', 0, 100, of=2)]) * 2 == text_bytes(
        [TextSource('file', 'a.gz', '', 100, '')]
    )
