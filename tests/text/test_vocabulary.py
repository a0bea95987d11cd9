"""Tests that training is deterministic, gives the requested size and is as good as the libraries."""

import hashlib
import logging
import os
import pathlib
import subprocess
import sys

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertjax.errors import UserError
from bertjax.text import vocabulary
from bertjax.text.merges import learn_merges
from bertjax.text.sampling import sample
from bertjax.text.vocabulary import train_byte_bpe, train_sentencepiece, train_wordpiece

_PROGRAM = """
import os, sys
if len(sys.argv) > 2: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pydoc_data.topics import topics
from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece
texts = [topics[name] for name in sorted(topics)]
train_wordpiece(iter(texts), vocab_size=3000, lowercase=True, unused=5).save(sys.argv[1] + '/wordpiece')
for kind in ('unigram', 'bpe'):
    train_sentencepiece(iter(texts), vocab_size=2000, model_type=kind, lowercase=False, seed=3,
                        sample_sentences=1500).save(sys.argv[1] + '/' + kind)
"""


@pytest.mark.slow
def test_equal_bytes_whatever_the_hash_seed_and_number_of_cores(tmp_path, repository):
    digests = []
    for name, seed, more in (('a', '1', []), ('b', '2', ['one core'])):
        environment = {**os.environ, 'PYTHONHASHSEED': seed, 'PYTHONPATH': str(repository)}
        directory = tmp_path / name
        subprocess.run([sys.executable, '-c', _PROGRAM, str(directory), *more], env=environment, check=True)
        files = sorted(path for path in directory.rglob('*') if path.is_file())
        digests.append({str(p.relative_to(directory)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files})
    assert digests[0] == digests[1]
    assert {pathlib.Path(name).name for name in digests[0]} == {
        'vocab.txt', 'tokenizer.json', 'tokenizer_config.json', 'tokenizer.model',
    }  # fmt: skip


@pytest.mark.parametrize('size', [500, 1234, 3000])
def test_wordpiece_has_the_requested_size_and_order(paragraphs, size):
    pieces = train_wordpiece(paragraphs, vocab_size=size, lowercase=True, unused=4).pieces
    assert len(pieces) == len(set(pieces)) == size
    assert pieces[:9] == [
        '[PAD]',
        '[unused0]',
        '[unused1]',
        '[unused2]',
        '[unused3]',
        '[UNK]',
        '[CLS]',
        '[SEP]',
        '[MASK]',
    ]
    plain = [piece for piece in pieces if len(piece) == 1]
    inside = [piece for piece in pieces if len(piece) == 3 and piece.startswith('##')]
    assert pieces[9 : 9 + len(plain) + len(inside)] == sorted(plain) + sorted(inside)


@pytest.mark.parametrize('kind', ['unigram', 'bpe'])
@pytest.mark.parametrize('size', [400, 1111])
def test_sentencepiece_has_the_requested_size(paragraphs, kind, size):
    tokenizer = train_sentencepiece(paragraphs, vocab_size=size, model_type=kind, lowercase=True, sample_sentences=2000)
    assert tokenizer.vocab_size == size and tokenizer.lowercase


def test_merges_are_those_worked_out_by_hand():
    words = {'aab': 4, 'aac': 3, 'xab': 2, 'zz': 1, 'q?': 100}
    start = ['a', 'x', 'z', '##a', '##b', '##c', '##z', 'q']
    # Counts: a ##a 7, ##a ##b 6. Merging aa leaves aa ##b 4, aa ##c 3, and 2 each for ##a ##b (first) and x ##a.
    assert learn_merges(words, start, max_new_pieces=9, min_frequency=2) == ['aa', 'aab', 'aac', '##ab', 'xab']
    assert learn_merges(words, start, max_new_pieces=9, min_frequency=1)[-1] == 'zz'
    assert learn_merges(words, start, max_new_pieces=2, min_frequency=1) == ['aa', 'aab']


def test_a_piece_from_two_merges_counts_once():
    pieces = learn_merges(
        {'abc': 5, 'ab': 9, 'xbc': 9, 'abcd': 2}, ['a', 'x', '##b', '##c', '##d'], max_new_pieces=99, min_frequency=1
    )
    assert len(pieces) == len(set(pieces))


@pytest.mark.slow
def test_texts_have_at_most_1_percent_more_pieces_than_with_tokenizers(paragraphs):
    reference = tokenizers.Tokenizer(models.WordPiece(unk_token='[UNK]'))
    reference.normalizer = normalizers.BertNormalizer(lowercase=True)
    reference.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
    trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special, show_progress=False, min_frequency=2)
    reference.train_from_iterator(paragraphs, trainer)
    ours = train_wordpiece(paragraphs, vocab_size=2000, lowercase=True)
    theirs = sum(len(encoding.ids) for encoding in reference.encode_batch(paragraphs, add_special_tokens=False))
    assert sum(map(len, ours.encode(paragraphs))) <= 1.01 * theirs
    assert len(set(ours.pieces) & set(reference.get_vocab())) > 0.93 * 2000


