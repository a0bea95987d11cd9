"""Tests the SQuAD task from a file to metrics and the benchmark's files."""

import dataclasses
import json
import pathlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from squad_world import ask, letters_tokenizer, oracle, qa, squad_json, write

from bertjax.errors import UserError
from bertjax.finetune.ensemble import Ensemble
from bertjax.finetune.results import write_predictions
from bertjax.finetune.task_data import TaskSplit
from bertjax.losses import span_losses
from bertjax.metrics.squad import Evaluation, evaluate_v1
from bertjax.model.config import BertConfig
from bertjax.tasks.reading.texts import number_lines
from bertjax.tasks.registry import build_task
from bertjax.tasks.squad.answers import Answers, AnswerSpan
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.squad.task import SquadTask

CONTEXTS = ['the red fox is in the house', 'it is a house\r\nof 😀 cafe\u0301s', 'who?']


@pytest.fixture(scope='module')
def letters():
    return letters_tokenizer()


def make(version='2.0', **options):
    return build_task('squad', data='', seq_len=24, version=version, stride=5, max_query=8, **options)


def four_questions():
    return [
        ask(CONTEXTS[0], 'red fox', id='a', question='What is in the house?'),
        ask(CONTEXTS[1], 'cafe\u0301s', id='b', question='who'),
        ask(CONTEXTS[0], None, id='c', question='who is it'),
        ask(CONTEXTS[2], None, id='d', question=''),
    ]


def outputs_with_null(features, null):
    """Returns the outputs of the right answers, with the score null[record] at [CLS]."""
    outputs = oracle(features)
    for row, record in enumerate(features.record):
        outputs['start_logits'][row][0] = outputs['end_logits'][row][0] = null[record]
    return outputs


def test_right_outputs_score_1(letters, tmp_path):
    questions = four_questions()[:2]
    task = make('1.1')
    features = task.features(questions, letters, training=False)
    predictions = task.predictions(questions, features, oracle(features))
    assert task.metrics(questions, predictions) == {'exact': 1.0, 'f1': 1.0}
    assert (task.name, task.score) == ('SQuAD 1.1', 'f1')
    task.tune(questions, predictions)
    assert task.learned_state() == {}
    rows = list(task.rows(questions, predictions))
    assert rows[1]['id'] == 'b' and rows[1]['answer'] == 'cafe\u0301s' and 'null_odds' not in rows[1]
    assert rows[1]['true'] == list(questions[1].answers)
    assert CONTEXTS[1][rows[1]['start'] : rows[1]['end']] == 'cafe\u0301s' and 0.9 < rows[1]['probability'] <= 1
    assert list(task.official_files('dev', questions, predictions)) == ['predictions.json', 'nbest_predictions.json']
    for population, count in ((0, 4), (9, 1)):  # a sample has no official files
        split = TaskSplit(questions, features, population)
        assert len(write_predictions(tmp_path, task, 'dev', split, predictions)) == count
        assert len([path for path in tmp_path.rglob('*') if path.is_file()]) == count
    assert not task.collapsed(questions, predictions)


def test_each_member_of_an_ensemble_is_scored_with_the_threshold_it_was_tuned_with():
    """The ensemble answers with the mean of its members' thresholds."""
    records = [ask(CONTEXTS[0], 'red fox', id='a'), ask(CONTEXTS[0], None, id='b')]
    null, best = AnswerSpan('', None, None, 0.0, 0.0), AnswerSpan('red fox', 4, 11, 0.0, 0.0)
    answers = [Answers((best, null), best, null, odds) for odds in (2.0, 4.0)]
    tasks = [make() for _ in range(2)]
    for task, threshold in zip(tasks, (3.0, 9.0), strict=True):
        task.restore({'null_threshold': threshold})
        task.score = 'f1'  # The default, best_f1, does not depend on the threshold.
    split = SimpleNamespace(records=records)
    member = lambda task: SimpleNamespace(  # noqa: E731
        data=SimpleNamespace(task=task), splits={'dev': split}, predictions=lambda split: answers
    )
    members = {pathlib.Path(name): member(task) for name, task in zip('ab', tasks, strict=True)}
    ensemble = Ensemble(members, {'dev': split})
    assert ensemble.data.task.null_threshold == 6.0
    ensemble.data.task.restore({'null_threshold': 1.0})
    assert ensemble.member_scores(split) == {'a': 1.0, 'b': 0.5}
    assert [task.null_threshold for task in tasks] == [3.0, 9.0]


