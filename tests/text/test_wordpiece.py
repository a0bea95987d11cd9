"""Tests that WordPiece ids equal those of transformers for every format of the vocabulary."""

import json
import logging
import pickle
import shutil

import numpy as np
import pytest
import tokenizers
from hard_text import HARD, SPECIAL, random_texts
from marks import slow
from transformers import AutoTokenizer, BertTokenizerFast

from bertjax.text import wordpiece as wordpiece_module
from bertjax.text.bert_settings import bert_settings
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.wordpiece import WordPieceTokenizer


def assert_equal_ids(ours, theirs, texts):
    ids = theirs(list(texts), add_special_tokens=False)['input_ids']
    for text, row, expected in zip(texts, ours.encode(texts), ids, strict=True):
        assert row.dtype == np.int32
        assert row.tolist() == expected, ascii(text)


@pytest.fixture(scope='module')
def saved(wordpiece, tmp_path_factory):
    directory = tmp_path_factory.mktemp('saved')
    wordpiece.save(directory)
    return directory


@pytest.mark.parametrize('bert_vocabulary', ['cased', *slow('uncased')], indirect=True)
def test_ids_of_bert_vocabularies_on_real_text(bert_vocabulary, corpus_lines):
    theirs = BertTokenizerFast(str(bert_vocabulary), do_lower_case='uncased' in bert_vocabulary.name)
    assert_equal_ids(load_tokenizer(bert_vocabulary), theirs, corpus_lines[::20])


def test_ids_of_bert_vocabularies_on_hard_text(bert_vocabulary):
    theirs = BertTokenizerFast(str(bert_vocabulary), do_lower_case='uncased' in bert_vocabulary.name)
    assert_equal_ids(load_tokenizer(bert_vocabulary), theirs, [*HARD, *SPECIAL, *random_texts(1000, seed=1)])


@pytest.mark.parametrize('source', ['.', 'vocab.txt', 'tokenizer.json'])
def test_saved_vocabulary_has_transformers_ids_from_every_file(wordpiece, saved, source):
    ours = load_tokenizer(saved / source)
    theirs = AutoTokenizer.from_pretrained(saved)
    assert (ours.fingerprint, ours.lowercase) == (wordpiece.fingerprint, wordpiece.lowercase)
    assert (theirs.pad_token_id, theirs.cls_token_id, theirs.mask_token_id) == (ours.pad_id, ours.cls_id, ours.mask_id)
    assert len(theirs) == ours.vocab_size
    assert_equal_ids(ours, theirs, [*HARD, *SPECIAL, *random_texts(300, seed=2)])
    pair = theirs('Good day', 'Hello')
    a, b = (ids.tolist() for ids in ours.encode(['Good day', 'Hello']))
    assert pair['input_ids'] == [ours.cls_id, *a, ours.sep_id, *b, ours.sep_id]
    assert pair['token_type_ids'] == [0] * (len(a) + 2) + [1] * (len(b) + 1)


def test_a_directory_that_transformers_wrote_is_read(wordpiece, saved, tmp_path):
    theirs = BertTokenizerFast(str(saved / 'vocab.txt'), do_lower_case=wordpiece.lowercase, strip_accents=False)
    theirs.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours.lowercase == wordpiece.lowercase
    assert_equal_ids(ours, theirs, [*HARD, 'Élan'])
    assert (ours.fingerprint == wordpiece.fingerprint) == (not wordpiece.lowercase)


@pytest.mark.parametrize('lowercase', [True, False])
def test_the_configuration_decides_the_case(saved, tmp_path, lowercase):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({'do_lower_case': lowercase}))
    theirs = BertTokenizerFast(str(saved / 'vocab.txt'), do_lower_case=lowercase)
    for source in ('.', 'vocab.txt', 'tokenizer.json'):
        ours = load_tokenizer(tmp_path / source)
        assert ours.lowercase is lowercase
        assert_equal_ids(ours, theirs, HARD)


def test_case_is_detected_from_the_pieces(wordpiece, saved, tmp_path):
    (tmp_path / 'any-name.txt').write_bytes((saved / 'vocab.txt').read_bytes())
    assert load_tokenizer(tmp_path / 'any-name.txt').lowercase == wordpiece.lowercase
    (tmp_path / 'windows.txt').write_bytes((saved / 'vocab.txt').read_bytes().replace(b'\n', b'\r\n'))
    assert load_tokenizer(tmp_path / 'windows.txt').pieces == wordpiece.pieces