def test_the_training_text_has_no_unknown_words(paragraphs):
    ours = train_wordpiece(paragraphs, vocab_size=2000, lowercase=False)
    ids = [
        index
        for row in ours.encode([p for p in paragraphs if max(map(len, p.split()), default=0) < 50])
        for index in row
    ]
    assert len(ids) > 100_000 and ids.count(ours.unk_id) < 1e-4 * len(ids)


def test_a_small_text_gives_fewer_pieces_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        wordpiece = train_wordpiece(['the cat the cat'] * 3, vocab_size=1000, lowercase=True)
        assert '1,000' in caplog.text
        caplog.clear()
        unigram = train_sentencepiece(['the cat sat'] * 30, vocab_size=1000, lowercase=True)
        assert '1,000' in caplog.text
    assert {'the', 'cat'} < set(wordpiece.pieces) and wordpiece.vocab_size < 30
    assert unigram.vocab_size < 100


@pytest.mark.parametrize('train', [train_wordpiece, train_sentencepiece])
def test_no_text_or_a_small_vocab_size_is_an_error(train, paragraphs):
    with pytest.raises(UserError, match='no text'):
        train(iter([]), vocab_size=100, lowercase=True)
    with pytest.raises(UserError, match='no text'):
        train(['', ' \n'], vocab_size=100, lowercase=True)
    with pytest.raises(UserError, match=r'config\.vocab\.size'):
        train(paragraphs, vocab_size=20, lowercase=True)
    with pytest.raises(UserError, match=r'config\.vocab\.size'):
        train(paragraphs, vocab_size=300, lowercase=True, unused=290)


def test_a_language_with_many_characters_gets_a_piece_for_each():
    ideographs = [chr(0x4E00 + i) for i in range(3000)]
    texts = [''.join(ideographs[i::3]) for i in range(3)] * 3
    tokenizer = train_wordpiece(texts, vocab_size=4000, lowercase=True)
    assert len(set(ideographs) & set(tokenizer.pieces)) >= 0.9995 * len(ideographs)
    assert not any(piece.startswith('##') for piece in tokenizer.pieces)


def test_rare_characters_have_no_piece():
    text = 'common words of a small alphabet ' * 10_000
    tokenizer = train_wordpiece([text, ''.join(chr(0x400 + i) for i in range(90))], vocab_size=120, lowercase=False)
    alphabet = [piece for piece in tokenizer.pieces if len(piece.removeprefix('##')) == 1]
    assert {'c', '##c', 'w'} < set(alphabet) and len(alphabet) <= 115 // 2
    assert 'common' in tokenizer.pieces


def test_memory_is_bounded_and_frequent_words_survive(monkeypatch):
    monkeypatch.setattr(vocabulary, 'MAX_WORDS', 200)
    texts = (f'frequent number{i:05d} {"x" * 70}{i}' for i in range(3000))
    words = vocabulary.count_words(texts, lowercase=True)
    assert len(words) <= 2 * 200 and words['frequent'] == 3000


def test_samples_are_seeded_and_cover_the_stream():
    stream = [f'sentence {i}' for i in range(2000)]
    a, b, c = (sample(iter(stream), 200, seed)[0] for seed in (1, 1, 2))
    assert a == b != c and len(set(a)) == 200
    assert 60 < sum(int(text.split()[1]) < 1000 for text in a) < 140
    assert sample(iter(stream[:50]), 200, 1) == (stream[:50], 50)


@pytest.mark.slow
def test_text_with_invalid_characters_trains(paragraphs):
    texts = ['lone \ud800 surrogate', 'nul \x00 byte', 'x' * 5000, '\u2585 reserved', *paragraphs]
    assert 'the' in train_wordpiece(texts, vocab_size=400, lowercase=True).pieces
    assert '▁the' in train_sentencepiece(texts, vocab_size=400, lowercase=True).pieces


@pytest.mark.parametrize('train', [train_sentencepiece, train_byte_bpe])
def test_pieces_of_a_script_without_spaces_are_words(train):
    text = ['東京の空は青いです。', '「大阪」の海も青い。', 'ภาษาไทย', 'the théâtre of Tokyo, ấm áp'] * 20
    tokenizer = train(text, vocab_size=340 if train is train_byte_bpe else 70, lowercase=False)
    (ids,), (words,) = tokenizer.encode(['東京の海は青いです。']), tokenizer.encode(['the théâtre, ấm áp'])
    characters = [tokenizer.decode([i])[:1] for i in ids]
    continues = tokenizer.continues_word[ids]
    assert not any(c and character != '\ufffd' for c, character in zip(continues, characters, strict=True))
    assert len(ids) > 3 and (~continues).sum() > 3
    assert (~tokenizer.continues_word[words]).sum() == 4
