"""Tests the judgments of predictions that the page of a run shows."""

import pathlib

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.finetune.results import json_lines
from bertjax.report.results import errors_section
from bertjax.report.run_record import Run
from bertjax.tasks.choice.files import ChoiceQuestion as Choice
from bertjax.tasks.registry import build_task
from bertjax.tasks.relation.files import MarkedEntity, Relation
from bertjax.tasks.sentence.task import Example
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.tagging.columns import Sentence


def test_judgments_of_labels(tmp_path: pathlib.Path):
    """The most confident wrong prediction has the largest error."""
    task = build_task('classification', data=str(tmp_path), seq_len=16)
    task.labels = ['no', 'yes']
    records = [Example('a', None, 'yes'), Example('b', 'c', 'yes'), Example('d', None, 'yes'), Example('e', None, 'no')]
    logits = [[0, 2], [3, 0], [0.1, 0], [1, 0]]
    judgments = list(task.judgments(records, task.rows(records, [np.array(row, float) for row in logits])))
    assert [judgment.error > 0 for judgment in judgments] == [False, True, True, False]
    assert judgments[1].error > judgments[2].error > 1
    assert judgments[1].texts == {'first': 'b', 'second': 'c'} and judgments[0].texts == {'text': 'a'}
    assert judgments[1].true == 'yes' and judgments[1].predicted == 'no (0.95)'
    assert [judgment.classes for judgment in judgments] == [
        [('yes', 'yes')],
        [('yes', 'no')],
        [('yes', 'no')],
        [('no', 'no')],
    ]


def test_the_page_reads_the_predictions_of_a_run(tmp_path: pathlib.Path):
    """Lines may contain any character; the page reports lines that are not predictions."""
    task, records = build_task('classification', data=str(tmp_path), seq_len=16), [Example('a', None, 'yes\u2028')]
    task.labels, task.records = ['no', 'yes\u2028'], lambda split: records
    path = tmp_path / 'predictions' / 'dev.jsonl'
    path.parent.mkdir()

    def page_text(text: str) -> str:
        path.write_text(text, encoding='utf-8')
        section = errors_section(Run(tmp_path / 'sweep', 'recipe', {'max_eval_records': 0}, True, []), task, tmp_path)
        return str(section.data)

    (row,) = task.rows(records, [np.array([0.0, 2.0])])
    assert "'classes': [('yes\\u2028', '1.000', '1.000', '1.000', '1', '1')]" in page_text(json_lines([row]))
    with pytest.raises(UserError, match=r'dev\.jsonl: found 2 lines, expected the predictions for 1 records'):
        page_text(json_lines([row, row]))
    with pytest.raises(UserError, match=r'dev\.jsonl: found predictions for other records, or by another version'):
        page_text(json_lines([row | {'probabilities': None}]))
    with pytest.raises(UserError, match=r'another label at .*use run=evaluate to write them again'):
        page_text(json_lines([row | {'true': 'no'}]))
    with pytest.raises(UserError, match=r'dev\.jsonl: found no JSON lines'):
        page_text('{')


def test_the_page_says_why_there_are_no_predictions(tmp_path: pathlib.Path):
    (tmp_path / 'train.csv').write_text('text,label\na,x\n')
    run = Run(tmp_path, 'recipe', {'max_eval_records': 0}, True, [])
    for dev_fraction, note in ((0.1, 'There are no results for dev yet'), (0.0, 'The data have no labeled dev split.')):
        task = build_task('classification', data=str(tmp_path), seq_len=16, dev_fraction=dev_fraction)
        assert errors_section(run, task, tmp_path).note.startswith(note)


def test_judgments_of_scores(tmp_path: pathlib.Path):
    task = build_task('classification', data=str(tmp_path), seq_len=16, regression=True)
    records = [Example('a', None, 2.0), Example('b', None, 4.5)]
    judgments = list(task.judgments(records, task.rows(records, [np.array([2.0]), np.array([1.0])])))
    assert [judgment.error for judgment in judgments] == [0, 3.5] and not any(
        judgment.classes for judgment in judgments
    )
    assert (judgments[1].true, judgments[1].predicted) == ('4.5', '1.00')


def test_judgments_of_several_labels(tmp_path: pathlib.Path):
    task = build_task('multi_label', data=str(tmp_path), seq_len=16)
    task.labels = ['a', 'b', 'c']
    records = [Example('x', None, ('a', 'b')), Example('y', None, ()), Example('z', None, ('c',))]
    logits = [[2, -2, 1], [-3, -3, -3], [-1, -1, 4]]
    rows = list(task.rows(records, [np.array(row, float) for row in logits]))
    judgments = list(task.judgments(records, rows))
    assert [judgment.error > 0 for judgment in judgments] == [True, False, False]
    assert judgments[0].classes == [('a', 'a'), ('b', ''), ('', 'c')] and judgments[1].classes == []
    assert (judgments[0].true, judgments[0].predicted, judgments[1].true) == ('a, b', 'a, c', 'none')
    rows[0]['true'].reverse()  # the order of the labels has no meaning
    assert list(task.judgments(records, rows)) == judgments
    with pytest.raises(ValueError, match='another label at'):
        list(task.judgments(records[:1], [rows[0] | {'true': ['a']}]))


