"""Tests the truncation and the windows of texts."""

import json

import numpy as np
import pytest
from text_world import LETTERS, learned, sequences

from bertjax.tasks.sentence.features import text_features

# Each letter is a token. A seq_len of 12 leaves 10 tokens for one text and 9 for two.
LONG = ' '.join(LETTERS)


def long_rows(tokenizer, first, second=None, **options) -> list[str]:
    pairs = None if second is None else [second]
    options = {'seq_len': 12, 'long': 'truncate', 'stride': 0, **options}
    return sequences(text_features([first], pairs, None, tokenizer, **options), tokenizer)


def test_long_texts_are_truncated_or_split_into_windows(tokenizer):
    assert long_rows(tokenizer, LONG) == ['(abcdefghij|']
    assert long_rows(tokenizer, LONG, long='head_tail') == ['(abctuvwxyz|']
    windows = ['(abcdefghij|', '(fghijklmno|', '(klmnopqrst|', '(pqrstuvwxy|', '(qrstuvwxyz|']
    assert long_rows(tokenizer, LONG, long='windows') == windows
    assert long_rows(tokenizer, LONG, long='windows', stride=10) == [windows[0], windows[2], windows[4]]
    for long in ('truncate', 'head_tail', 'windows'):  # Texts that fit are unchanged.
        assert long_rows(tokenizer, LONG[:19], long=long) == ['(abcdefghij|']
        assert long_rows(tokenizer, '', long=long) == ['(|']


def test_long_texts_are_noted(tokenizer):
    texts = [LONG, 'a', LONG]
    for long, effect in (('truncate', 'lose their end'), ('windows', 'are read in windows')):
        features = text_features(texts, None, None, tokenizer, seq_len=12, long=long, stride=0)
        assert features.notes == (f'2 of 3 records are longer than config.seq_len=12 and {effect}',)
    assert not text_features(['a'], None, None, tokenizer, seq_len=12, long='windows', stride=0).notes


def test_head_and_tail_have_128_and_382_of_510_tokens(tokenizer):
    text = 'a ' * 128 + 'b ' * 1000 + 'c ' * 382
    assert long_rows(tokenizer, text, seq_len=512, long='head_tail') == ['(' + 'a' * 128 + 'c' * 382 + '|']


def test_long_pairs_are_truncated_or_split_into_windows(tokenizer):
    assert long_rows(tokenizer, 'x y', LONG, long='head_tail') == ['(xy|abvwxyz|']
    assert long_rows(tokenizer, LONG, 'x y', long='head_tail') == ['(abvwxyz|xy|']
    assert long_rows(tokenizer, 'x y', LONG[:21], long='windows', stride=3) == [
        '(xy|abcdefg|',
        '(xy|defghij|',
        '(xy|efghijk|',
    ]
    # The shorter text keeps at most half of the tokens.
    assert long_rows(tokenizer, LONG[:11], LONG, long='windows', stride=5)[0] == '(abcd|abcde|'


@pytest.mark.parametrize(
    'lengths', [(3, 20), (20, 3), (20, 20), (5, 5), (20, 21), (21, 20), (4, 9), (5, 6), (0, 20), (10, 4)]
)
@pytest.mark.parametrize('seq_len', [11, 12])
def test_truncated_pairs_equal_transformers(tokenizer, tmp_path, lengths: tuple[int, int], seq_len: int):
    transformers = pytest.importorskip('transformers', reason='compares with its tokenizer')
    tokenizer.save(tmp_path / 'saved')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / 'saved'))
    first, second = (' '.join(LETTERS[:n]) for n in lengths)
    encoded = theirs(first, second, truncation=True, max_length=seq_len)
    options = {'seq_len': seq_len, 'long': 'truncate', 'stride': 0}
    features = text_features([first], [second], None, tokenizer, **options)
    assert features.tokens.tolist() == encoded['input_ids']
    assert len(features.tokens) - features.second[0] == sum(encoded['token_type_ids'])


def test_windows_share_the_weight_of_a_record_and_their_logits_are_averaged(tokenizer, tmp_path):
    (tmp_path / 'train.jsonl').write_text(
        json.dumps({'text': LONG, 'label': 'x'}) + '\n' + json.dumps({'text': 'a b', 'label': 'y'}) + '\n'
    )
    task = learned(tmp_path, seq_len=12, long='windows', dev_fraction=0.0)
    records = task.records('train')
    features = task.features(records, tokenizer, training=True)
    assert features.record.tolist() == [0] * 5 + [1] and features.row['labels'].tolist() == [0] * 5 + [1]
    np.testing.assert_allclose(features.row['weights'], [0.2] * 5 + [1])
    logits = np.array([[1, 0], [2, 0], [3, 0], [4, 0], [-5, 0], [0, 7]], np.float32)
    first, second = task.predictions(records, features, {'logits': list(logits)})
    assert first.tolist() == [1, 0]
    assert second.tolist() == [0, 7]
