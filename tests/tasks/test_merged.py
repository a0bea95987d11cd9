"""Tests that ensembles average logits, for each kind of task."""

import dataclasses
import pathlib
from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.data.features import FeatureBuilder
from bertjax.errors import UserError
from bertjax.finetune.ensemble import Ensemble, _check_same_task
from bertjax.finetune.restore import EvaluatedTask
from bertjax.finetune.task_data import TaskSplit
from bertjax.tasks.choice.files import ChoiceQuestion as Choice
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.sentence.task import Example
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.columns import Sentence
from bertjax.tasks.tagging.task import TaggingTask
from bertjax.text.tokenizer import Tokenizer


def test_texts_are_averaged_over_models_with_different_windows(tokenizer: Tokenizer, tmp_path):
    records = [Example('a b c d e f g h', None, None), Example('a', None, None)]
    short = ClassificationTask(str(tmp_path), 6, long='windows', labels=('x', 'y'))
    long = ClassificationTask(str(tmp_path), 16, labels=('x', 'y'))
    members = []
    for task in (short, long):
        features = task.features(records, tokenizer, training=False)
        outputs = {'logits': [np.array([row, -1.0], np.float32) for row in range(len(features))]}
        members.append((features, outputs))
    rows = len(members[0][0]) - 1  # The first model's logits for the windows of the first record are 0, 1, ….
    merged = long.ensemble_predictions(records, members)
    assert merged[0].tolist() == [((rows - 1) / 2 + 0) / 2, -1] and rows > 1
    assert merged[1].tolist() == [(rows + 1) / 2, -1]


def test_words_are_averaged_over_models_with_different_windows(tokenizer: Tokenizer):
    records = [Sentence('', ('ab', 'c', 'de', 'f'), None), Sentence('', ('g',), None)]
    members, separate = [], []
    generator = np.random.default_rng(0)
    for length in (8, 16):
        task = TaggingTask('', length, scheme='plain')
        task.labels = ['N', 'V']
        features = task.features(records, tokenizer, training=False)
        lengths = np.diff(features.offsets)
        outputs = {'token_logits': [generator.normal(size=(n, 2)).astype(np.float32) for n in lengths]}
        members.append((features, outputs))
        separate.append(task.predictions(records, features, outputs))
    merged = task.ensemble_predictions(records, members)
    for sentence, a, b in zip(merged, *separate, strict=True):
        for w, tag in enumerate(sentence.tags):
            # With two classes, the mean of the logits gives the geometric mean of the odds.
            odds = [
                p / (1 - p) if t == tag else (1 - p) / p for t, p in ((x.tags[w], x.probabilities[w]) for x in (a, b))
            ]
            mean = np.sqrt(odds[0] * odds[1])
            assert sentence.probabilities[w] == pytest.approx(mean / (1 + mean)) and mean >= 1


def test_endings_are_averaged(tmp_path):
    task = MultipleChoiceTask(str(tmp_path), 16, layout='jsonl')
    records = [Choice('', 'p', 's', ('a', 'b', 'c'), None), Choice('', 'p', 's', ('a', 'b'), None)]
    features = FeatureBuilder(choices=3)
    outputs = [{'logits': [np.array([0, 2, 0], np.float32), np.array([0, 1, 9], np.float32)]}]
    outputs.append({'logits': [np.array([3, 0, 0], np.float32), np.array([0, 1, 9], np.float32)]})
    first, second = task.ensemble_predictions(records, [(features, output) for output in outputs])
    assert first.argmax() == 0 and second.argmax() == 1
    assert first.tolist() == [1.5, 1, 0]


def test_averaged_spans_require_the_same_pieces(tokenizer: Tokenizer):
    records = [SquadQuestion('q', 'a b', 'c d e f', None, ())]
    task = SquadTask('', 16, max_query=4, stride=2)
    features = task.features(records, tokenizer, training=False)
    length = len(features.tokens)
    logits = [np.eye(length, dtype=np.float32)[i] for i in (5, 6, 6)]
    outputs = [{'start_logits': [start], 'end_logits': [2 * start]} for start in logits]
    assert task.ensemble_predictions(records, [(features, output) for output in outputs])[0].best.text == 'e'
    other = dataclasses.replace(features, tokens=features.tokens + 1)
    with pytest.raises(UserError, match=r'config\.ensemble: found models that split the texts into different pieces'):
        task.ensemble_predictions(records, [(features, outputs[0]), (other, outputs[1])])


def test_an_ensemble_has_the_mean_threshold_and_members_keep_theirs():
    tasks = [SquadTask('', 16, max_query=4, stride=2, version='2.0') for _ in range(2)]
    tasks[0].null_threshold, tasks[1].null_threshold = 1.0, 4.0
    first, second = (
        EvaluatedTask(SimpleNamespace(data=SimpleNamespace(task=task)), None, {}, None, True) for task in tasks
    )
    ensemble = Ensemble({pathlib.Path('one'): first, pathlib.Path('other'): second}, {})
    assert ensemble.data.task.null_threshold == 2.5
    assert [task.null_threshold for task in tasks] == [1, 4]


def test_members_may_have_read_different_layouts(tmp_path):
    swag, rows = (MultipleChoiceTask(str(tmp_path), 16, layout=layout) for layout in ('swag', 'jsonl'))
    _check_same_task(swag, pathlib.Path('one'), rows, pathlib.Path('other'))


def test_every_member_tokenizes_a_later_batch(tokenizer: Tokenizer, tmp_path):
    """The first batch was tokenized when the models were loaded."""
    task = ClassificationTask(str(tmp_path), 16, labels=('x', 'y'))
    calls = []

    def member(name: str, logit: float) -> EvaluatedTask:
        def tokenize(records, cache):
            calls.append((name, len(records), cache))
            return TaskSplit(records, task.features(records, tokenizer, training=False))

        def outputs(params, split):
            return {'logits': [np.array([logit, 0], np.float32)] * len(split.features)}

        data = SimpleNamespace(task=task, tokenize=tokenize)
        first = {'': tokenize([Example('a', None, None)], False)}
        return EvaluatedTask(SimpleNamespace(data=data, outputs=outputs), None, first, None, True)

    members = {pathlib.Path(name): member(name, logit) for name, logit in (('one', 1.0), ('other', 3.0))}
    ensemble = Ensemble(members, next(iter(members.values())).splits)
    calls.clear()
    assert [logits.tolist() for logits in ensemble.predictions(ensemble.splits[''])] == [[2, 0]] and not calls
    later = ensemble.data.tokenize([Example('b', None, None), Example('c', None, None)], cache=False)
    assert len(ensemble.predictions(later)) == 2 and calls == [('one', 2, False), ('other', 2, False)]
