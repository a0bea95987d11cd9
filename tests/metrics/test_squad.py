"""Tests that SQuAD metrics equal those of the official scripts for the same answers."""

import pytest
from squad_answers import gold_and_answers

from bertjax.metrics import squad

# The output in percent of the official scripts (evaluate-v1.1.py and evaluate-v2.0.py of SQuAD-explorer) for the
# answers of `squad_answers.py`.
V1 = {'exact': 43.78151260504202, 'f1': 56.33838590115179}
V2 = {
    'exact': 33.695294504771304,
    'f1': 40.07560186644719,
    'HasAns_exact': 41.99312714776632,
    'HasAns_f1': 55.319418606277125,
    'NoAns_exact': 26.07323232323232,
    'NoAns_f1': 26.07323232323232,
}
V2_THRESHOLD_1 = {  # --na-prob-file, with its default threshold
    'exact': 47.713063507732805,
    'f1': 52.45931992839156,
    'HasAns_exact': 31.54639175257732,
    'HasAns_f1': 41.45970670954102,
    'NoAns_exact': 62.563131313131315,
    'NoAns_f1': 62.563131313131315,
}
V2_THRESHOLD_BELOW_0 = {  # --na-prob-thresh=-0.5
    'exact': 51.48075024679171,
    'f1': 55.032493444659096,
    'HasAns_exact': 24.123711340206185,
    'HasAns_f1': 31.54209455554576,
    'NoAns_exact': 76.60984848484848,
    'NoAns_f1': 76.60984848484848,
}
V2_BEST = {'best_exact': 57.15695952615992, 'best_f1': 58.71578924024315}
V2_BEST_THRESHOLDS = {'best_exact_thresh': -3.02, 'best_f1_thresh': -3.02}


def percent(figures):
    return pytest.approx({name: value / 100 for name, value in figures.items()}, abs=1e-14)


def figures_at(gold, answers, odds, threshold):
    """The figures after the answers with odds above the threshold are replaced by ''."""
    texts = ['' if odds[name] > threshold else answers[name] for name in gold]
    return squad.Evaluation(gold.values(), texts).figures()


def test_v1_equals_the_official_script(shared):
    gold, answers, _ = gold_and_answers(shared / 'squad' / 'xquad.en.json')
    assert squad.evaluate_v1(gold.values(), answers.values()) == percent(V1)


def test_v2_equals_the_official_script(shared):
    gold, answers, odds = gold_and_answers(shared / 'squad' / 'cs224n-dev-v2.0.json')
    evaluation = squad.Evaluation(gold.values(), answers.values())
    assert evaluation.figures() == percent(V2)
    assert figures_at(gold, answers, odds, 1.0) == percent(V2_THRESHOLD_1)
    assert figures_at(gold, answers, odds, -0.5) == percent(V2_THRESHOLD_BELOW_0)
    best = evaluation.best([*odds.values()])
    assert {name: best[name] for name in V2_BEST} == percent(V2_BEST)
    assert {name: best[name] for name in V2_BEST_THRESHOLDS} == V2_BEST_THRESHOLDS
    assert evaluation.best_threshold([*odds.values()]) == V2_BEST_THRESHOLDS['best_f1_thresh']
    at_best = figures_at(gold, answers, odds, evaluation.best_threshold([*odds.values()]))
    assert at_best['f1'] == pytest.approx(best['best_f1'], abs=1e-14)


@pytest.mark.parametrize(
    ('text', 'normal'),
    [
        ('The  Cat, a dog\tand an\u00a0ape.', 'cat dog and ape'),
        ('U.S.A.', 'usa'),
        ('a-the', 'athe'),
        ('theatre', 'theatre'),
        ('“The” – end', '“ ” – end'),
        ('ÉTÉ\n', 'été'),
        ('The', ''),
        ('', ''),
        ('...', ''),
    ],
)
def test_answers_are_normalized(text, normal):
    assert squad.normalize(text) == normal


@pytest.mark.parametrize(
    ('gold', 'answer', 'f1'),
    [
        ('the red house', 'a Red house!', 1.0),
        ('red house', 'house', 2 / 3),
        ('red red house', 'red house house', 2 / 3),  # Words are counted with their multiplicity.
        ('house', 'mouse', 0.0),
        ('house', '', 0.0),
    ],
)
def test_the_f1_of_overlapping_words(gold, answer, f1):
    assert squad.overlap_f1(gold, answer, empty_equal=True) == pytest.approx(f1)
    assert squad.overlap_f1(gold, answer, empty_equal=False) == pytest.approx(f1)


def test_the_two_versions_differ_on_texts_without_words():
    assert squad.overlap_f1('the', 'a', empty_equal=True) == 1 and squad.overlap_f1('the', 'a', empty_equal=False) == 0
    assert squad.evaluate_v1([['The']], ['a']) == {'exact': 1.0, 'f1': 0.0}
    # v2.0 ignores the gold answer 'The'. If it is the only one, an empty answer is correct.
    assert squad.Evaluation([['The', 'who']], ['a']).figures()['exact'] == 0
    only = squad.Evaluation([['The']], ['']).figures()
    assert only['HasAns_exact'] == only['f1'] == 1 and only['NoAns_f1'] is None


def test_the_best_of_several_gold_answers_counts():
    assert squad.evaluate_v1([['x', 'red house'], ['y']], ['house', 'y']) == {
        'exact': 0.5,
        'f1': pytest.approx(5 / 6),
    }


def test_the_best_threshold_keeps_confident_answers():
    gold = {'a': ['x'], 'b': [], 'c': ['y z'], 'd': []}
    answers = {'a': 'x', 'b': 'x', 'c': 'y', 'd': 'x'}
    odds = {'a': -3.0, 'b': 5.0, 'c': 1.0, 'd': 2.0}
    evaluation = squad.Evaluation(gold.values(), answers.values())
    assert evaluation.best([*odds.values()]) == {
        'best_exact': 0.75,
        'best_exact_thresh': -3.0,
        'best_f1': pytest.approx((3 + 2 / 3) / 4),
        'best_f1_thresh': 1.0,
    }
    figures = figures_at(gold, answers, odds, 1.0)
    assert (figures['exact'], figures['HasAns_exact'], figures['NoAns_exact']) == (0.75, 0.5, 1.0)
    assert evaluation.figures()['NoAns_f1'] == 0.0


def test_the_best_threshold_is_zero_if_no_answer_is_correct():
    gold, answers = {'a': ['x'], 'b': []}, {'a': 'wrong', 'b': 'x'}
    evaluation = squad.Evaluation(gold.values(), answers.values())
    odds = {'a': -3.0, 'b': -2.0}
    assert evaluation.best([*odds.values()]) == {
        'best_exact': 0.5,
        'best_exact_thresh': 0.0,
        'best_f1': 0.5,
        'best_f1_thresh': 0.0,
    }
    assert figures_at(gold, answers, odds, evaluation.best_threshold([*odds.values()]))['f1'] == 0.5
