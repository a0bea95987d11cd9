"""Tests the baselines against scikit-learn and against answers worked out by hand."""

import builtins
from unittest import mock

import numpy as np
import pytest
from text_world import MAILS

from bertjax.errors import UserError
from bertjax.metrics.softmax import softmax
from bertjax.tasks.baselines import tfidf_features
from bertjax.tasks.choice.files import ChoiceQuestion
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.sentence.multi_label import MultiLabelTask
from bertjax.tasks.sentence.task import Example
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.task import TaggingTask

TRAIN = [Example(text, None, label) for text, label in MAILS] * 9
EVALUATED = [Example('free cash', None, 'spam'), Example('call me soon', None, 'ham')]


def test_the_baselines_of_labels_are_those_of_scikit_learn():
    linear = pytest.importorskip('sklearn.linear_model', reason='compares with scikit-learn')
    from sklearn.feature_extraction.text import TfidfVectorizer

    task = ClassificationTask('', 32, dataset='x', labels=('ham', 'never', 'spam'))
    baselines = task.baselines(TRAIN, EVALUATED)
    assert np.argmax(baselines['most frequent'], axis=1).tolist() == [0, 0]
    shares = softmax(baselines['most frequent'][0])
    assert shares[[0, 2]] == pytest.approx([2 / 3, 1 / 3], abs=1e-4) and shares[1] < 1e-4
    words = TfidfVectorizer(token_pattern=r'\b\w+\b', ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32)
    model = linear.LogisticRegression(max_iter=1000)
    model.fit(words.fit_transform([x.first for x in TRAIN]), [x.label for x in TRAIN])
    expected = model.predict_proba(words.transform([record.first for record in EVALUATED]))
    assert softmax(baselines['TF-IDF'])[:, [0, 2]] == pytest.approx(expected, abs=1e-4)
    assert [task.labels[logits.argmax()] for logits in baselines['TF-IDF']] == ['spam', 'ham']
    assert task.metrics(EVALUATED, baselines['TF-IDF'])['accuracy'] == 1
    assert task.baselines(TRAIN[:2], EVALUATED)['TF-IDF'][0].argmax() == 0  # The training data have only one label.


def test_the_baselines_of_scores_are_the_mean_and_a_regression():
    task = ClassificationTask('', 32, dataset='x', text_b='other', regression=True)
    words = ['red', 'green', 'blue', 'one', 'two', 'three']
    pairs = [(f'{a} {b}', f'{c} {d}') for a in words for b in words[:2] for c in words for d in words[2:3]]
    train = [Example(a, b, float(len(set(a.split()) & set(b.split())))) for a, b in pairs]
    baselines = task.baselines(train, train[:20])
    assert baselines['mean'][3, 0] == baselines['mean'][4, 0] == pytest.approx(np.mean([x.label for x in train]))
    assert task.metrics(train[:20], baselines['TF-IDF'])['spearman'] > 0.7
    inputs, _ = tfidf_features([Example('a b', 'a b', 0.0), Example('a', 'c', 0.0)], train[:1])
    assert inputs[:, -1].toarray()[:, 0].tolist() == pytest.approx([1, 0])  # This column is the cosine.


def test_the_baselines_predict_several_labels():
    task = MultiLabelTask('', 32, dataset='x', labels=('ham', 'short', 'all'))
    train = [Example(text, None, (label, 'all') if label == 'ham' else ('all',)) for text, label in MAILS] * 9
    baselines = task.baselines(train, [Example('call me soon', None, ('ham', 'all')), Example('free cash', None, ())])
    rows = list(task.rows([Example('', None, None)] * 2, baselines['TF-IDF']))
    assert [row['labels'] for row in rows] == [['ham', 'all'], ['all']]
    assert all(row['labels'] == ['ham', 'all'] for row in task.rows(EVALUATED, baselines['most frequent']))


def test_the_baselines_of_tags_are_the_most_frequent_ones():
    task = TaggingTask('', 16)
    train = [
        Sentence('', ('Rome', 'is', 'old'), ('B-LOC', 'O', 'O')),
        Sentence('', ('Rome', 'New', 'York'), ('O', 'B-LOC', 'I-LOC')),
    ]
    words, tags = ('York', 'is', 'Rome', 'new'), ('B-LOC', 'O', 'B-LOC', 'O')
    evaluated = [Sentence('', words, tags, columns=tuple(zip(words, tags, strict=True)))]
    baselines = task.baselines(train, evaluated)
    assert baselines['most frequent'][0].tags == ('O', 'O', 'O', 'O')
    # York starts an entity in this sentence; Rome had O and B once each, and B comes first; `new` is unknown.
    assert baselines['most frequent of the word'][0].tags == ('B-LOC', 'O', 'B-LOC', 'O')
    assert task.metrics(evaluated, baselines['most frequent of the word'])['f1'] == 1


def test_the_baselines_of_endings_are_the_most_frequent_and_the_most_similar():
    task = MultipleChoiceTask('', 16, layout='jsonl')
    train = [
        ChoiceQuestion('', 'the sea', 'it', ('is wet', 'is dry', 'is high'), 1),
        ChoiceQuestion('', 'a', 'b', ('c', 'd'), 1),
    ]
    evaluated = [
        ChoiceQuestion('', 'the old sea', 'is', ('dry', 'the sea'), 0),
        ChoiceQuestion('', 'wet', '', ('wet', 'dry', 'c'), 0),
    ]
    baselines = task.baselines(train, evaluated)
    assert [logits.argmax() for logits in baselines['most frequent']] == [1, 1]
    assert [logits.argmax() for logits in baselines['TF-IDF overlap']] == [1, 0]
    assert len(baselines['TF-IDF overlap'][0]) == 2


def test_tasks_without_baselines_and_missing_requirements():
    assert SquadTask('', 64, max_query=8).baselines([], []) == {} and not SquadTask.has_baselines
    no_imports = mock.patch.object(builtins, '__import__', side_effect=ModuleNotFoundError)
    task = ClassificationTask('', 32, dataset='x', labels=('ham', 'spam'))
    with no_imports, pytest.raises(UserError, match=r"no scikit-learn.*pip install 'bertjax\[baseline\]'"):
        task.baselines(TRAIN, EVALUATED)
    with pytest.raises(UserError, match='no word in the training texts'):
        task.baselines([Example('…', None, 'ham'), Example('!', None, 'spam')], EVALUATED)
    with pytest.raises(UserError, match='no word that occurs in two training texts'):
        task.baselines([Example(f'word{i}', None, ('ham', 'spam')[i % 2]) for i in range(1000)], EVALUATED)
