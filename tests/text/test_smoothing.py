"""Tests the smoothed shares of corpora, and vocabularies trained with them."""

import pytest

from bertjax.text.smoothing import smoothed_counts, smoothed_sample, smoothed_shares
from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece


def test_shares_are_smoothed_by_a_power():
    assert smoothed_shares([100, 100, 0], 0.7) == [0.5, 0.5, 0.0]
    assert smoothed_shares([900, 100], 1.0) == [0.9, 0.1]
    assert smoothed_shares([900, 100], 0.0) == [0.5, 0.5]
    # The shares 0.9 and 0.1 to the power of 0.7, as in multilingual BERT.
    assert smoothed_shares([9000, 1000], 0.7)[1] == pytest.approx(0.1**0.7 / (0.9**0.7 + 0.1**0.7))


def test_counts_of_a_small_corpus_increase_and_no_word_is_lost():
    large, small = {'aa': 450, 'b': 1}, {'cc': 50, 'aa': 1}
    total = smoothed_counts([large, small], 0.0)
    assert list(total) == ['aa', 'b', 'cc']
    assert total['b'] == 1 and total['cc'] == pytest.approx(50 * 901 / 102, abs=1) and total['aa'] == 450 + 9
    assert smoothed_counts([large, small], 1.0) == {'aa': 451, 'b': 1, 'cc': 50}


def test_samples_have_their_shares():
    many, few = [f'a{i}' for i in range(900)], [f'b{i}' for i in range(100)]
    mixed = smoothed_sample([many, few], [900, 100], 0.0, 400)
    assert len(mixed) == 400 and sum(text[0] == 'b' for text in mixed) == 200
    assert set(mixed) >= set(few)  # The sentences of the small corpus occur twice.


@pytest.mark.parametrize('train', [train_wordpiece, train_sentencepiece])
def test_smoothing_gives_a_rare_language_more_pieces(train, paragraphs):
    """The rare language is English in Cyrillic letters. Equal texts give equal pieces."""
    script = str.maketrans({chr(ord('a') + i): chr(ord('а') + i) for i in range(26)})
    common, rare = paragraphs[:500], [text.lower().translate(script) for text in paragraphs[500:540]]
    by_size, smoothed, again = (
        train(iter(common), iter(rare), vocab_size=600, lowercase=True, smoothing=power) for power in (1.0, 0.3, 0.3)
    )
    assert smoothed.pieces == again.pieces
    lengths = [sum(map(len, tokenizer.encode(rare))) for tokenizer in (by_size, smoothed)]
    assert lengths[1] < 0.9 * lengths[0]


def test_a_part_of_a_sample_covers_all_of_it():
    samples = [f'a{i}' for i in range(300)], [f'b{i}' for i in range(300)]
    mixed = smoothed_sample(samples, (300, 300), 1.0, 300)
    assert len(mixed) == 300 == len(set(mixed))
    assert {'a0', 'a298', 'b0', 'b298'} <= set(mixed)
