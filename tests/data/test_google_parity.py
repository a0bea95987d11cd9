"""Tests that examples have the statistics of google-research/bert's algorithm."""

import random

import numpy as np
import pytest
from data_fakes import synthetic_split
from google_pairs import google_pass
from marks import slow

from bertjax.data.masking import MaskOptions
from bertjax.data.pairs import PairOptions
from bertjax.data.pretraining import PretrainingExamples

PASSES = 10


@pytest.fixture(scope='module', params=['synthetic', *slow('wikipedia')])
def text(request):
    """Returns a split and its tokenizer."""
    if request.param == 'synthetic':
        return synthetic_split(documents=500, sentences=30), request.getfixturevalue('vocabulary')
    return request.getfixturevalue('wikipedia'), request.getfixturevalue('english')


def examples_of(text, seq_len, **pairs):
    return PretrainingExamples(
        *text,
        seq_len=seq_len,
        max_predictions=seq_len // 6,
        pairs=PairOptions(plans=PASSES, **pairs),
        masking=MaskOptions(),
        seed=0,
        phase=0,
        cache_dir=None,
    )


# Short sequences make the statistics of a pass noisy. Without them, the tolerances are smaller.
@pytest.fixture(scope='module', params=[(128, 0.1), *slow((512, 0.0))], ids=str)
def streams(request, text):
    """Returns S, the share of short sequences, our passes, and Google's passes.

    A pass is a tuple of arrays with one entry per example: tokens of A, tokens of B, and whether B follows A.
    """
    seq_len, short = request.param
    examples = examples_of(text, seq_len, short_probability=short)
    batch = examples.batch(np.arange(examples.cycle_length))
    b = batch['segment_ids'].sum(1) - 1
    a = batch['attention_mask'].sum(1) - 3 - b
    ends = np.cumsum(examples.plan_lengths)[:-1]
    ours = list(zip(np.split(a, ends), np.split(b, ends), np.split(batch['nsp_labels'] == 0, ends), strict=True))
    theirs = []
    for seed in range(PASSES):
        pairs = google_pass(text[0], seq_len, random.Random(seed), short)
        theirs.append(tuple(np.array([getattr(pair, name) for pair in pairs]) for name in ('a', 'b', 'is_next')))
    return seq_len, short, ours, theirs


def figures(passes, seq_len):
    """Returns [passes, 5]: number of examples, share of IsNext, mean tokens of A and of B, share of real positions."""
    return np.array(
        [[len(a), follows.mean(), a.mean(), b.mean(), (a + b + 3).mean() / seq_len] for a, b, follows in passes]
    )


def test_the_mean_figures_of_a_pass_equal_googles(streams):
    seq_len, short, ours, theirs = streams
    ours, theirs = figures(ours, seq_len), figures(theirs, seq_len)
    error = np.sqrt((ours.var(0, ddof=1) + theirs.var(0, ddof=1)) / PASSES)
    print(f'S={seq_len}: ours {ours.mean(0).round(4)}, theirs {theirs.mean(0).round(4)}, error {error.round(4)}')
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
    # The standard errors are small enough for a meaningful comparison.
    assert (error < (0.03 if short else 0.015) * theirs.mean(0)).all()


def test_lengths_have_googles_distribution(streams):
    seq_len, short, ours, theirs = streams
    for name, measure in {'A': lambda a, b: a, 'B': lambda a, b: b, 'both': np.add}.items():
        shares = []
        for passes in (ours, theirs):
            lengths = np.concatenate([measure(a, b) for a, b, _ in passes])
            shares.append(np.cumsum(np.bincount(lengths, minlength=seq_len)) / len(lengths))
        # The largest difference between the cumulative distributions (Kolmogorov-Smirnov).
        distance = np.abs(shares[0] - shares[1]).max()
        print(f'S={seq_len} {name}: {distance:.4f}')
        assert distance < (0.04 if short else 0.02)


@pytest.mark.parametrize('seq_len', [128, 512])
def test_half_of_the_chunks_of_several_sentences_are_next(text, seq_len):
    report = examples_of(text, seq_len).report
    assert abs(report['is_next'] / (1 - report['one_sentence']) - 0.5) < 0.01
    assert 0.05 < report['one_sentence'] < 0.2
    assert report['is_next'] < 0.48


@pytest.mark.slow
@pytest.mark.parametrize('seq_len', [128, 512])
def test_half_of_a_balanced_stream_is_next(text, seq_len):
    examples = examples_of(text, seq_len, balanced=True)
    assert abs(examples.report['is_next'] - 0.5) < 0.01
    batch = examples.batch(np.arange(0, examples.cycle_length, 3))
    assert abs(batch['nsp_labels'].mean() - 0.5) < 0.01 + 2 * 0.5 / np.sqrt(examples.cycle_length / 3)


def test_whole_words_of_real_text_are_masked(wikipedia, english):
    examples = examples_of((wikipedia, english), 128)
    whole = PretrainingExamples(
        wikipedia,
        english,
        seq_len=128,
        max_predictions=20,
        pairs=PairOptions(plans=1),
        masking=MaskOptions(unit='word'),
        seed=0,
        phase=0,
        cache_dir=None,
    )
    for case, broken in ((examples, True), (whole, False)):
        batch = case.batch(np.arange(500))
        chosen = np.zeros(batch['input_ids'].shape, bool)
        row, slot = np.nonzero(batch['masked_weights'])
        chosen[row, batch['masked_positions'][row, slot]] = True
        ids = batch['input_ids'].copy()
        ids[row, batch['masked_positions'][row, slot]] = batch['masked_ids'][row, slot]
        continued = (
            english.continues_word[ids[:, 1:]] & (ids[:, :-1] != english.cls_id) & (ids[:, :-1] != english.sep_id)
        )
        assert (chosen[:, 1:] != chosen[:, :-1])[continued].any() == broken
        assert continued.sum() > 1000