def test_the_null_threshold_is_tuned_on_dev_and_restored(letters, tmp_path):
    questions, task = four_questions(), make()
    features = task.features(questions, letters, training=False)
    # The odds of no answer are low for the first question and high for the others, wrongly only for the second.
    predictions = task.predictions(questions, features, outputs_with_null(features, [0.0, 70.0, 80.0, 90.0]))
    before = task.metrics(questions, predictions)
    assert (task.score, before['null_threshold']) == ('best_f1', 0.0)
    assert (before['exact'], before['HasAns_exact'], before['NoAns_exact'], before['best_f1']) == (0.75, 0.5, 1.0, 1.0)
    task.tune(questions, predictions)
    after = task.metrics(questions, predictions)
    assert after['exact'] == after['f1'] == after['best_f1'] == 1.0
    assert after['null_threshold'] == after['best_f1_thresh'] == predictions[1].null_odds > 0
    learned = json.loads(json.dumps(task.learned_state()))
    again = make()
    again.restore(learned)
    assert again.metrics(questions, predictions) == after
    assert again.official_files('dev', questions, predictions) == task.official_files('dev', questions, predictions)


def test_official_files_agree_with_the_metrics(letters):
    questions, task = four_questions(), make(n_best=3)
    features = task.features(questions, letters, training=False)
    predictions = task.predictions(questions, features, outputs_with_null(features, [0.0, 70.0, 80.0, -90.0]))
    files = {name: json.loads(text) for name, text in task.official_files('dev', questions, predictions).items()}
    assert list(files) == ['predictions.json', 'nbest_predictions.json', 'null_odds.json']
    texts, odds = files['predictions.json'], files['null_odds.json']
    assert texts['a'] == 'red fox' and texts['b'] == texts['c'] == '' and texts['d']
    assert [odds[name] > 0 for name in 'abcd'] == [False, True, True, False]
    gold = [question.answers for question in questions]
    metrics = task.metrics(questions, predictions)
    assert Evaluation(gold, texts.values()).figures().items() <= metrics.items()
    for entries in files['nbest_predictions.json'].values():
        assert list(entries[0]) == ['text', 'probability', 'start_logit', 'end_logit']
        assert '' in [entry['text'] for entry in entries] and len(entries) == 4
    best = [next(e['text'] for e in entries if e['text']) for entries in files['nbest_predictions.json'].values()]
    assert Evaluation(gold, best).best([*odds.values()]).items() <= metrics.items()


def test_rows_without_an_answer_are_valid_json(letters):
    questions, task = four_questions(), make()
    features = task.features(questions, letters, training=False)
    rows = list(task.rows(questions, task.predictions(questions, features, outputs_with_null(features, [99.0] * 4))))
    assert [(row['answer'], row['start'], row['end']) for row in rows] == [('', None, None)] * 4
    assert all(row['null_odds'] > 0 and 0 <= row['probability'] <= 1 for row in rows)
    assert json.loads(json.dumps(rows)) == rows


def test_the_same_answer_to_every_question_is_collapsed(letters):
    questions, task = four_questions(), make()
    features = task.features(questions, letters, training=False)
    predictions = task.predictions(questions, features, outputs_with_null(features, [99.0] * 4))
    unplaced = [dataclasses.replace(question, starts=(-1,) if question.answers else ()) for question in questions]
    answered = [question for question in unplaced if question.answers]
    assert task.collapsed(questions, predictions) and task.collapsed(answered, predictions[: len(answered)])
    unanswerable = [dataclasses.replace(question, answers=(), starts=()) for question in questions]
    assert not task.collapsed(unanswerable, predictions)
    assert not task.collapsed(questions, task.predictions(questions, features, outputs_with_null(features, [0.0] * 4)))
    # The head always chooses the first word.
    flat = {f'{name}_logits': [np.zeros(n, np.float32) for n in features.sequence_lengths] for name in ('start', 'end')}
    for name in flat:
        for row in range(len(features)):
            flat[name][row][np.flatnonzero(features.token['token_first'][features.offsets[row] :] == 0)[0]] = 9.0
    assert make('1.1').collapsed(questions, make('1.1').predictions(questions, features, flat))


