"""Tests that walks over sentences equal a plain loop, are complete, and have the statistics of Google's algorithm."""

import itertools
import random
import time

import numpy as np
import pytest
from data_fakes import MemorySplit, synthetic_split
from google_pairs import google_pass

from bertjax.data import walking
from bertjax.data.hashing import Stream, randint, uniform
from bertjax.data.pairs import MODES, PairOptions, check_split, draw_target_lengths
from bertjax.data.walking import calibrate, walk
from bertjax.errors import UserError


def plain_walk(split, seq_len, seed, plan, sop=False):
    """Yields the chunks of Google's loop, sentence by sentence, with the random numbers of `walk`."""
    lengths = np.diff(split.sentence_offsets)
    for document in range(split.num_documents):
        target = draw_target_lengths(np.array([document]), PairOptions(), seq_len, seed, np.array(plan))[0]
        i, last = split.document_offsets[document], split.document_offsets[document + 1] - 1
        chunk = []
        while i <= last:
            chunk.append(i)
            if i == last or lengths[chunk].sum() >= target:
                start, size = chunk[0], len(chunk)
                a = 1 if size == 1 else 1 + int(randint(size - 1, seed, Stream.SPLIT, plan, start))
                together = sop or uniform(seed, Stream.NEXT, plan, start) < 0.5
                yield int(start), a, size - a if size > 1 and together else 0
                if not sop and not (size > 1 and together):
                    i -= size - a
                chunk = []
            i += 1


@pytest.mark.parametrize('mode', ['nsp', 'sop'])
@pytest.mark.parametrize('seq_len', [5, 128, 512])
def test_pairs_equal_those_of_the_plain_loop(split, seq_len, mode):
    chunks = walk(split, PairOptions(mode=mode), seq_len, 9, 2).chunks
    assert chunks.tolist() == list(plain_walk(split, seq_len, 9, 2, sop=mode == 'sop'))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('seq_len', [16, 128])
def test_the_block_size_changes_nothing(split, mode, seq_len, monkeypatch):
    options = PairOptions(mode=mode)
    whole = walk(split, options, seq_len, 0, 1)
    for block in (1, 50, 1000):
        monkeypatch.setattr(walking, '_BLOCK', block)
        parts = walk(split, options, seq_len, 0, 1)
        assert np.array_equal(parts.chunks, whole.chunks)
        assert parts.one_sentence == whole.one_sentence


@pytest.mark.parametrize('mode', MODES)
def test_a_walk_depends_on_seed_and_plan_alone(split, mode):
    options = PairOptions(mode=mode)
    first = walk(split, options, 64, 0, 0).chunks
    assert np.array_equal(first, walk(split, options, 64, 0, 0).chunks)
    always_equal = mode == 'sentences'
    assert np.array_equal(first, walk(split, options, 64, 0, 1).chunks) == always_equal
    assert np.array_equal(first, walk(split, options, 64, 1, 0).chunks) == always_equal


@pytest.mark.parametrize('mode', ['nsp', 'sop'])
@pytest.mark.parametrize('seq_len', [8, 128])
def test_every_plan_has_every_sentence_once_in_a_or_in_a_true_b(split, mode, seq_len):
    for plan in range(3):
        chunks = walk(split, PairOptions(mode=mode), seq_len, 4, plan).chunks
        size = chunks['a'] + chunks['b']
        assert np.array_equal(chunks['start'], np.cumsum(size) - size)
        assert size.sum() == split.num_sentences
        # Every chunk is in one document.
        first, last = (
            np.searchsorted(split.document_offsets, x, 'right') for x in (chunks['start'], chunks['start'] + size - 1)
        )
        assert np.array_equal(first, last)


def rows_of(split, mode, seq_len, plan):
    chunks = walk(split, PairOptions(mode=mode), seq_len, 4, plan).chunks
    return chunks, chunks['start'], chunks['start'] + chunks['a']


