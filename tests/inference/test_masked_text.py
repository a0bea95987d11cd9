"""Tests that no space is added after a mask in a text."""

import numpy as np
import pytest

from bertjax.inference.fill import MaskedText
from bertjax.text.vocabulary import train_byte_bpe, train_sentencepiece, train_wordpiece

TEXT = 'The cat sat on the mat, it is loud; the hat, it is old.'
TRAINERS = {'wordpiece': train_wordpiece, 'bpe': train_byte_bpe, 'sentencepiece': train_sentencepiece}


@pytest.mark.parametrize('family', TRAINERS)
def test_masking_a_word_changes_no_other_pieces(family):
    size = 60 if family == 'sentencepiece' else 330
    tokenizer = TRAINERS[family]([TEXT] * 40, vocab_size=size, lowercase=False)
    (text_ids,) = tokenizer.encode([TEXT])
    for word, suffix in (('mat', ', it'), ('loud', '; the'), ('old', '.')):
        masked = MaskedText(TEXT.replace(f' {word}{suffix}', f' [MASK]{suffix}'), 'texts[0]', tokenizer, 512)
        (position,) = masked.positions
        count = len(masked.ids) - position - 2  # Pieces after the mask, without [SEP].
        np.testing.assert_array_equal(masked.ids[1:position], text_ids[: position - 1])
        np.testing.assert_array_equal(masked.ids[position + 1 : -1], text_ids[len(text_ids) - count :])
        assert masked.fill({0: tokenizer.encode([word])[0][0]}).endswith(TEXT.partition(suffix)[2])


def test_a_filled_mask_has_no_space_in_a_script_without_spaces():
    text = '東京の空は青い。'
    tokenizer = train_sentencepiece([text, '大阪の海も青い。', 'a sea'] * 40, vocab_size=40, lowercase=False)
    masked = MaskedText(text.replace('空', '[MASK]'), 'texts[0]', tokenizer, 512)
    assert masked.fill({0: tokenizer.pieces.index('海')}) == '東京の海は青い。'
