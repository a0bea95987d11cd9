"""Tests that no space is added after a mask in a text, and that pieces are shown as readable text."""

import itertools

import numpy as np
import pytest

from bertjax.inference.encode import build_sequences
from bertjax.inference.fill import MaskedText
from bertjax.inference.fill_request import answer_table
from bertjax.report.examples import task_examples
from bertjax.terminal import Console
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


@pytest.mark.parametrize('family', ['bpe', 'sentencepiece'])
def test_a_filled_mask_adds_no_space_to_a_sequence(family):
    texts, size = ['ACGTTGATATTTACG', 'ATAACGTTGA'] * 40, {'bpe': 270, 'sentencepiece': 14}[family]
    tokenizer = TRAINERS[family](texts, vocab_size=size, lowercase=False)
    masked = MaskedText('ACGTTGA<mask>TTTACG', 'texts[0]', tokenizer, 512)
    assert masked.fill({0: tokenizer.pieces.index('A')}) == 'ACGTTGAATTTACG'


def test_a_filled_mask_adds_the_space_that_the_model_has_read():
    texts = map(' '.join, itertools.permutations(['the', 'model', 'for', 'sea', 'old']))
    tokenizer = train_sentencepiece(texts, vocab_size=22, lowercase=False)
    masked = MaskedText('the [MASK]for', 'texts[0]', tokenizer, 512)
    assert [tokenizer.pieces[id] for id in masked.ids[-2:-1]] == ['▁for']  # there is no piece without a space
    assert masked.fill({0: tokenizer.pieces.index('▁model')}) == 'the model for'


def test_the_tables_of_answers_decode_bytes(capsys: pytest.CaptureFixture):
    tokenizer = train_byte_bpe(['河边很美。 größer'] * 40, vocab_size=300, lowercase=False)
    stop, word, byte, escape = (
        tokenizer.pieces[tokenizer.encode([text])[0][-1]] for text in ('。', 'größer', '中', '\x1b')
    )
    assert (stop, word, len(byte), escape) == ('ãĢĤ', 'ĠgrÃ¶ÃŁer', 1, 'ě')
    masks = [[{'token': token, 'probability': 0.5, 'text': 'a text'} for token in (stop, byte, escape)]]
    Console(width=80).print(answer_table({'text': 'a', 'masks': masks}, tokenizer))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]] == ['。', byte, escape]
    joint = {'text': 'a', 'filled': 'a', 'tokens': [stop, word], 'order': [0, 1]}
    Console(width=80).print(answer_table(joint, tokenizer))
    assert 'tokens  。 größer' in capsys.readouterr().out


def test_the_report_decodes_bytes():
    tokenizer = train_byte_bpe(['河边很美。 größer'] * 40, vocab_size=300, lowercase=False)
    section = task_examples(build_sequences(tokenizer, ['größer。'], None, 16), [], tokenizer)
    ((_, tokens),) = section.data['rows']
    assert [token.text for token in tokens] == ['<s>', 'größer', '。', '</s>']