def test_judgments_of_endings(tmp_path: pathlib.Path):
    task = build_task('multiple_choice', data=str(tmp_path), seq_len=16, layout='jsonl')
    record = Choice('here', 'A cat', 'It', ('sleeps', 'flies'), 0)
    rows = [{'prediction': 1, 'probabilities': [0.2, 0.8]}, {'prediction': 0, 'probabilities': [0.9, 0.1]}]
    judgments = list(task.judgments([record, record], rows))
    assert (judgments[0].true, judgments[0].predicted, judgments[0].texts) == (
        'sleeps',
        'flies (0.80)',
        {'prompt': 'A cat It'},
    )
    assert judgments[0].error == pytest.approx(1.6) and judgments[1].error == 0
    with pytest.raises(ValueError, match='another label at here'):
        list(task.judgments([record], [rows[1] | {'true': 1}]))


def test_judgments_of_answers(tmp_path: pathlib.Path):
    task = build_task('squad', data=str(tmp_path), seq_len=128, version='2.0')
    context = 'x ' * 200 + 'The harbour lies in the north.'
    known = SquadQuestion('1', 'Where?', context, ('in the north', 'the north'), (context.index('in the'), 0))
    unknown = SquadQuestion('2', 'When?', context, ())
    rows = [
        {'answer': 'the north', 'start': 0, 'probability': 0.9},
        {'answer': 'the harbour', 'start': 400, 'probability': 0.6},
        {'answer': '', 'start': None, 'probability': 0.5},
        {'answer': 'north', 'start': 5, 'probability': 0.5},
    ]
    judgments = list(task.judgments([known, known, unknown, unknown], rows))
    assert [judgment.error for judgment in judgments] == [0, 1.6, 0, 1.5]
    assert judgments[0].true == 'in the north | the north' and judgments[2].true == 'no answer'
    assert 'in the north' in judgments[0].texts['text'] and len(judgments[0].texts['text']) < 400
    assert judgments[3].classes == [('no answer', 'an answer')] and judgments[0].classes == [('an answer', 'an answer')]
    for record, true in ((known, []), (unknown, ['the north'])):
        with pytest.raises(ValueError, match='another label at'):
            list(task.judgments([record], [rows[0] | {'true': true}]))
    version_1 = build_task('squad', data=str(tmp_path), seq_len=128)
    assert not any(judgment.classes for judgment in version_1.judgments([known], rows[:1]))


def test_judgments_of_tags(tmp_path: pathlib.Path):
    task = build_task('tagging', data=str(tmp_path), seq_len=16)
    words = ('Ada', 'Lovelace', 'in', 'London')
    record = Sentence('file:1', words, ('B-PER', 'I-PER', 'O', 'B-LOC'))
    rows = [{'tags': ['B-PER', 'O', 'O', 'B-LOC']}, {'tags': ['B-PER', 'I-PER', 'O', 'B-ORG']}, {'tags': record.tags}]
    judgments = list(task.judgments([record] * 3, rows))
    assert [judgment.error for judgment in judgments] == [2, 1, 0]
    assert judgments[0].classes == [('', 'PER'), ('PER', ''), ('LOC', 'LOC')] and judgments[1].classes[1] == (
        'LOC',
        'ORG',
    )
    assert (judgments[0].true, judgments[0].predicted) == ('Ada Lovelace [PER]', 'Ada [PER]')
    assert judgments[0].texts == {'sentence': 'Ada Lovelace in London'}
    with pytest.raises(ValueError, match='another label at file:1'):
        list(task.judgments([record], [rows[0] | {'true': rows[0]['tags']}]))
    plain = build_task('tagging', data=str(tmp_path), seq_len=16, scheme='plain')
    (judgment,) = plain.judgments([record], rows[:1])
    assert judgment.error == 1 and judgment.classes[1] == ('I-PER', 'O') and len(judgment.classes) == 4


def test_judgments_of_relations(tmp_path: pathlib.Path):
    """The text shows the marks of the two entities."""
    task = build_task('relation', data=str(tmp_path), seq_len=32)
    task.labels = ['born_in', 'no_relation']
    record = Relation('Ada was born in London', (MarkedEntity(0, 3, 'PER'), MarkedEntity(16, 22, 'LOC')), 'born_in')
    (judgment,) = task.judgments([record], task.rows([record], [np.array([0.0, 2.0])]))
    assert judgment.classes == [('born_in', 'no_relation')] and judgment.texts['text'].count('Ada') == 1
    assert len(judgment.texts['text']) > len(record.text)
