"""Tests words added to a vocabulary."""

import pathlib

import numpy as np
import pytest

from bertjax.config.recipes import pretraining_config
from bertjax.errors import UserError
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.vocabulary import write_candidates
from bertjax.text.added_words import find_previous_ids, insert_words, load_model_tokenizer, rank_candidates, read_words
from bertjax.text.bert_settings import bert_settings
from bertjax.text.special import special_layout
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.wordpiece import WordPieceTokenizer

PIECES = [*special_layout(2), *'abcdeghimnoprstuy', *(f'##{c}' for c in 'abcdeghimnoprstuy'), 'the', '-']


@pytest.fixture(scope='module')
def plain() -> WordPieceTokenizer:
    return WordPieceTokenizer(bert_settings(PIECES, lowercase=True))


def test_words_fill_slots_first_and_are_then_appended(plain: WordPieceTokenizer):
    grown, new = insert_words(plain, [(1, 'Tumor'), (2, 'the'), (3, 'patient'), (4, 'gene'), (5, 'tumor')], 'words.txt')
    assert new == 3 and grown.vocab_size == plain.vocab_size + 1
    assert grown.pieces[1:3] == ['patient', 'tumor'] and grown.pieces[-1] == 'gene'
    assert set(grown.special_ids) == {0, 3, 4, 5, 6}  # A filled slot can be masked and drawn.
    (ids,) = grown.encode(['The TUMOR genes'])
    assert [grown.pieces[i] for i in ids] == ['the', 'tumor', 'gene', '##s']
    assert grown.fingerprint != plain.fingerprint
    assert np.array_equal(grown.encode(['[CLS] mean'])[0], plain.encode(['[CLS] mean'])[0])


def test_the_previous_ids_of_each_word_are_those_of_the_plain_vocabulary(plain: WordPieceTokenizer):
    grown, _ = insert_words(plain, [(1, 'tumor'), (2, 'gene'), (3, 'patient')], 'words.txt')
    previous = find_previous_ids(plain, grown)
    assert sorted(previous) == [1, 2, len(PIECES)]
    assert [plain.pieces[i] for i in previous[1]] == ['g', '##e', '##n', '##e']
    # A vocabulary of the user may also have other pieces than words.
    previous = find_previous_ids(plain, plain.with_pieces([*PIECES, '##the', '\u0301'])).values()
    assert [[plain.pieces[i] for i in ids] for ids in previous] == [['the'], ['[UNK]']]


def test_a_vocabulary_is_compared_with_the_models(plain: WordPieceTokenizer, tmp_path: pathlib.Path):
    plain.save(tmp_path / 'model')
    (tmp_path / 'empty').mkdir()
    grown, _ = insert_words(plain, [(1, 'tumor'), (2, 'gene'), (3, 'patient')], 'words.txt')
    assert load_model_tokenizer(str(tmp_path / 'model'), grown, len(PIECES)).fingerprint == plain.fingerprint
    assert load_model_tokenizer(str(tmp_path / 'empty'), plain, len(PIECES)) is plain
    swapped, shorter = plain.with_pieces([*PIECES[:-2], '-', 'the']), plain.with_pieces(PIECES[:-1])
    for directory, other, found in (
        ('model', swapped, f"no 'the' with id {len(PIECES) - 2}"),
        ('model', shorter, f"no '-' with id {len(PIECES) - 1}"),
        ('empty', shorter, f'{len(PIECES) - 1} pieces'),
    ):
        with pytest.raises(UserError, match=f'config.tokenizer: found {found}'):
            load_model_tokenizer(str(tmp_path / directory), other, len(PIECES))


def test_transformers_gives_the_same_ids(plain: WordPieceTokenizer, tmp_path: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    grown, _ = insert_words(plain, [(1, 'tumor'), (2, 'gene'), (3, 'patient')], 'words.txt')
    grown.save(tmp_path)
    text = 'The tumor-patients gene, genes.'
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(text, add_special_tokens=False)['input_ids']
    assert theirs == grown.encode([text])[0].tolist() == load_tokenizer(tmp_path).encode([text])[0].tolist()
    assert [grown.pieces[i] for i in theirs][1:4] == ['tumor', '-', 'patient']


@pytest.mark.parametrize('word', ['il-2', 'two words', '\u0301'])
def test_a_word_that_bert_splits_is_refused_with_its_line(plain: WordPieceTokenizer, word: str):
    with pytest.raises(UserError, match=r'words\.txt:7: found .* which BERT reads as .* expected one word'):
        insert_words(plain, [(7, word)], 'words.txt')


def test_files_of_words_are_read(tmp_path: pathlib.Path):
    path = tmp_path / 'words.txt'
    path.write_text('tumor\t12\tt ##u\n\n gene \n', encoding='utf-8')
    assert read_words(path) == [(1, 'tumor'), (3, 'gene')]
    path.write_bytes(b'tumor\r\rgene\r')
    assert read_words(path) == [(1, 'tumor'), (3, 'gene')]
    path.write_bytes(b'\n\n')
    with pytest.raises(UserError, match='no word'):
        read_words(path)
    path.write_bytes(b'\xff\xfe')
    with pytest.raises(UserError, match='UTF-8'):
        read_words(path)
    with pytest.raises(UserError, match='no such file'):
        read_words(tmp_path / 'none')


def test_candidates_save_the_most_pieces(plain: WordPieceTokenizer):
    counts = {'tumor': 3, 'the': 100, 'at': 8, 'gene': 1, 'xx': 10}
    ranked = rank_candidates(counts, plain, 5)
    pieces = {'tumor': ['t', '##u', '##m', '##o', '##r'], 'xx': ['[UNK]'], 'at': ['a', '##t']}
    assert ranked == [(word, counts[word], pieces[word]) for word in ('tumor', 'xx', 'at')]


def test_candidates_keep_the_accents_that_the_tokenizer_keeps(tmp_path: pathlib.Path):
    pieces = [*PIECES, 'é', '##é']
    WordPieceTokenizer(bert_settings(pieces, lowercase=True, strip_accents=False)).save(tmp_path)
    config = pretraining_config()
    config.corpus, config.vocab.candidates = str(tmp_path / 'corpus.txt'), 5
    (tmp_path / 'corpus.txt').write_text('Été été the patent\n', encoding='utf-8')
    candidates = write_candidates(pretraining_settings(config), str(tmp_path), tmp_path)
    assert candidates == [('été', 2, ['é', '##t', '##é'])]
