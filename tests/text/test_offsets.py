"""Tests the offsets of pieces in the original text."""

import json
import pickle

import numpy as np
import pytest
import tokenizers
from hard_text import HARD, SPECIAL, random_texts

from bertjax.errors import UserError
from bertjax.text.tokenizer import load_tokenizer

SURROGATES = ['a \ud800 b', '\ud83d\ude00 c \ud83d x', '\ude00\ud83d', 'é\ud83d\ude00\ud83d\ude00z']
TEXTS = [*HARD, *SPECIAL, *SURROGATES, *random_texts(300, seed=7)]


@pytest.fixture(scope='module')
def exported(sentencepiece_model, tmp_path_factory):
    """Returns the model of `sentencepiece_model`, loaded only from tokenizer.json."""
    directory = tmp_path_factory.mktemp('exported')
    sentencepiece_model.save(directory)
    (directory / 'tokenizer.model').unlink()
    return load_tokenizer(directory)


def assert_ids_of_encode(tokenizer, texts):
    """Checks that ids equal those of `encode`, that offsets ascend within the text, and that a str is refused."""
    for encode in (tokenizer.encode, tokenizer.encode_flat, tokenizer.encode_with_offsets):
        with pytest.raises(UserError, match='expected a list of texts, not one text'):
            encode('a text')
    encoded = tokenizer.encode_with_offsets(texts)
    for text, ids, (located_ids, starts, ends) in zip(texts, tokenizer.encode(texts), encoded, strict=True):
        assert located_ids.dtype == starts.dtype == ends.dtype == np.int32
        assert located_ids.tolist() == ids.tolist(), ascii(text)
        assert len(located_ids) == len(starts) == len(ends)
        offsets = np.stack([starts, ends])
        assert (starts <= ends).all() and (np.diff(offsets) >= 0).all(), ascii(text)
        assert not len(located_ids) or (starts[0] >= 0 and ends[-1] <= len(text)), ascii(text)
    return encoded


def pieces_with_text(tokenizer, text):
    ((ids, starts, ends),) = tokenizer.encode_with_offsets([text])
    return [(tokenizer.pieces[i], text[a:b]) for i, a, b in zip(ids, starts, ends, strict=True)]


def test_wordpiece_has_the_ids_of_encode(wordpiece):
    assert_ids_of_encode(wordpiece, TEXTS)


def test_sentencepiece_has_the_ids_of_encode(sentencepiece_model):
    assert_ids_of_encode(sentencepiece_model, TEXTS)


def test_tokenizer_json_has_the_ids_of_encode(exported):
    assert_ids_of_encode(exported, TEXTS)


def test_tokenizer_json_agrees_with_the_model(sentencepiece_model, exported, paragraphs):
    texts = [*paragraphs[:300], 'Two  spaces\tand\r\na line', '  lead', 'ﬁne 😀 e\u0301x', '']
    for text, ours, other in zip(
        texts, sentencepiece_model.encode_with_offsets(texts), exported.encode_with_offsets(texts), strict=True
    ):
        assert [x.tolist() for x in ours] == [x.tolist() for x in other], ascii(text)


def test_a_wordpiece_is_the_normalized_text_of_its_span(bert_vocabulary, corpus_lines):
    tokenizer = load_tokenizer(bert_vocabulary)
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=tokenizer.lowercase)
    lines = [*corpus_lines[::400], 'İstanbul Ångström cafe\u0301s\u0323 x', '\u0301start 你好e\u0301']
    for line, (ids, starts, ends) in zip(lines, assert_ids_of_encode(tokenizer, lines), strict=True):
        for i, start, end in zip(ids, starts, ends, strict=True):
            if i != tokenizer.unk_id:
                piece = tokenizer.pieces[i].removeprefix('##')
                assert normalizer.normalize_str(line[start:end]).strip() == piece, (line, line[start:end])


def test_offsets_are_counted_in_characters(bert_vocabulary):
    tokenizer = load_tokenizer(bert_vocabulary)
    text = '😀 a\r\n\tb \U0001d4b3 [SEP]c'
    assert [part for _, part in pieces_with_text(tokenizer, text)] == ['😀', 'a', 'b', '\U0001d4b3', '[SEP]', 'c']


def test_marks_stay_with_their_letter(bert_vocabulary):
    tokenizer = load_tokenizer(bert_vocabulary)
    parts = [part for _, part in pieces_with_text(tokenizer, 'a cafe\u0301 (e\u0323\u0301), zero\u200b')]
    assert ''.join(parts) == 'acafe\u0301(e\u0323\u0301),zero'


def test_spaces_belong_to_no_piece(sentencepiece_model, exported):
    for tokenizer in (sentencepiece_model, exported):
        text = '  the  object\tis\u3000ﬁne\r\n😀 e\u0301x  '
        parts = [part for _, part in pieces_with_text(tokenizer, text)]
        assert not any(part != part.strip() for part in parts)
        # If a character becomes several pieces, each has its span.
        joined = ''.join(parts).replace('ﬁﬁ', 'ﬁ')
        assert joined == ''.join(text.split())
        assert all(part == '' for piece, part in pieces_with_text(tokenizer, text) if piece == '▁')


def test_pairs_of_surrogates_are_two_characters(wordpiece, sentencepiece_model, exported):
    for tokenizer in (wordpiece, sentencepiece_model, exported):
        ((ids, starts, ends),) = tokenizer.encode_with_offsets(['\ud83d\ude00 return \ud800'])
        word = tokenizer.encode(['return'])[0]
        at = ids.tolist().index(word[0])
        assert ids[at : at + len(word)].tolist() == word.tolist()
        assert (starts[at], ends[at + len(word) - 1]) == (3, 9)


def test_offsets_with_settings_that_nanotoken_lacks(wordpiece, tmp_path):
    wordpiece.save(tmp_path)
    settings = json.loads((tmp_path / 'tokenizer.json').read_text('utf-8'))
    replace = {'type': 'Replace', 'pattern': {'String': 'cat'}, 'content': 'object'}
    settings['normalizer'] = {'type': 'Sequence', 'normalizers': [replace, settings['normalizer']]}
    (tmp_path / 'tokenizer.json').write_text(json.dumps(settings), 'utf-8')
    tokenizer = load_tokenizer(tmp_path)
    assert pieces_with_text(tokenizer, 'cat (1) x')[-4:] == [('(', '('), ('1', '1'), (')', ')'), ('x', 'x')]
    assert_ids_of_encode(tokenizer, TEXTS)


def test_many_texts_are_encoded_in_order(wordpiece, sentencepiece_model, exported):
    texts = [f'{n} return' for n in range(2500)]
    for tokenizer in (wordpiece, sentencepiece_model, exported):
        assert_ids_of_encode(pickle.loads(pickle.dumps(tokenizer)), texts)
