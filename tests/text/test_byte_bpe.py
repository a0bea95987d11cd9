"""Tests that byte-level BPE gives transformers' ids."""

import json
import pathlib

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.text.tokenizer import load_tokenizer
from bertjax.text.vocabulary import train_byte_bpe

TEXTS = [
    'The cat sat on the mat, and the cat sat on the hat.',
    ' The naïve café owner said: "the cat is fat"\u2026',
    "Don't!  Two  spaces,\ttabs\nand 1234 numbers; the <mask> sat <mask>.",
    '猫が座った 🐈\u200d⬛ e\u0301 \ud83d',
    '',
]
CORPUS = TEXTS * 20


@pytest.fixture(scope='module')
def trained():
    return train_byte_bpe(CORPUS, vocab_size=400, lowercase=False, unused=3)


def _theirs(directory):
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    return transformers.AutoTokenizer.from_pretrained(directory)


def _assert_same_ids(ours, theirs, texts=TEXTS[:3]):
    for text in texts:
        assert ours.encode([text])[0].tolist() == theirs(text, add_special_tokens=False)['input_ids'], text


def test_a_trained_tokenizer_has_transformers_ids(trained, tmp_path):
    trained.save(tmp_path)
    theirs = _theirs(tmp_path)
    _assert_same_ids(trained, theirs)
    ids = theirs(TEXTS[0], TEXTS[1])['input_ids']
    a, b = trained.encode(TEXTS[:2])
    cls, sep = trained.cls_id, trained.sep_id
    assert ids == [cls, *a, sep, sep, *b, sep] and trained.separators == 2
    assert theirs.mask_token == '<mask>' and theirs.pad_token_id == trained.pad_id == 1
    again = load_tokenizer(tmp_path)
    assert again.fingerprint == trained.fingerprint and again.separators == 2 and again.family == 'bpe'


def test_training_gives_equal_bytes_and_the_requested_size(trained, tmp_path):
    assert trained.pieces[:8] == ['<s>', '<pad>', '</s>', '<unk>', '<mask>', '[unused0]', '[unused1]', '[unused2]']
    assert trained.vocab_size <= 400 and set(trained.special_ids) == set(range(8))
    for name in ('a', 'b'):
        train_byte_bpe(iter(CORPUS), vocab_size=350, lowercase=True).save(tmp_path / name)
    assert (tmp_path / 'a' / 'tokenizer.json').read_bytes() == (tmp_path / 'b' / 'tokenizer.json').read_bytes()
    lower = load_tokenizer(tmp_path / 'a')
    assert lower.lowercase and not trained.lowercase and lower.vocab_size == 350
    assert np.array_equal(lower.encode(['THE CAT'])[0], lower.encode(['the cat'])[0])
    _assert_same_ids(lower, _theirs(tmp_path / 'a'))


def test_decoding_restores_every_text(trained):
    for text in TEXTS[:2]:
        assert trained.decode(trained.encode([text])[0]).strip() == text.strip()
    assert trained.unk_id not in np.concatenate(trained.encode(TEXTS[:4]))


def test_offsets_are_positions_in_the_text(trained):
    for text, (ids, starts, ends) in zip(TEXTS, trained.encode_with_offsets(TEXTS), strict=True):
        assert ids.tolist() == trained.encode([text])[0].tolist()
        assert (np.diff(starts) >= 0).all() and (starts <= ends).all()
        words = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        assert not any(word != word.strip() for word in words)
    ids, starts, ends = trained.encode_with_offsets(['the cat'])[0]
    word_starts = starts[~trained.continues_word[ids]]
    assert word_starts.tolist() == [0, 4] and ends[-1] == 7


def _as_two_files(tokenizer, directory):
    """Writes vocab.json and merges.txt, the files of RoBERTa's first releases."""
    tokenizer.save(directory)
    path = directory / 'tokenizer.json'
    model = json.loads(path.read_text())['model']
    (directory / 'vocab.json').write_text(json.dumps(model['vocab']))
    lines = ['#version: 0.2', *(' '.join(pair) for pair in model['merges'])]
    (directory / 'merges.txt').write_text('\n'.join(lines) + '\n')
    path.unlink()
    (directory / 'tokenizer_config.json').write_text('{"model_max_length": 512}')


def test_vocab_json_and_merges_txt_are_read(trained, tmp_path):
    _as_two_files(trained, tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours.family == 'bpe' and ours.separators == 2 and ours.vocab_size == trained.vocab_size
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    _assert_same_ids(ours, transformers.RobertaTokenizer.from_pretrained(tmp_path), TEXTS[:2])
    prefixed = {'add_prefix_space': True}
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps(prefixed))
    spaced = load_tokenizer(tmp_path / 'vocab.json')
    assert spaced.encode(['cat'])[0].tolist() == ours.encode([' cat'])[0].tolist() != ours.encode(['cat'])[0].tolist()
    (tmp_path / 'merges.txt').write_text('#version: 0.2\nt h\nbroken\n')
    with pytest.raises(UserError, match=r"merges.txt:3: found 'broken', expected two pieces"):
        load_tokenizer(tmp_path)
    (tmp_path / 'merges.txt').unlink()
    with pytest.raises(UserError, match=r'merges.txt: found no such file'):
        load_tokenizer(tmp_path)


def test_a_bpe_that_marks_the_ends_of_words_is_refused(trained, tmp_path):
    """HerBERT has the files of RoBERTa, but no byte-level pieces."""
    _as_two_files(trained, tmp_path)
    vocab = json.loads((tmp_path / 'vocab.json').read_text())
    (tmp_path / 'vocab.json').write_text(json.dumps({**vocab, 'cat</w>': len(vocab)}))
    with pytest.raises(UserError, match=r"vocab\.json: found pieces that end in '</w>', expected a byte-level BPE"):
        load_tokenizer(tmp_path)


def test_files_that_transformers_saves_are_read(trained, tmp_path):
    """RobertaTokenizer writes a different tokenizer.json."""
    transformers = pytest.importorskip('transformers', reason='compares with transformers')
    _as_two_files(trained, tmp_path)
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / 'saved')
    (tmp_path / 'saved' / 'tokenizer_config.json').unlink()
    ours = load_tokenizer(tmp_path / 'saved')  # Only RoBERTa's names identify the special tokens.
    assert ours.separators == 2 and ours.mask_id == trained.mask_id
    _assert_same_ids(ours, theirs)


def test_a_small_size_empty_text_and_invalid_ids_are_errors(tmp_path):
    with pytest.raises(UserError, match=r'config\.vocab\.size: found 261, .* too small .*expected at least 262'):
        train_byte_bpe(['a a'], vocab_size=261, lowercase=False)
    with pytest.raises(UserError, match=r'config\.vocab\.size: found 200, which is too small for the 256 bytes'):
        train_byte_bpe(CORPUS, vocab_size=200, lowercase=False)
    with pytest.raises(UserError, match='no text'):
        train_byte_bpe([], vocab_size=400, lowercase=False)
    pathlib.Path(tmp_path, 'vocab.json').write_text('{"a": "x"}')
    pathlib.Path(tmp_path, 'merges.txt').write_text('')
    with pytest.raises(UserError, match='1 pieces without <pad>'):
        load_tokenizer(tmp_path)