def test_the_report_counts_whether_there_is_an_answer(letters):
    questions, task = four_questions(), make()
    features = task.features(questions, letters, training=False)
    report = task.report(questions, task.predictions(questions, features, outputs_with_null(features, [0, 70, 80, 90])))
    lines = [line.split() for line in report.splitlines()]
    assert ['has', 'an', 'answer', '1', '1'] in lines and ['has', 'none', '0', '2'] in lines
    assert 'null threshold 0.0000' in report


def test_questions_without_labels_are_answered(letters):
    lines = '{"question": "who", "context": "red \\ud83d\\ude00 fox"}\n'
    for version in ('1.1', '2.0'):
        task = make(version)
        questions = [*task.parse(number_lines(lines), '<stdin>'), SquadQuestion('2', '', '')]
        features = task.features(questions, letters, training=False)
        outputs = oracle(features)
        outputs['start_logits'][0][5] = outputs['end_logits'][0][7] = 80.0
        rows = list(task.rows(questions, task.predictions(questions, features, outputs)))
        assert [(row['id'], row['answer'], row['start'], row['end']) for row in rows] == [
            ('1', 'fox', 6, 9),
            ('2', '', None, None),
        ]
        assert questions[0].context[6:9] == 'fox'


@pytest.mark.parametrize(
    ('options', 'where'),
    [
        ({'version': '3'}, 'config.task.version'),
        ({'stride': 0}, 'config.task.stride'),
        ({'max_query': 0}, 'config.task.max_query'),
        ({'n_best': 0}, 'config.task.n_best'),
        ({'max_answer': -1}, 'config.task.max_answer'),
        ({'max_query': 381}, 'config.task.max_query'),
    ],
)
def test_invalid_options_are_errors(options, where):
    SquadTask(data='', seq_len=384)
    with pytest.raises(UserError) as error:
        SquadTask(data='', seq_len=384, **options)
    assert error.value.where == where


def test_the_model_returns_what_its_objective_takes(letters):
    questions, task = four_questions(), make()
    features = task.features(questions, letters, training=True)
    config = BertConfig(
        vocab_size=letters.vocab_size, num_layers=1, width=8, num_heads=2, mlp_dim=16, max_positions=24,
        scan_layers=False,
    )  # fmt: skip
    model = task.build_module(config)
    batch = features.batch(np.array([0, 1, -1]), 24, letters.pad_id)
    inputs = [batch[name] for name in task.objective.inputs]
    shapes = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), *inputs)[0])
    outputs = {name: np.zeros(x.shape, x.dtype) for name, x in shapes.items()}
    assert {name: (x.shape, x.dtype) for name, x in outputs.items()} == {
        'start_logits': ((3, 24), np.float32),
        'end_logits': ((3, 24), np.float32),
    }
    losses = span_losses(outputs, batch)
    assert float(losses['loss'][1]) == 2 and np.isfinite(float(losses['loss'][0]))
    assert task.head.architecture == 'BertForQuestionAnswering' and task.huggingface() == {}


def test_right_outputs_for_a_file_score_1(tmp_path, letters):
    paragraphs = [
        {'context': CONTEXTS[0], 'qas': [qa('a', (('red', 4), ('red fox', 4))), qa('b', (('house', 22),))]},
        {'context': CONTEXTS[1], 'qas': [qa('c', (('😀 cafe\u0301s', 18),))]},
    ]
    for split in ('train', 'dev'):
        write(tmp_path / f'{split}-v1.1.json', squad_json(*paragraphs))
    task = SquadTask(data=str(tmp_path), seq_len=24, stride=5, max_query=8)
    task.learn(task.records('train'))
    questions = task.records('dev')
    features = task.features(questions, letters, training=False)
    predictions = task.predictions(questions, features, oracle(features))
    assert task.metrics(questions, predictions) == {'exact': 1.0, 'f1': 1.0}
    texts = json.loads(task.official_files('dev', questions, predictions)['predictions.json'])
    assert texts == {'a': 'red', 'b': 'house', 'c': '😀 cafe\u0301s'}
    # The first answer is the target; any of the answers is correct.
    assert evaluate_v1([q.answers for q in questions], ['red fox', *list(texts.values())[1:]])['exact'] == 1.0
