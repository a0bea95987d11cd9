"""Fixtures with vocabularies and texts for the tests of bertjax.text."""

import gzip
import pathlib
from pydoc_data.topics import topics

import pytest

from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece


@pytest.fixture(scope='session')
def paragraphs() -> list[str]:
    """Returns paragraphs of English text that every CPython contains."""
    return [paragraph for topic in sorted(topics) for paragraph in topics[topic].split('\n\n')]


@pytest.fixture(scope='session', params=[True, False], ids=['uncased', 'cased'])
def wordpiece(request, paragraphs):
    return train_wordpiece(
        [*paragraphs, 'Élan vital, été, 你好 שלום'], vocab_size=2000, lowercase=request.param, unused=7
    )


@pytest.fixture(scope='session', params=[('unigram', False), ('bpe', True)], ids=['unigram', 'bpe-lower'])
def sentencepiece_model(request, paragraphs):
    kind, lowercase = request.param
    return train_sentencepiece(
        paragraphs, vocab_size=1500, model_type=kind, lowercase=lowercase, unused=3, seed=1, sample_sentences=3000
    )


@pytest.fixture(scope='session', params=['uncased', 'cased'])
def bert_vocabulary(request, shared) -> pathlib.Path:
    return shared / 'vocab' / f'bert-base-{request.param}-vocab.txt'


@pytest.fixture(scope='session')
def corpus_lines(shared) -> list[str]:
    lines = []
    for path in sorted((shared / 'corpus').rglob('*')):
        if path.suffix == '.gz':
            lines += gzip.decompress(path.read_bytes()).decode('utf-8').split('\n')
        elif path.suffix == '.txt':
            lines += path.read_text('utf-8').split('\n')
    return lines