@pytest.mark.parametrize('mode', ['full_sentences', 'doc_sentences', 'full_rows'])
@pytest.mark.parametrize('seq_len', [8, 128, 512])
def test_rows_without_pairs_contain_every_token_once(split, mode, seq_len):
    document_tokens = split.sentence_offsets[split.document_offsets]
    for plan in range(3):
        chunks, begin, end = rows_of(split, mode, seq_len, plan)
        assert begin[0] == 0
        assert np.array_equal(begin[1:], end[:-1])
        assert end[-1] == split.num_tokens
        num_documents = np.searchsorted(document_tokens, end) - np.searchsorted(document_tokens, begin, 'right') + 1
        assert np.array_equal(chunks['b'], num_documents)
        assert (chunks['a'] + chunks['b'] + 1 <= seq_len).all()
        assert mode != 'doc_sentences' or (chunks['b'] == 1).all()


@pytest.mark.parametrize('seq_len', [8, 128, 512])
def test_full_rows(split, seq_len):
    """A row lacks one position at each of its ends where a document begins, because it has no separator there."""
    chunks, begin, end = rows_of(split, 'full_rows', seq_len, 0)
    document_tokens = split.sentence_offsets[split.document_offsets]
    lacks = seq_len - (chunks['a'] + chunks['b'] + 1)
    ends = np.isin(begin, document_tokens).astype(int) + np.isin(end, document_tokens)
    assert (lacks >= 0).all() and (lacks <= ends)[1:-1].all()
    assert np.isin(end, split.sentence_offsets).mean() < 0.5  # rows also break within sentences


@pytest.mark.parametrize('mode', ['full_sentences', 'doc_sentences'])
def test_rows_of_sentences_are_full_and_break_between_sentences(split, mode):
    seq_len, offsets = 128, split.sentence_offsets
    chunks, begin, end = rows_of(split, mode, seq_len, 0)
    lengths = np.diff(offsets)
    assert lengths.max() > seq_len - 2  # There are sentences that must be cut.
    cut = ~np.isin(end, offsets)
    inside = np.searchsorted(offsets, end[cut], 'right') - 1
    assert (lengths[inside] > seq_len - 2).all()
    # The next sentence does not fit in a row, except in the first and the last row of the split or, in rows of one
    # document, of each document.
    first_of_next = np.minimum(offsets[np.searchsorted(offsets, end, 'right') % len(offsets)] - end, seq_len - 2)
    document_tokens = offsets[split.document_offsets]
    crosses = np.isin(end, document_tokens)
    full = chunks['a'] + chunks['b'] + 1 + first_of_next + crosses > seq_len
    exempt = np.zeros(len(chunks), bool)
    exempt[[0, -1]] = True
    if mode == 'doc_sentences':
        exempt |= crosses | np.isin(begin, document_tokens)
    assert (full | exempt).all()
    assert exempt.mean() < 0.9


@pytest.mark.parametrize('seq_len', [8, 24, 512])
def test_rows_of_one_sentence(split, seq_len, monkeypatch):
    """Each sentence is one row. A sentence that does not fit has several rows, which are full except for the last."""
    chunks, begin, _ = rows_of(split, 'sentences', seq_len, 0)
    expected = [
        (start, min(seq_len - 2, stop - start), 1)
        for first, stop in itertools.pairwise(split.sentence_offsets.tolist())
        for start in range(first, stop, seq_len - 2)
    ]
    assert chunks.tolist() == expected
    assert (len(begin) == split.num_sentences) == (np.diff(split.sentence_offsets).max() <= seq_len - 2)
    monkeypatch.setattr(walking, '_BLOCK', 50)
    blocks = walk(split, PairOptions(mode='sentences'), seq_len, 4, 1)
    assert blocks.chunks.tolist() == expected


@pytest.mark.parametrize('mode', ['full_sentences', 'doc_sentences'])
def test_plans_cut_a_long_sentence_at_different_tokens(mode):
    split = MemorySplit([[[10] * 1000], [[11] * 1000]])
    starts = [walk(split, PairOptions(mode=mode), 64, 0, plan).chunks['start'] for plan in range(2)]
    assert np.intersect1d(*starts).tolist() in ([0], [0, 1000])
    full = MemorySplit([[[10] * 2 * 62]] * 20)  # sentences of two full rows
    assert len(walk(full, PairOptions(mode='doc_sentences'), 64, 0, 0).chunks) == 40


