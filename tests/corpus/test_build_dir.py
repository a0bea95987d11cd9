"""Tests when the directory of a store is rebuilt, and that foreign files in it are not changed."""

import fcntl
import logging
import os
import pathlib

import pytest
from corpus_text import as_text, directory_bytes, documents

from bertjax.corpus.build import build_store
from bertjax.corpus.store import open_store
from bertjax.errors import UserError
from bertjax.text.bert_settings import bert_settings
from bertjax.text.wordpiece import WordPieceTokenizer

DOCS = documents(100)


def test_a_finished_store_is_rebuilt_after_a_change(tmp_path, vocabulary, tokenizer, caplog):
    path = tmp_path / 'a.txt'
    path.write_bytes(as_text(DOCS[:50]))
    assert build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)['documents'] == 50
    before = directory_bytes(tmp_path / 's')
    stamp = (tmp_path / 's' / 'manifest.json').stat().st_mtime_ns
    build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)
    assert (tmp_path / 's' / 'manifest.json').stat().st_mtime_ns == stamp
    path.write_bytes(as_text(DOCS[50:100]))
    with caplog.at_level(logging.WARNING):
        build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)
    assert 'Building it again' in caplog.text and directory_bytes(tmp_path / 's') != before
    path.write_bytes(as_text(DOCS[:50]))
    build_store(str(path), tmp_path / 's', str(vocabulary), progress=False)
    after = directory_bytes(tmp_path / 's')
    assert after.keys() == before.keys() and all(after[name] == before[name] for name in after if name != 'inputs.json')
    cased = WordPieceTokenizer(bert_settings(tokenizer.pieces, lowercase=False))
    build_store(str(path), tmp_path / 's', cased, progress=False)
    assert open_store(tmp_path / 's', tokenizer_fingerprint=cased.fingerprint)


def test_only_inputs_json_contains_paths_and_times(tmp_path, vocabulary):
    for name in ('one', 'two'):
        (tmp_path / name / 'in').mkdir(parents=True)
        (tmp_path / name / 'in' / 'a.txt').write_bytes(as_text(DOCS[:50]))
        os.utime(tmp_path / name / 'in' / 'a.txt', (1e9, 1e9 + (name == 'two')))
        spec = str(tmp_path / name / 'in' / '*.txt')
        build_store(spec, tmp_path / name / 's', str(vocabulary), progress=False)
    one, two = (directory_bytes(tmp_path / name / 's') for name in ('one', 'two'))
    assert one.pop('inputs.json') != two.pop('inputs.json')  # A quick check for changed inputs uses this file.
    assert one == two


def test_files_may_vanish_before_they_are_removed(tmp_path, vocabulary, monkeypatch):
    """The workers of a killed build live a few milliseconds longer and rename their temporary files."""
    real_glob = pathlib.Path.glob

    def glob(path, pattern):
        return [
            *real_glob(path, pattern),
            *([path / 'gone'] if pattern in ('.*.tmp-*', 'train-*.tokens', '*.tokens') else []),
        ]

    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    monkeypatch.setattr(pathlib.Path, 'glob', glob)
    assert build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)['documents'] == 5


def test_a_directory_with_other_files_is_not_changed(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    (tmp_path / 'home').mkdir()
    (tmp_path / 'home' / 'thesis.tex').write_text('years')
    with pytest.raises(UserError, match='files that do not belong to a store'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'home', str(vocabulary), progress=False)
    with pytest.raises(UserError, match='local directory'):
        build_store(str(tmp_path / 'a.txt'), 'gs://bucket/store', str(vocabulary), progress=False)
    assert (tmp_path / 'home' / 'thesis.tex').exists()


def test_a_foreign_folder_named_partial_is_not_changed(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    foreign = [tmp_path / 'home' / name for name in ('partial/.git', 'of a book.tokens')]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('years')
    with pytest.raises(UserError, match='files that do not belong to a store'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'home', str(vocabulary), progress=False)
    foreign[0].unlink()
    (tmp_path / 'home' / 'partial' / '.ipynb_checkpoints').mkdir()  # made by Jupyter
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'home', str(vocabulary), progress=False)
    assert foreign[1].read_text() == 'years'


def test_pairing_plans_and_stores_of_a_mixture_are_not_foreign(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store' / '0', str(vocabulary), progress=False)
    (tmp_path / 'store' / 'plans').mkdir()
    for name in ('.plan-0.npy.tmp-7', 'packing-0.npy', '.DS_Store'):
        (tmp_path / 'store' / 'plans' / name).touch()
    build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)


def test_two_builders_of_one_store_are_refused(tmp_path, vocabulary):
    (tmp_path / 'a.txt').write_bytes(as_text(DOCS[:5]))
    (tmp_path / 'store').mkdir()
    handle = os.open(tmp_path / 'store', os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(UserError, match='another process'):
        build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)
    os.close(handle)
    assert build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', str(vocabulary), progress=False)['documents'] == 5
