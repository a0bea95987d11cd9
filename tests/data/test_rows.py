"""Tests the random draws of a batch and the layout of rows."""

import numpy as np
import pytest
from data_fakes import FakeVocabulary, MemorySplit
from example_source import documents_of
from google_pairs import truncate as truncate_plainly

from bertjax.data.hashing import Stream, hash_bits
from bertjax.data.pairs import CHUNK, PairOptions
from bertjax.data.rows import (
    Segments,
    count_heads,
    draw_pairs,
    lay_out,
    locate_documents,
    pair_ranges,
    sentence_ranges,
    truncate,
)
from bertjax.data.walking import walk


def segments_of(a: np.ndarray, b: np.ndarray) -> Segments:
    nothing = np.zeros(len(a), np.int64)
    return Segments(nothing, a, nothing + 10_000, b, nothing, b > 0)


def coins(stream: Stream, n: int):
    """Returns a function whose calls return the successive random bits for one segment of row `n`."""
    words = hash_bits(7, stream, n, np.arange(10)).tolist()
    bits = (word >> t & 1 for word in words for t in range(64))
    return lambda: next(bits)


@pytest.mark.parametrize('seq_len', [5, 31, 128])
def test_truncation_equals_googles_loop(seq_len):
    rng = np.random.default_rng(0)
    a, b = rng.integers(1, 300, (2, 60))
    b[:20] = a[:20] + rng.integers(-2, 3, 20)  # In these rows, A and B become equally long.
    b = np.maximum(b, 1)
    n = np.arange(60)
    result = truncate(segments_of(a, b), seq_len, 7, n)
    for i in range(60):
        expected = truncate_plainly(
            int(a[i]), int(b[i]), seq_len - 3, coins(Stream.TRUNCATE_A, i), coins(Stream.TRUNCATE_B, i)
        )
        actual = result.a_length[i], result.b_length[i], result.a_start[i], result.b_start[i] - 10_000
        assert tuple(int(x) for x in actual) == expected
    assert (result.a_length >= 1).all() and (result.b_length >= 1).all()


def test_a_row_without_b_is_truncated_to_s_minus_2():
    a = np.array([4, 30, 31, 500])
    result = truncate(segments_of(a, np.zeros(4, np.int64)), 32, 0, np.arange(4))
    assert result.a_length.tolist() == [4, 30, 30, 30]
    assert (result.a_start + result.a_length <= a).all()
    assert result.b_length.tolist() == [0] * 4


def test_tokens_are_removed_equally_often_from_front_and_end():
    count = np.full(20_000, 100)
    front = count_heads(count, 0, Stream.TRUNCATE_A, np.arange(20_000))
    assert abs(front.mean() - 50) < 5 * 5 / np.sqrt(20_000)
    assert abs(front.var() - 25) < 5 * 25 * np.sqrt(2 / 20_000)
    assert count_heads(np.array([0]), 0, Stream.TRUNCATE_A, np.array([1])).tolist() == [0]


def drawn_pairs(split, seq_len=64, repeats=1, target=None):
    chunks = np.tile(walk(split, PairOptions(), seq_len, 0, 0).chunks, repeats)
    document = locate_documents(split, chunks, PairOptions())
    target = np.full(len(chunks), seq_len - 3) if target is None else target
    return chunks, draw_pairs(split, chunks, target, document, 'nsp', 5, np.arange(len(chunks)))


def test_a_random_b_has_whole_sentences_of_another_document_up_to_the_target(split):
    chunks, drawn = drawn_pairs(split)
    offsets, bounds = split.sentence_offsets, split.document_offsets
    other = chunks['b'] == 0
    assert np.array_equal(drawn.labels, other)
    a_document, b_document = documents_of(split, drawn.a_start), documents_of(split, drawn.b_start)
    assert np.array_equal(b_document != a_document, other)
    stop = drawn.b_start + drawn.b_length
    assert np.isin(drawn.b_start, offsets).all() and np.isin(stop, offsets).all()
    assert (drawn.b_start >= offsets[bounds[b_document]]).all()
    assert (stop <= offsets[bounds[b_document + 1]]).all()
    # B ends with the first sentence that reaches the remaining target, or at the end of its document.
    remaining = np.maximum(61 - drawn.a_length, 1)[other]
    without_last = (offsets[np.searchsorted(offsets, stop) - 1] - drawn.b_start)[other]
    ended = np.isin(stop, offsets[bounds])[other]
    assert (without_last < remaining).all()
    assert ((drawn.b_length[other] >= remaining) | ended).all()
    assert 0 < ended.mean() < 0.5
    # A true B follows A.
    assert np.array_equal(drawn.b_start[~other], (drawn.a_start + drawn.a_length)[~other])


