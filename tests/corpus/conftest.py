"""Fixtures: a small vocabulary and a corpus."""

import gzip
import pathlib
import random
import string

import pytest
from corpus_text import WORDS, as_text, documents

from bertjax.corpus import shards
from bertjax.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope='session')
def vocabulary(tmp_path_factory) -> pathlib.Path:
    """Returns the path of a vocab.txt that can encode any lower-case ASCII text."""
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]
    for char in string.ascii_lowercase + string.digits:
        pieces += [char, f'##{char}']
    pieces += list('.,!?:;"\'()-')
    path = tmp_path_factory.mktemp('vocabulary') / 'vocab.txt'
    path.write_text('\n'.join(dict.fromkeys(pieces)) + '\n')
    return path


@pytest.fixture(scope='session')
def tokenizer(vocabulary) -> Tokenizer:
    return load_tokenizer(str(vocabulary))


@pytest.fixture
def beam():
    return pytest.importorskip('apache_beam', reason='needs the extra beam')


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> str:
    """Returns the spec of a corpus with small files, a large plain and a large compressed file, and duplicates.

    The fixture makes shards small, so that the corpus has many.
    """
    monkeypatch.setattr(shards, 'MIN_SHARD', 1 << 14)
    monkeypatch.setattr(shards, 'STRIDE_BYTES', 1 << 12)
    monkeypatch.setattr(shards, 'TARGET_SHARDS', 10)
    folder = tmp_path / 'corpus'
    folder.mkdir()
    docs = documents(1500)
    docs += [*docs[300:400], *docs[:50]]
    random.Random(1).shuffle(docs)
    for name, some in (('a', docs[:3]), ('b', docs[3:900]), ('c', docs[900:903]), ('d', docs[903:905])):
        (folder / f'{name}.txt').write_bytes(as_text(some))
    (folder / 'e.txt.gz').write_bytes(gzip.compress(as_text(docs[905:])))
    (folder / 'f.txt').write_bytes(b'The \xff mill.\n')
    return f'{folder}/*.txt,{folder}/*.gz'
