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
from bertjax.corpus.workers import Progress, text_bytes
from bertjax.pretrain.settings import PretrainingSettings, pretraining_settings
from bertjax.pretrain.vocabulary import train_vocabulary
from bertjax.text import wordpiece


def test_progress_without_a_terminal(tmp_path, vocabulary, monkeypatch, capsys):
    """The lines count bytes of files, and records of a dataset. With FORCE_COLOR, rich sees a terminal everywhere."""
    monkeypatch.delenv('JPY_PARENT_PID', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    monkeypatch.setenv('FORCE_COLOR', '1')
    monkeypatch.setattr('bertjax.corpus.workers.LOG_EVERY', 0)
    (tmp_path / 'a.txt').write_bytes(as_text(documents(1000)))
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r'reading the corpus: 1,000 documents, 106.9 kB of 106.9 kB, [\d.]+ [kM]?B/s, about 0 s left', last
    )
    build_store('pydoc:', tmp_path / 'other', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r'reading the corpus: (\d+) documents, \1 records of \1 records, [\d.,]+ records/s.*', last), (
        last
    )


def test_the_bar_of_a_terminal_counts_records_of_a_dataset(monkeypatch):
    """pydoc has 79 documents, not 79 bytes."""
    monkeypatch.delenv('JPY_PARENT_PID', raising=False)
    monkeypatch.setenv('TERM', 'xterm')
    text = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', screen_with_progress(monkeypatch))
    assert '79/79 records' in text and 'bytes' not in text


def screen_with_progress(monkeypatch) -> str:
    """Returns what a terminal receives."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, 'stderr', screen)
    with Progress(79, enabled=True, in_bytes=False) as progress:
        progress.add(79, 79)
    return screen.getvalue()


@pytest.mark.parametrize(('name', 'value'), [('JPY_PARENT_PID', '1'), ('TERM', 'dumb')])
def test_a_notebook_and_a_dumb_terminal_get_lines(monkeypatch, name: str, value: str):
    monkeypatch.setattr('bertjax.corpus.workers.LOG_EVERY', 0)
    monkeypatch.setenv(name, value)
    assert screen_with_progress(monkeypatch).startswith('reading the corpus: 79 documents, 79 records of 79 records, ')


def settings_of(path: pathlib.Path, **changes: str) -> PretrainingSettings:
    config = pretraining_config('tiny', corpus=str(path), **changes)
    config.vocab.size = 300
    return pretraining_settings(config)


def test_the_training_of_a_vocabulary_shows_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('bertjax.corpus.workers.LOG_EVERY', 0)
    (tmp_path / 'a.txt').write_bytes(as_text(documents(60)))
    train_vocabulary(settings_of(tmp_path / 'a.txt'), tmp_path / 'run')
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(
        r'reading the corpus for its vocabulary: (\d+\.\d kB) of \1, [\d.]+ [kM]?B/s, about 0 s left', last
    )


@pytest.mark.parametrize('installed', [False, True])
def test_a_large_build_suggests_the_fast_tokenizer(installed: bool, tmp_path, vocabulary, monkeypatch, capsys):
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
    for run in ('vocab', 'pretrain'):
        train_vocabulary(settings_of(tmp_path / 'a.txt', run=run), tmp_path / run)
        assert ("pip install 'bertjax[fast]'" in capsys.readouterr().out) == (run == 'vocab' and not installed)


def test_the_size_of_a_prepared_dataset_is_estimated_in_bytes():
    """A dataset and its parts only have a number of records."""
    source, part = TextSource('tfds', '', '', 60_000, ''), TextPart('tfds', '', '', 0, 60_000)
    assert text_bytes([source]) == text_bytes([part]) > 50e6
    assert text_bytes([TextPart('file', 'a.gz', '', 0, 100, of=2)]) * 2 == text_bytes(
        [TextSource('file', 'a.gz', '', 100, '')]
    )
