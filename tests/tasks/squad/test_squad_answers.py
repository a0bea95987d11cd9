"""Tests the n best answers against a search of all spans."""

import numpy as np
import pytest
from squad_world import ask, letters_tokenizer, oracle

from bertjax.tasks.squad.answers import NO_CHOICE, best_spans
from bertjax.tasks.squad.task import SquadTask


@pytest.fixture(scope='module')
def letters():
    return letters_tokenizer()


def features_of(questions, tokenizer, seq_len=24):
    return SquadTask('', seq_len, stride=5, max_query=8).features(questions, tokenizer, training=False)


def predict(questions, features, outputs, *, n_best=20, max_answer=30, with_null=False):
    task = SquadTask('', 384, version='2.0' if with_null else '1.1', n_best=n_best, max_answer=max_answer)
    return task.predictions(questions, features, outputs)


@pytest.mark.parametrize('longest', [1, 4, 30])
def test_the_best_spans_equal_a_search_of_all_spans(longest):
    draw = np.random.default_rng(longest)
    for length in (4, 9, 40):
        start, end = draw.normal(size=(2, length)).astype(np.float32)
        last = np.where((np.arange(length) < 3) | (np.arange(length) == length - 1), -1, 7).astype(np.int32)
        first = np.where(draw.random(length) < 0.7, last, -1).astype(np.int32)
        spans = [
            (float(start[a]) + float(end[b]), a, b)
            for a in range(length)
            for b in range(a, length)
            if first[a] >= 0 and last[b] >= 0 and b - a < longest
        ]
        for count in (1, 5, 10_000):
            expected = [(a, b) for _, a, b in sorted(spans, reverse=True)[:count]]
            a, b = best_spans(start, end, first, last, longest=longest, count=count)
            assert list(zip(a.tolist(), b.tolist(), strict=True)) == expected


def test_the_best_answer_is_found_over_all_windows(letters):
    questions = [ask('red ' * 15 + 'fox it' + ' red' * 15, 'fox it'), ask('what is the house', 'the house')]
    features = features_of(questions, letters)
    for seed in range(5):
        answers = predict(questions, features, oracle(features, seed))
        assert [answer.best.text for answer in answers] == ['fox it', 'the house']
        assert (answers[0].best.start, answers[0].best.end) == (60, 66)


def test_an_answer_starts_only_where_its_window_has_the_most_context(letters):
    question = ask('the red house is it ' * 6, 'red')
    features = features_of([question], letters)
    rows = range(len(features))
    assert len(rows) > 3
    outputs = {name: [np.zeros(n, np.float32) for n in features.sequence_lengths] for name in ('start', 'end')}
    first = [features.token['token_first'][features.offsets[row] : features.offsets[row + 1]] for row in rows]
    for row in rows:
        outputs['start'][row][first[row] < 0] = 99.0  # These positions are excluded despite their logits.
    outputs = {f'{name}_logits': values for name, values in outputs.items()}
    best = predict([question], features, outputs, n_best=1000)[0]
    assert all(span.start_logit == 0 for span in best.nbest)
    starts = {int(x) for values in first for x in values if x >= 0}
    assert {span.start for span in best.nbest} <= starts


def test_the_n_best_answers_have_different_texts_and_probabilities_that_sum_to_one(letters):
    question = ask('red fox red fox red fox red', 'fox')
    features = features_of([question], letters)
    for n_best in (1, 3, 20):
        (answer,) = predict([question], features, oracle(features, strength=3.0), n_best=n_best)
        texts = [span.text for span in answer.nbest]
        assert len(texts) == len(set(texts)) == n_best
        scores = [span.start_logit + span.end_logit for span in answer.nbest]
        assert scores == sorted(scores, reverse=True)
        assert sum(span.probability for span in answer.nbest) == pytest.approx(1)
        exp = np.exp(np.array(scores) - scores[0])
        assert [span.probability for span in answer.nbest] == pytest.approx((exp / exp.sum()).tolist())
        assert answer.best == answer.nbest[0]


def test_max_answer_limits_the_pieces_of_an_answer(letters):
    question = ask('red house the it', 'red house the it')
    features = features_of([question], letters)
    outputs = oracle(features)
    assert predict([question], features, outputs, max_answer=4)[0].best.text == 'red house the it'
    assert len(predict([question], features, outputs, max_answer=3)[0].best.text.split()) <= 3


def test_the_null_score_is_the_minimum_over_windows(letters):
    question = ask('red ' * 40)
    features = features_of([question], letters)
    outputs = {
        f'{name}_logits': [np.zeros(n, np.float32) for n in features.sequence_lengths] for name in ('start', 'end')
    }
    for row in range(len(features)):
        outputs['start_logits'][row][0] = 5.0 + row
    outputs['start_logits'][2][0] = 1.5
    outputs['end_logits'][2][0] = -0.25
    outputs['start_logits'][1][12] = 3.0  # A piece of the context.
    (answer,) = predict([question], features, outputs, with_null=True)
    assert (answer.null.start_logit, answer.null.end_logit) == (1.5, -0.25)
    assert answer.null_odds == pytest.approx(1.25 - answer.best.score)
    assert answer.null.text == '' and answer.null.start is None and answer.null in answer.nbest
    assert sum(span.probability for span in answer.nbest) == pytest.approx(1)
    (without,) = predict([question], features, outputs)
    assert '' not in [span.text for span in without.nbest] and without.best.text == answer.best.text


def test_the_null_answer_is_always_among_the_n_best(letters):
    question = ask('red house the it', 'red')
    features = features_of([question], letters)
    for strength in (-99.0, 99.0):
        outputs = oracle(features, strength=0.0)
        outputs['start_logits'][0][0] = strength
        (answer,) = predict([question], features, outputs, with_null=True, n_best=2)
        texts = [span.text for span in answer.nbest]
        assert len(texts) == 3 and texts.index('') == (0 if strength > 0 else 2)
        assert answer.best.text and (answer.null_odds > 0) == (strength > 0)


def test_empty_contexts_have_the_empty_answer(letters):
    questions = [ask(''), ask(' \n'), ask('red', 'red')]
    features = features_of(questions, letters)
    for with_null in (False, True):
        answers = predict(questions, features, oracle(features), with_null=with_null)
        assert [answer.best.text for answer in answers] == ['', '', 'red']
        assert [answer.null_odds == NO_CHOICE for answer in answers] == [True, True, False]
        assert [len(answer.nbest) for answer in answers[:2]] == [1, 1]


def test_answers_do_not_depend_on_other_questions(letters):
    questions = [ask('red house ' * n + 'fox', 'fox', id=str(n)) for n in range(6)]
    features = features_of(questions, letters)
    outputs = oracle(features)
    together = predict(questions, features, outputs, with_null=True)
    for n, question in enumerate(questions):
        rows = np.flatnonzero(features.record == n)
        alone = {name: [values[row] for row in rows] for name, values in outputs.items()}
        assert predict([question], features_of([question], letters), alone, with_null=True) == [together[n]]
