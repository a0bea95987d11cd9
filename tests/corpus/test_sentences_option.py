"""Tests that config.corpus_options.sentences affects only new stores."""

import importlib.metadata
import json
import sys

import pytest
from corpus_text import directory_bytes, documents

from bertjax.corpus import store
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.errors import UserError

# The two splitters differ on this text: the rules see numbers of footnotes, pysbd sees a list.
TEXT = 'The old river ran: 1) past the mill, 2) past the town. The children came in summer.'


@pytest.fixture
def corpus(tmp_path):
    """Returns the spec of two files, one for each of two workers, with one document per line."""
    for name in 'ab':
        lines = [f'{TEXT} {" ".join(doc)}' for doc in documents(30, first=100 * ord(name))]
        (tmp_path / f'{name}.txt').write_text('\n\n'.join(lines) + '\n')
    return f'{tmp_path}/?.txt'


def build(corpus, directory, vocabulary, *, replace=True, **options):
    build_store(corpus, directory, str(vocabulary), CorpusOptions(**options), progress=False, replace=replace)
    return open_store(directory)


def test_pysbd_splits_the_sentences_of_a_new_store(corpus, tmp_path, vocabulary):
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    rules, pysbd = (build(corpus, tmp_path / name, vocabulary, sentences=name) for name in ('rules', 'pysbd'))
    assert rules.manifest['splitter'] == 'rules 5' and pysbd.manifest['splitter'].startswith('pysbd 0.')
    assert pysbd.report['tokens'] == rules.report['tokens']
    assert pysbd.report['sentences'] > rules.report['sentences']


@pytest.mark.slow
def test_pysbd_splits_sentences_in_workers(corpus, tmp_path, vocabulary, monkeypatch):
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    monkeypatch.setattr('bertjax.corpus.shards.FILES_A_SHARD', 1)
    stores = [build(corpus, tmp_path / f'pysbd{n}', vocabulary, workers=n, sentences='pysbd') for n in (1, 2)]
    assert directory_bytes(stores[0].directory) == directory_bytes(stores[1].directory)


def test_another_splitter_needs_a_new_store(corpus, tmp_path, vocabulary, caplog):
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    build(corpus, tmp_path / 'store', vocabulary)
    with pytest.raises(UserError, match='a token store of other settings'):
        build(corpus, tmp_path / 'store', vocabulary, sentences='pysbd', replace=False)
    build(corpus, tmp_path / 'store', vocabulary, sentences='pysbd')
    assert 'built with other settings. Building it again' in caplog.text


def test_a_store_is_unchanged_when_the_rules_change(corpus, tmp_path, vocabulary, caplog):
    before = build(corpus, tmp_path / 'store', vocabulary)
    manifest = {key: value for key, value in before.manifest.items() if key != 'checksum'} | {'splitter': 'rules 1'}
    (tmp_path / 'store' / 'manifest.json').write_text(store.manifest_text(manifest))
    old = directory_bytes(tmp_path / 'store')
    after = build(corpus, tmp_path / 'store', vocabulary, replace=False)
    assert directory_bytes(tmp_path / 'store') == old and after.fingerprint == before.fingerprint
    assert 'rules' not in caplog.text  # A run with checkpoints does not compare the rules.
    build(corpus, tmp_path / 'store', vocabulary)
    assert directory_bytes(tmp_path / 'store') == old
    assert 'whose sentences were split by rules 1. A new store would use rules 5.' in caplog.text


def test_a_finished_store_needs_no_splitter(corpus, tmp_path, vocabulary, monkeypatch, caplog):
    """If pysbd is not installed, only a new store is an error, and nothing is removed."""
    pytest.importorskip('pysbd', reason="needs the extra 'test'")
    before = build(corpus, tmp_path / 'store', vocabulary, sentences='pysbd')
    monkeypatch.setitem(sys.modules, 'pysbd', None)
    monkeypatch.setattr(importlib.metadata, 'version', importlib.metadata.Distribution.from_name)  # Finds no package.
    monkeypatch.setattr(importlib.metadata.Distribution, 'discover', lambda **options: iter(()))
    for replace in (False, True):
        after = build(corpus, tmp_path / 'store', vocabulary, replace=replace, sentences='pysbd')
        assert after.fingerprint == before.fingerprint and 'is kept' not in caplog.text
    for name in ('store', 'new'):
        with pytest.raises(UserError, match='pysbd, which is not installed'):
            build(corpus, tmp_path / name, vocabulary, sentences='pysbd', heldout=0.3)
    assert open_store(tmp_path / 'store').fingerprint == before.fingerprint


def test_lines_that_are_sentences_need_no_splitter(corpus, tmp_path, vocabulary):
    store = build(corpus, tmp_path / 'store', vocabulary, split_sentences=False)
    assert store.report['sentences'] == 60
    assert json.loads((tmp_path / 'store' / 'manifest.json').read_text())['splitter'] == ''


def test_an_unknown_splitter_is_refused():
    with pytest.raises(UserError, match=r"config\.corpus_options\.sentences: found 'spacy'"):
        CorpusOptions(sentences='spacy')