def test_the_other_document_and_its_sentence_are_uniform():
    documents = [[[10] * 9] * 4, [[10] * 9] * 12, [[10] * 9] * 2, [[10] * 9] * 6]
    split = MemorySplit(documents)
    chunks = np.tile(np.array([(4, 1, 0)], CHUNK), 30_000)
    document = locate_documents(split, chunks, PairOptions())
    assert (document == 1).all()
    drawn = draw_pairs(split, chunks, np.full(30_000, 10), document, 'nsp', 5, np.arange(30_000))
    b_document = documents_of(split, drawn.b_start)
    counts = np.bincount(b_document, minlength=4)
    assert counts[1] == 0
    assert np.abs(counts[[0, 2, 3]] - 10_000).max() < 5 * np.sqrt(10_000 * 2 / 3)
    sentence = drawn.b_start[b_document == 3] // 9 - 18
    assert np.abs(np.bincount(sentence, minlength=6) - len(sentence) / 6).max() < 5 * np.sqrt(len(sentence) / 6)


def test_two_documents_are_enough_for_random_pairs():
    split = MemorySplit([[[10] * 5] * 3, [[11] * 5] * 3])
    _, drawn = drawn_pairs(split, seq_len=16, repeats=50)
    a_document, b_document = documents_of(split, drawn.a_start), documents_of(split, drawn.b_start)
    assert ((b_document == 1 - a_document) == (drawn.labels == 1)).all()


def test_the_order_is_swapped_half_of_the_time(split):
    options = PairOptions(mode='sop')
    chunks = np.tile(walk(split, options, 64, 0, 0).chunks, 5)
    document = locate_documents(split, chunks, options)
    drawn = draw_pairs(split, chunks, np.full(len(chunks), 61), document, 'sop', 5, np.arange(len(chunks)))
    assert np.array_equal(drawn.paired, chunks['b'] > 0)
    assert not drawn.labels[~drawn.paired].any()
    assert abs(drawn.labels[drawn.paired].mean() - 0.5) < 5 * 0.5 / np.sqrt(drawn.paired.sum())
    swapped = drawn.labels == 1
    in_order = drawn.paired & ~swapped
    assert np.array_equal((drawn.a_start + drawn.a_length)[in_order], drawn.b_start[in_order])
    assert np.array_equal((drawn.b_start + drawn.b_length)[swapped], drawn.a_start[swapped])


def numbered(documents):
    """Returns a split whose token ids count up from 100, so that a row shows the source of its tokens."""
    count = iter(range(100, 10_000))
    return MemorySplit([[[next(count) for _ in range(length)] for length in document] for document in documents])


def test_pairs_are_laid_out():
    split = numbered([[3, 2], [4]])
    nothing = np.zeros(3, np.int64)
    segments = Segments(
        np.array([0, 5, 0]),
        np.array([3, 4, 1]),
        np.array([3, 0, 0]),
        np.array([2, 0, 4]),
        nothing,
        nothing,
    )
    vocabulary = FakeVocabulary()
    rows, maskable = lay_out(split, pair_ranges(segments, vocabulary.separators), 9, vocabulary)
    assert rows['input_ids'].tolist() == [
        [2, 100, 101, 102, 3, 103, 104, 3, 0],
        [2, 105, 106, 107, 108, 3, 0, 0, 0],
        [2, 100, 3, 100, 101, 102, 103, 3, 0],
    ]
    assert rows['segment_ids'].tolist() == [[0] * 5 + [1] * 3 + [0], [0] * 9, [0] * 3 + [1] * 5 + [0]]
    assert rows['attention_mask'].sum(1).tolist() == [8, 6, 8]
    assert np.array_equal(maskable, rows['input_ids'] >= 100)
    assert rows['input_ids'].dtype == rows['segment_ids'].dtype == np.int32
    vocabulary.separators = 2
    rows, maskable = lay_out(split, pair_ranges(segments, vocabulary.separators), 9, vocabulary)
    assert rows['input_ids'].tolist() == [
        [2, 100, 101, 102, 3, 3, 103, 104, 3],
        [2, 105, 106, 107, 108, 3, 0, 0, 0],
        [2, 100, 3, 3, 100, 101, 102, 103, 3],
    ]
    assert rows['segment_ids'].tolist() == [[0] * 6 + [1] * 3, [0] * 9, [0] * 4 + [1] * 5]
    assert np.array_equal(maskable, rows['input_ids'] >= 100)
    long = segments_of(np.array([9, 9]), np.array([9, 0]))
    result = truncate(long, 12, 0, np.arange(2), separators=2)
    assert (result.a_length + result.b_length).tolist() == [8, 9]


def test_sentences_are_laid_out_with_separators_between_documents():
    split = numbered([[3, 2], [1], [4, 4]])
    chunks = np.array([(1, 6, 3), (10, 4, 1), (5, 1, 1)], CHUNK)
    document = locate_documents(split, chunks, PairOptions(mode='full_sentences'))
    assert document.tolist() == [0, 2, 1]
    rows, maskable = lay_out(split, sentence_ranges(split, chunks, document), 11, FakeVocabulary())
    assert rows['input_ids'].tolist() == [
        [2, 101, 102, 103, 104, 3, 105, 3, 106, 3, 0],
        [2, 110, 111, 112, 113, 3, 0, 0, 0, 0, 0],
        [2, 105, 3, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert not rows['segment_ids'].any()
    assert np.array_equal(rows['attention_mask'], rows['input_ids'] != 0)
    assert np.array_equal(maskable, rows['input_ids'] >= 100)
