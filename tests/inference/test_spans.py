"""Tests the character spans of the pieces of a sequence."""

import pytest

from bertjax.inference.encode import build_sequences, token_spans
from bertjax.text.vocabulary import train_byte_bpe, train_wordpiece

FIRST, SECOND = 'The cat sat on the mat, it is loud', 'A dog barks at the moon'


@pytest.mark.parametrize('train', [train_wordpiece, train_byte_bpe], ids=['one separator', 'two'])
@pytest.mark.parametrize('longest', [40, 17])
def test_spans_of_pairs_match_the_pieces(train, longest):
    tokenizer = train([FIRST, SECOND] * 30, vocab_size=330, lowercase=False)
    features = build_sequences(tokenizer, [FIRST, SECOND], [SECOND, FIRST], longest)
    starts, ends = token_spans(tokenizer, features, [FIRST, SECOND], [SECOND, FIRST])
    spans = {}
    for row, (first, second) in enumerate([(FIRST, SECOND), (SECOND, FIRST)]):
        start, end = features.offsets[row : row + 2]
        middle = start + int(features.second[row])
        for token in range(start, end):
            text, piece = (first if token < middle else second), features.tokens[token]
            span = text[max(starts[token], 0) : max(ends[token], 0)]
            if piece in tokenizer.special_ids:
                assert (starts[token], ends[token]) == (-1, -1)
            else:
                assert span.strip() == tokenizer.decode([piece]).strip().removeprefix('##')
                spans.setdefault((row, token < middle), []).append(span.strip())
    assert len(spans) == 4 and (longest == 17 or ''.join(spans[0, True]) == FIRST.replace(' ', ''))