def test_documents_that_fit_in_one_row_are_not_split():
    split = MemorySplit([[[10] * 20, [10] * 10], [[10] * 30], [[10] * 31]])
    for plan in range(20):
        chunks = walk(split, PairOptions(mode='doc_sentences'), 32, 0, plan).chunks
        assert chunks.tolist()[:2] == [(0, 30, 1), (30, 30, 1)]


def test_a_tenth_of_the_target_lengths_is_uniform_and_the_others_are_maximal():
    documents = np.arange(100_000)
    targets = draw_target_lengths(documents, PairOptions(), 66, 0, np.int64(0))
    short = targets[targets < 63]
    assert targets.max() == 63
    assert abs(len(short) / len(documents) - 0.1 * 61 / 62) < 5 * np.sqrt(0.09 / len(documents))
    counts = np.bincount(short, minlength=63)
    assert not counts[:2].any()
    expected = len(short) / 61
    assert ((counts[2:] - expected) ** 2).sum() / expected < 60 + 5 * np.sqrt(120)
    assert (draw_target_lengths(documents, PairOptions(short_probability=0.0), 66, 0, np.int64(0)) == 63).all()


def test_half_of_the_chunks_of_several_sentences_are_next(split):
    plans = [walk(split, PairOptions(), 128, 1, plan) for plan in range(10)]
    total, single = sum(len(plan.chunks) for plan in plans), sum(plan.one_sentence for plan in plans)
    following = sum(np.count_nonzero(plan.chunks['b']) for plan in plans)
    assert abs(following / (total - single) - 0.5) < 0.01
    assert 0.03 < single / total < 0.2


@pytest.mark.parametrize('seq_len', [64, 128, 512])
def test_balanced_makes_half_of_the_stream_next(split, seq_len):
    options = PairOptions(balanced=True)
    probability = calibrate(split, options, seq_len, 3)
    plans = [walk(split, options, seq_len, 3, plan, probability).chunks for plan in range(10)]
    following = np.count_nonzero(np.concatenate(plans)['b'])
    assert probability > 0.5
    assert abs(following / sum(map(len, plans)) - 0.5) < 0.01


def test_balancing_is_limited_if_most_chunks_have_one_sentence():
    split = MemorySplit([[[10] * 200] * 5 + [[10] * 10] * 2] * 50)
    assert calibrate(split, PairOptions(balanced=True), 64, 0) == 1.0


@pytest.mark.slow
def test_a_hundred_thousand_sentences_take_less_than_a_third_of_a_second():
    split = synthetic_split(documents=2500)
    assert split.num_sentences > 80_000
    best = min(timed(split) for _ in range(3))
    assert best < 0.3 * split.num_sentences / 100_000


def timed(split):
    start = time.perf_counter()
    walk(split, PairOptions(), 128, 0, 0)
    return time.perf_counter() - start


@pytest.mark.parametrize('count', [0, 1])
def test_next_sentence_pairs_need_two_documents(count):
    split = MemorySplit([[[10, 11, 12]] * 9] * count)
    with pytest.raises(UserError, match=r'config\.corpus'):
        check_split(split, PairOptions(), 128)
    if count:
        check_split(split, PairOptions(mode='sop'), 128)


def test_rows_too_short_for_a_pair_are_refused(split):
    with pytest.raises(UserError, match='seq_len'):
        check_split(split, PairOptions(), 4)


@pytest.mark.parametrize(
    'key, options',
    [
        ('pairs.mode', {'mode': 'nps'}),
        ('pair_plans', {'plans': 0}),
        ('pairs.short_probability', {'short_probability': 1.5}),
        ('pairs.balanced', {'mode': 'sop', 'balanced': True}),
    ],
)
def test_invalid_options_raise_an_error_that_names_their_key(key, options):
    with pytest.raises(UserError) as error:
        PairOptions(**options)
    assert error.value.where == f'config.{key}'


@pytest.mark.parametrize('seq_len', [128, 512])
def test_the_number_of_examples_per_pass_equals_googles(split, seq_len):
    ours = [len(walk(split, PairOptions(), seq_len, 0, plan).chunks) for plan in range(40)]
    theirs = [len(google_pass(split, seq_len, random.Random(i))) for i in range(10)]
    error = np.sqrt(np.var(ours) / len(ours) + np.var(theirs) / len(theirs))
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * error
    assert error < 0.03 * np.mean(theirs)  # Small enough for a meaningful comparison.
