"""Records beside their predictions, as the page of a run shows them: what is wrong, how wrong, among which classes."""

import pathlib

import numpy as np
import pytest

from bertjax.finetune.results import json_lines
from bertjax.report.errors import errors_section
from bertjax.report.run_record import Run
from bertjax.tasks.choice.files import ChoiceQuestion as Choice
from bertjax.tasks.registry import build_task
from bertjax.tasks.relation.files import MarkedEntity, Relation
from bertjax.tasks.sentence.task import Example, Scores
from bertjax.tasks.squad.questions import SquadQuestion
from bertjax.tasks.tagging.columns import Sentence


def test_labels(tmp_path: pathlib.Path):
    """Through the very rows that a run writes; the surest error is the worst."""
    task = build_task('classification', data=str(tmp_path), seq_len=16)
    task.labels = ['no', 'yes']
    records = [Example('a', None, 'yes'), Example('b', 'c', 'yes'), Example('d', None, 'yes'), Example('e', None, 'no')]
    logits = [[0, 2], [3, 0], [0.1, 0], [1, 0]]
    found = list(task.judgments(records, task.rows(records, [Scores(np.array(row, float)) for row in logits])))
    assert [one.error > 0 for one in found] == [False, True, True, False]
    assert found[1].error > found[2].error > 1
    assert found[1].texts == {'first': 'b', 'second': 'c'} and found[0].texts == {'text': 'a'}
    assert found[1].true == 'yes' and found[1].predicted == 'no (0.95)'
    assert [one.classes for one in found] == [[('yes', 'yes')], [('yes', 'no')], [('yes', 'no')], [('no', 'no')]]


def test_the_page_reads_what_a_run_wrote(tmp_path: pathlib.Path):
    """With any character in a line; what is no prediction is said."""
    task, records = build_task('classification', data=str(tmp_path), seq_len=16), [Example('a', None, 'yes\u2028')]
    task.labels, task.records = ['no', 'yes\u2028'], lambda split: records
    path = tmp_path / 'predictions' / 'dev.jsonl'
    path.parent.mkdir()

    def shown(text: str) -> str:
        path.write_text(text, encoding='utf-8')
        section = errors_section(Run(tmp_path, 'recipe', {'max_eval_records': 0}, True, []), task, tmp_path)
        return section.note or str(section.data)

    (row,) = task.rows(records, [Scores(np.array([0.0, 2.0]))])
    assert "'classes': [('yes\\u2028', '1.000', '1.000', '1.000', '1', '1')]" in shown(json_lines([row]))
    assert 'Another version wrote the predictions' in shown(json_lines([row | {'probabilities': None}]))
    assert 'dev.jsonl is damaged' in shown('{')


def test_scores(tmp_path: pathlib.Path):
    task = build_task('classification', data=str(tmp_path), seq_len=16, regression=True)
    records = [Example('a', None, 2.0), Example('b', None, 4.5)]
    found = list(task.judgments(records, task.rows(records, [Scores(np.array([2.0])), Scores(np.array([1.0]))])))
    assert [one.error for one in found] == [0, 3.5] and not any(one.classes for one in found)
    assert (found[1].true, found[1].predicted) == ('4.5', '1.00')


def test_several_labels(tmp_path: pathlib.Path):
    task = build_task('multi_label', data=str(tmp_path), seq_len=16)
    task.labels = ['a', 'b', 'c']
    records = [Example('x', None, ('a', 'b')), Example('y', None, ()), Example('z', None, ('c',))]
    logits = [[2, -2, 1], [-3, -3, -3], [-1, -1, 4]]
    found = list(task.judgments(records, task.rows(records, [Scores(np.array(row, float)) for row in logits])))
    assert [one.error > 0 for one in found] == [True, False, False]
    assert found[0].classes == [('a', 'a'), ('b', ''), ('', 'c')] and found[1].classes == []
    assert (found[0].true, found[0].predicted, found[1].true) == ('a, b', 'a, c', 'none')


def test_endings(tmp_path: pathlib.Path):
    task = build_task('multiple_choice', data=str(tmp_path), seq_len=16, layout='jsonl')
    record = Choice('here', 'A cat', 'It', ('sleeps', 'flies'), 0)
    rows = [{'prediction': 1, 'probabilities': [0.2, 0.8]}, {'prediction': 0, 'probabilities': [0.9, 0.1]}]
    found = list(task.judgments([record, record], rows))
    assert (found[0].true, found[0].predicted, found[0].texts) == ('sleeps', 'flies (0.80)', {'prompt': 'A cat It'})
    assert found[0].error == pytest.approx(1.6) and found[1].error == 0


def test_answers(tmp_path: pathlib.Path):
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
    found = list(task.judgments([known, known, unknown, unknown], rows))
    assert [one.error for one in found] == [0, 1.6, 0, 1.5]
    assert found[0].true == 'in the north | the north' and found[2].true == 'no answer'
    assert 'in the north' in found[0].texts['text'] and len(found[0].texts['text']) < 400
    assert found[3].classes == [('no answer', 'an answer')] and found[0].classes == [('an answer', 'an answer')]
    first = build_task('squad', data=str(tmp_path), seq_len=128)
    assert not any(one.classes for one in first.judgments([known], rows[:1]))


def test_tags(tmp_path: pathlib.Path):
    task = build_task('tagging', data=str(tmp_path), seq_len=16)
    words = ('Ada', 'Lovelace', 'in', 'London')
    record = Sentence('file:1', words, ('B-PER', 'I-PER', 'O', 'B-LOC'))
    rows = [{'tags': ['B-PER', 'O', 'O', 'B-LOC']}, {'tags': ['B-PER', 'I-PER', 'O', 'B-ORG']}, {'tags': record.tags}]
    found = list(task.judgments([record] * 3, rows))
    assert [one.error for one in found] == [2, 1, 0]
    assert found[0].classes == [('', 'PER'), ('PER', ''), ('LOC', 'LOC')] and found[1].classes[1] == ('LOC', 'ORG')
    assert (found[0].true, found[0].predicted) == ('Ada Lovelace [PER]', 'Ada [PER]')
    assert found[0].texts == {'sentence': 'Ada Lovelace in London'}
    plain = build_task('tagging', data=str(tmp_path), seq_len=16, scheme='plain')
    (one,) = plain.judgments([record], rows[:1])
    assert one.error == 1 and one.classes[1] == ('I-PER', 'O') and len(one.classes) == 4


def test_relations(tmp_path: pathlib.Path):
    """The marks show what the sentence is asked about."""
    task = build_task('relation', data=str(tmp_path), seq_len=32)
    task.labels = ['born_in', 'no_relation']
    record = Relation('Ada was born in London', (MarkedEntity(0, 3, 'PER'), MarkedEntity(16, 22, 'LOC')), 'born_in')
    (one,) = task.judgments([record], task.rows([record], [Scores(np.array([0.0, 2.0]))]))
    assert one.classes == [('born_in', 'no_relation')] and one.texts['text'].count('Ada') == 1
    assert len(one.texts['text']) > len(record.text)