def test_the_attributes_of_a_trained_tokenizer(wordpiece):
    pieces = wordpiece.pieces
    assert [pieces[i] for i in wordpiece.special_ids] == pieces[:12]
    assert pieces[:12] == ['[PAD]', *(f'[unused{i}]' for i in range(7)), '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    assert wordpiece.special_ids.dtype == np.int32
    assert [piece.startswith('##') for piece in pieces] == wordpiece.continues_word.tolist()
    assert len(wordpiece.fingerprint) == 64 and wordpiece.vocab_size == len(pieces)


def test_decode_keeps_special_tokens(wordpiece):
    (ids,) = wordpiece.encode(['return the object'])
    assert wordpiece.decode([wordpiece.cls_id, *ids, wordpiece.mask_id]) == '[CLS] return the object [MASK]'


def test_lone_surrogates_become_replacement_characters(wordpiece):
    encoded = wordpiece.encode(['a \ud800 b', '\ud83d\ude00 c', 'd'])
    expected = wordpiece.encode(['a \ufffd b', '😀 c', 'd'])
    assert [ids.tolist() for ids in encoded] == [ids.tolist() for ids in expected]


def test_pickles_for_worker_processes(wordpiece):
    other = pickle.loads(pickle.dumps(wordpiece))
    assert other.fingerprint == wordpiece.fingerprint
    assert [x.tolist() for x in other.encode(HARD)] == [x.tolist() for x in wordpiece.encode(HARD)]


def test_the_fingerprint_depends_on_the_settings(wordpiece):
    changes = ({'lowercase': True}, {'lowercase': False}, {'lowercase': True, 'handle_chinese_chars': False})
    settings = [bert_settings(wordpiece.pieces, **change) for change in changes]
    assert len({WordPieceTokenizer(some).fingerprint for some in settings}) == 3


@pytest.mark.parametrize('bert_vocabulary', ['uncased', *slow('cased')], indirect=True)
def test_without_nanotoken_the_ids_are_the_same(bert_vocabulary, corpus_lines, monkeypatch, caplog):
    """nanotoken is an optional package; other tests compare its ids with those of transformers."""
    texts = [*HARD, *SPECIAL, *random_texts(300, seed=4), *corpus_lines[::400], 'a \ud800 b']
    fast = load_tokenizer(bert_vocabulary)
    monkeypatch.setattr(wordpiece_module, 'nanotoken', None)
    slow = load_tokenizer(bert_vocabulary)
    assert fast._fast is not None and slow._fast is None and not caplog.text
    assert slow.fingerprint == fast.fingerprint
    for ours, theirs in zip(slow.encode(texts), fast.encode(texts), strict=True):
        assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist()
    ids = fast.encode(['The mistress of the house, [MASK] 3.5 m away.'])[0]
    assert slow.decode(ids) == fast.decode(ids)
    for ours, theirs in zip(slow.encode_with_offsets(texts), fast.encode_with_offsets(texts), strict=True):
        assert repr(ours) == repr(theirs)


def test_tokenizers_encodes_with_settings_that_nanotoken_lacks_and_warns(saved, tmp_path, caplog):
    settings = json.loads((saved / 'tokenizer.json').read_text('utf-8'))
    replace = {'type': 'Replace', 'pattern': {'String': 'cat'}, 'content': 'object'}
    settings['normalizer'] = {'type': 'Sequence', 'normalizers': [replace, settings['normalizer']]}
    settings['truncation'] = {'direction': 'Right', 'max_length': 3, 'strategy': 'LongestFirst', 'stride': 0}
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings), 'utf-8')
    with caplog.at_level(logging.WARNING):
        ours = load_tokenizer(tmp_path)
    assert 'tokenizers' in caplog.text and 'Replace' in caplog.text
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / 'tokenizer.json'))
    theirs.no_truncation()
    for text, ids in zip(HARD, ours.encode(HARD), strict=True):
        assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(['a \ud800 cat'])[0].tolist() == ours.encode(['a \ufffd cat'])[0].tolist()
    assert ours.encode(['the cat'])[0].tolist() == ours.encode(['the object'])[0].tolist()
    ours.save(tmp_path / 'again')
    assert load_tokenizer(tmp_path / 'again').fingerprint == ours.fingerprint
    assert_equal_ids(ours, AutoTokenizer.from_pretrained(tmp_path / 'again'), [*HARD, 'the cat'])


def test_special_tokens_may_have_other_names(saved, tmp_path):
    text = (saved / 'vocab.txt').read_text('utf-8').replace('[PAD]', '<pad>').replace('[MASK]', '<mask>')
    (tmp_path / 'vocab.txt').write_text(text, 'utf-8')
    config = {'pad_token': '<pad>', 'mask_token': {'content': '<mask>', 'special': True}, 'do_lower_case': True}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(config), 'utf-8')
    ours = load_tokenizer(tmp_path)
    assert ours.pieces[ours.pad_id] == '<pad>' and ours.pieces[ours.mask_id] == '<mask>'
    assert ours.encode(['<mask>'])[0].tolist() == [ours.mask_id]
    ours.save(tmp_path / 'again')
    theirs = AutoTokenizer.from_pretrained(tmp_path / 'again')
    assert (theirs.mask_token, theirs.mask_token_id) == ('<mask>', ours.mask_id)
