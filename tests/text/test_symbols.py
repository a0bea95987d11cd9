"""Tests vocabularies of symbols."""

import pathlib
import pickle

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.text.symbols import build_symbols, count_symbols, read_symbols
from bertjax.text.tokenizer import load_tokenizer


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / 'codes.txt'
    path.write_text('E11\nI10\nC10-AB\nÄ,1\n', encoding='utf-8')
    return path


def test_each_symbol_is_one_id(file: pathlib.Path, tmp_path: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    tokenizer = read_symbols(file)
    assert tokenizer.pieces[:5] == ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]'] and tokenizer.vocab_size == 9
    text = ' I10 C10-AB  e11 [MASK]\tÄ,1'
    (ids,) = tokenizer.encode([text])
    assert ids.tolist() == [6, 7, 1, 4, 8] and ids.dtype == np.int32
    assert tokenizer.decode(ids) == 'I10 C10-AB [UNK] [MASK] Ä,1'
    ((again, starts, ends),) = tokenizer.encode_with_offsets([text])
    assert again.tolist() == ids.tolist() and text[starts[1] : ends[1]] == 'C10-AB'
    file.write_text('a\n▁\n', encoding='utf-8')
    ((_, starts, ends),) = read_symbols(file).encode_with_offsets(['a ▁'])
    assert [*zip(starts, ends, strict=True)] == [(0, 1), (2, 3)]
    tokenizer.save(tmp_path / 'saved')
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'saved')
    assert theirs(text, add_special_tokens=False)['input_ids'] == ids.tolist()
    pair = theirs('E11', 'I10')
    assert pair['input_ids'] == [2, 5, 3, 6, 3] and pair['token_type_ids'] == [0, 0, 0, 1, 1]
    loaded = load_tokenizer(tmp_path / 'saved')
    assert loaded.fingerprint == tokenizer.fingerprint == pickle.loads(pickle.dumps(loaded)).fingerprint
    assert loaded.family == 'symbols' and not loaded.continues_word.any()


def test_the_file_may_contain_special_tokens(tmp_path: pathlib.Path):
    path = tmp_path / 'codes.txt'
    path.write_text('[CLS]\na\n[PAD]\n[UNK]\n[SEP]\n[MASK]\nb', encoding='utf-8')
    tokenizer = read_symbols(path)
    assert tokenizer.pieces == ['[CLS]', 'a', '[PAD]', '[UNK]', '[SEP]', '[MASK]', 'b']
    assert tokenizer.cls_id == 0 and tokenizer.pad_id == 2


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('a\nb c\n', r'codes\.txt:2: found .b c.'),
        ('a\n\nb', r'codes\.txt:2'),
        ('a\nb\na\n', r'codes\.txt:3: found .a. a'),
    ],
)
def test_an_invalid_list_of_symbols_is_an_error(text: str, message: str, tmp_path: pathlib.Path):
    (tmp_path / 'codes.txt').write_text(text, encoding='utf-8')
    with pytest.raises(UserError, match=message):
        read_symbols(tmp_path / 'codes.txt')


def test_the_symbols_of_a_corpus_are_ordered_by_frequency():
    tokenizer = build_symbols(count_symbols(['b a', 'b c b', '[MASK] d d']), vocab_size=8, unused=0)
    assert tokenizer.pieces[5:] == ['b', 'd', 'a']
    with pytest.raises(UserError, match='no symbol'):
        build_symbols(count_symbols([' ']), vocab_size=8)
    with pytest.raises(UserError, match=r'config.vocab.size: found 8, with room for no symbol, expected at least 10'):
        build_symbols({'a': 3}, vocab_size=8, unused=4)
