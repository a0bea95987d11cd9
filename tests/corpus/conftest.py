"""A small vocabulary that spells any lower-case ASCII text."""

import pathlib
import string

import pytest
from corpus_text import WORDS

from bertjax.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope='session')
def vocabulary(tmp_path_factory) -> pathlib.Path:
    """A vocab.txt that spells any lower-case ASCII text."""
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
