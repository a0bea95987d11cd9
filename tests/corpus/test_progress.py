"""What is shown while a corpus is read."""

import io
import re
import sys

from corpus_text import as_text, documents

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.workers import Progress


def test_progress_is_told_where_there_is_no_terminal(tmp_path, vocabulary, monkeypatch, capsys):
    """In megabytes of files, and in records of a dataset."""
    monkeypatch.setattr('bertjax.corpus.workers.LOG_EVERY', 0)
    (tmp_path / 'a.txt').write_bytes(as_text(documents(1000)))
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r'reading the corpus: 1,000 documents, 0 of 0 MB, [\d.]+ MB/s, about 0 s left', last)
    build_store('pydoc:', tmp_path / 'other', str(vocabulary), CorpusOptions(workers=1))
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(r'reading the corpus: (\d+) documents, \1 of \1 records, [\d.,]+ records/s.*', last), last


def test_the_bar_of_a_terminal_counts_records_of_a_dataset(monkeypatch):
    """Python's help has 79 documents, not 79 bytes."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, 'stderr', screen)
    with Progress(79, shown=True, in_bytes=False) as progress:
        progress.add(79, 79)
    text = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', screen.getvalue())
    assert '79/79 documents' in text and 'bytes' not in text
