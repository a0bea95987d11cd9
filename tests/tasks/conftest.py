"""Fixtures: a tokenizer and a folder of texts."""

import json
import pathlib

import pytest
from text_world import LETTERS, MAILS

from bertjax.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope='session')
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Returns a tokenizer with one piece per letter."""
    path = tmp_path_factory.mktemp('vocabulary') / 'vocab.txt'
    pieces = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *LETTERS, *(f'##{letter}' for letter in LETTERS)]
    path.write_text(''.join(f'{piece}\n' for piece in pieces))
    return load_tokenizer(path)


@pytest.fixture
def mails(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / 'train.csv').write_text('label,text\n' + ''.join(f'{label},{mail}\n' for mail, label in MAILS))
    rows = [{'text': 'win a prize', 'label': 'spam'}, {'text': 'see me', 'label': 'ham'}]
    (tmp_path / 'dev.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    return tmp_path
