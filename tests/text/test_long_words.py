"""Tests that tokenizers do bounded work for words of many thousands of characters."""

import json
import types

import pytest

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.errors import UserError
from bertjax.text.long_words import MAX_WORD, shorten_runs
from bertjax.text.sampling import iter_sentences
from bertjax.text.symbols import count_symbols
from bertjax.text.vocabulary import count_words, train_byte_bpe, train_wordpiece

TEXT = 'some words of a text, and more words of it'


def test_vocabularies_are_trained_on_the_start_of_a_long_word():
    long = 'ab' * (MAX_WORD // 2)
    same = [
        train_byte_bpe([TEXT, word], vocab_size=300, lowercase=True).fingerprint for word in (long, f'{long}cdcdcd')
    ]
    assert same[0] == same[1]
    assert list(iter_sentences([f'{long}cd. Next one.'])) == [*[long[:1000]] * 10, 'Next one.']
    assert count_symbols([f'{long} cd', f'{long}x']) == {long: 1, 'cd': 1}
    assert count_words([f'{long}cd end.{long * 3}.'], True) == {'end': 1, '.': 2}


def test_words_are_counted_from_the_start_of_a_long_word(monkeypatch):
    texts = []
    normalizer = types.SimpleNamespace(normalize_str=lambda text: texts.append(text) or text)
    monkeypatch.setattr('bertjax.text.vocabulary.normalizers.BertNormalizer', lambda **options: normalizer)
    assert count_words([f'{"x" * 100}, {"é" * 3}{"x" * 5000}.{"y" * 101}'], True) == {'x' * 100: 1, ',': 1, '.': 1}
    assert sorted(texts) == sorted([f'{"x" * 100},', f'{"é" * 3}{"x" * 101}.{"y" * 101}'])


def test_ordinary_text_is_unchanged():
    text = f'{TEXT} {"x" * (MAX_WORD - 1)}_{"=" * 3000}{" " * 3000}' * 2
    assert list(shorten_runs([text, TEXT])) == [text, TEXT]
    assert list(shorten_runs(['x' * MAX_WORD + 'y_', '=' * 3 * MAX_WORD + 'x'])) == [
        'x' * MAX_WORD + '_',
        '=' * MAX_WORD + 'x',
    ]


def test_the_error_for_text_without_spaces_suggests_sentencepiece():
    with pytest.raises(UserError) as caught:
        train_wordpiece(['x' * 5000], vocab_size=90, lowercase=True)
    assert 'up to 100 characters' in caught.value.found and 'config.vocab.family=sentencepiece' in caught.value.fix


def test_a_sentence_of_megabytes_in_a_json_line_is_encoded_in_parts(tmp_path):
    """A long line of a text file would be cut when it is read."""
    tokenizer = train_wordpiece([TEXT] * 9, vocab_size=90, lowercase=True)
    lines = [{'text': f'{TEXT}. A {"x" * (1 << 20)} end'}, {'text': TEXT}]
    (tmp_path / 'a.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    options = CorpusOptions(heldout=0, workers=1, split_sentences=False)
    report = build_store(str(tmp_path / 'a.jsonl'), tmp_path / 'store', tokenizer, options)
    assert report['documents'] == 2 and report['sentences'] == 4
