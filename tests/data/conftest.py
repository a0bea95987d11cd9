"""Fixtures: synthetic text, and real text of the shared folder."""

import gzip
import pathlib

import pytest
from data_fakes import FakeVocabulary, MemorySplit, synthetic_split

from bertjax.text.sentences import split_sentences
from bertjax.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope='session')
def vocabulary() -> FakeVocabulary:
    return FakeVocabulary()


@pytest.fixture(scope='session')
def split() -> MemorySplit:
    return synthetic_split()


@pytest.fixture(scope='session')
def english(shared: pathlib.Path) -> Tokenizer:
    return load_tokenizer(shared / 'vocab' / 'bert-base-uncased-vocab.txt')


@pytest.fixture(scope='session')
def wikipedia(shared: pathlib.Path, english: Tokenizer) -> MemorySplit:
    """Returns the first 600 articles of the shared English Wikipedia, tokenized sentence by sentence."""
    with gzip.open(shared / 'corpus' / 'enwiki-00.txt.gz', 'rt', encoding='utf-8') as file:
        articles = file.read().split('\n\n')[:600]
    documents = [[s for line in article.splitlines() for s in split_sentences(line)] for article in articles]
    ids = iter(english.encode([sentence for document in documents for sentence in document]))
    tokenized = [[s for s in (next(ids) for _ in document) if len(s)] for document in documents]
    return MemorySplit([document for document in tokenized if document])
