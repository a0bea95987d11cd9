"""Texts with masks are read as the whole text is: what stands behind a mask goes on without a space of its own."""

import numpy as np
import pytest

from bertjax.inference.fill import MaskedText
from bertjax.text.byte_bpe_training import train_byte_bpe
from bertjax.text.vocabulary import train_sentencepiece, train_wordpiece

TEXT = 'The cat sat on the mat, it is loud; the hat, it is old.'
TRAINERS = {'wordpiece': train_wordpiece, 'bpe': train_byte_bpe, 'sentencepiece': train_sentencepiece}


@pytest.mark.parametrize('family', TRAINERS)
def test_a_word_masked_is_the_text_without_it(family):
    size = 60 if family == 'sentencepiece' else 330
    tokenizer = TRAINERS[family]([TEXT] * 40, vocab_size=size, lowercase=False)
    (whole,) = tokenizer.encode([TEXT])
    for word, behind in (('mat', ', it'), ('loud', '; the'), ('old', '.')):
        written = MaskedText(TEXT.replace(f' {word}{behind}', f' [MASK]{behind}'), 'texts[0]', tokenizer, 512)
        (place,) = written.positions
        count = len(written.ids) - place - 2  # without [SEP]
        np.testing.assert_array_equal(written.ids[1:place], whole[: place - 1])
        np.testing.assert_array_equal(written.ids[place + 1 : -1], whole[len(whole) - count :])
        assert written.filled([tokenizer.encode([word])[0][0]]).endswith(TEXT.partition(behind)[2])
