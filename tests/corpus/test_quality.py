"""Tests that the report warns about shuffled text and about tokenizers that do not fit the text."""

import gzip
import random

import pytest
from corpus_text import as_text

from bertjax.corpus.build import build_store
from bertjax.text.sentences import split_sentences


def _report(docs, tmp_path, shared):
    (tmp_path / 'a.txt').write_bytes(as_text(docs))
    vocabulary = str(shared / 'vocab' / 'bert-base-uncased-vocab.txt')
    return build_store(str(tmp_path / 'a.txt'), tmp_path / 'store', vocabulary, progress=False)


def _shuffle_warnings(report):
    return [warning.split(':')[0] for warning in report['warnings'] if 'shuffled' in warning]


@pytest.fixture(scope='module')
def articles(shared):
    with gzip.open(shared / 'corpus' / 'enwiki-00.txt.gz', 'rt', encoding='utf-8') as file:
        text = file.read(2_000_000)
    return [[s for line in doc.split('\n') for s in split_sentences(line)] for doc in text.split('\n\n')]


def test_running_text_has_no_warnings(articles, shared, tmp_path):
    report = _report(articles, tmp_path, shared)
    assert report['neighbour_likeness'] > 5 and report['neighbour_likeness_within'] > 1.4
    assert not report['warnings']


def test_sentences_shuffled_across_documents_are_detected(articles, shared, tmp_path):
    sentences = [sentence for doc in articles for sentence in doc]
    random.Random(0).shuffle(sentences)
    rest = iter(sentences)
    report = _report([[next(rest) for _ in doc] for doc in articles], tmp_path, shared)
    assert report['neighbour_likeness'] < 1.3
    assert _shuffle_warnings(report) == ['The text looks shuffled by sentence']


def test_sentences_shuffled_within_documents_are_detected(articles, shared, tmp_path):
    docs = [random.Random(0).sample(doc, len(doc)) for doc in articles]
    assert _shuffle_warnings(_report(docs, tmp_path, shared)) == ['The sentences within documents look shuffled']


def test_documents_of_one_sentence_give_a_warning(articles, shared, tmp_path):
    report = _report([[sentence] for doc in articles[:100] for sentence in doc], tmp_path, shared)
    assert any('have one sentence' in warning for warning in report['warnings'])


def test_only_shuffled_novels_give_a_warning(shared, tmp_path):
    with gzip.open(shared / 'corpus' / 'novels' / 'Doyle_Hound_1902.txt.gz', 'rt', encoding='utf-8') as file:
        text = file.read()
    sentences = [sentence for line in text.split('\n') for sentence in split_sentences(line)]
    chapters = [sentences[index : index + 200] for index in range(0, len(sentences), 200)]
    assert not _shuffle_warnings(_report(chapters, tmp_path, shared))
    assert not _shuffle_warnings(_report([sentences], tmp_path, shared))  # there is no other document
    random.Random(0).shuffle(sentences)
    shuffled = [sentences[index : index + 200] for index in range(0, len(sentences), 200)]
    assert _shuffle_warnings(_report(shuffled, tmp_path, shared)) == ['The text looks shuffled by sentence']


def test_a_tokenizer_that_does_not_fit_gives_a_warning(articles, shared, tmp_path):
    import codecs

    rotated = _report([[codecs.encode(s, 'rot13') for s in doc] for doc in articles[:100]], tmp_path, shared)
    assert any('pieces a word' in warning for warning in rotated['warnings'])
    hidden = [[s.translate({ord(c): 0x12000 + ord(c) for c in 'etaoin'}) for s in doc] for doc in articles[:100]]
    assert any('[UNK]' in warning for warning in _report(hidden, tmp_path, shared)['warnings'])
