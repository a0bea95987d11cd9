"""Tests parsing SQuAD files and input questions, and errors about them."""

import gzip
import json

import pytest
from squad_world import GOOD, qa, squad_json

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Blank, number_lines
from bertjax.tasks.squad.files import read_questions
from bertjax.tasks.squad.questions import (
    SquadQuestion,
    check_ids,
    check_questions,
    parse_input,
    parse_question_row,
    parse_squad_json,
)


def parse(content, *, answerable=True, needed=True):
    text = content if isinstance(content, str) else json.dumps(content)
    return check_questions(parse_squad_json(text, 'f.json'), answerable=answerable, needed=needed)


def parse_text(text: str) -> list[SquadQuestion]:
    return list(parse_input(list(number_lines(text)), 'in'))


def test_the_layout_of_v1_is_parsed():
    content = squad_json(
        {'context': 'red 😀 house', 'qas': [qa('a', (('red', 0), ('house', 6))), qa('b', (('house', 6),))]},
        {'context': '', 'qas': []},
        {'context': 'it', 'qas': [qa('c', (('it', 0),), is_impossible=False, more=1)]},
    )
    assert parse(content) == [
        SquadQuestion('a', 'who is it', 'red 😀 house', ('red', 'house'), (0, 6)),
        SquadQuestion('b', 'who is it', 'red 😀 house', ('house',), (6,)),
        SquadQuestion('c', 'who is it', 'it', ('it',), (0,)),
    ]


def test_the_layout_of_v2_is_parsed():
    impossible = qa('a', (), is_impossible=True, plausible_answers=[{'text': 'red', 'answer_start': 0}])
    without = {'id': 'b', 'question': '', 'is_impossible': True}
    content = squad_json({'context': 'red', 'qas': [impossible, without, qa('c', ()), qa('d')]})
    questions = parse(content, answerable=False)
    assert [question.answers for question in questions] == [(), (), (), ('red',)]
    assert questions[1].question == ''


def test_blank_answers_are_no_answers():
    content = squad_json({'context': 'red', 'qas': [qa('a', (('', -1),)), qa('b', ((' ', 0), ('red', 0)))]})
    questions = parse(content, answerable=False)
    assert [(question.answers, question.starts) for question in questions] == [((), ()), (('red',), (0,))]
    row = {'question': 'who', 'context': 'red', 'answers': {'text': [''], 'answer_start': [0]}}
    assert parse_question_row(row, 'f.jsonl:1').answers == ()
    with pytest.raises(UserError, match=r"found no answer, .* set config\.task\.version='2\.0'"):
        parse(content)
    with pytest.raises(UserError, match=r"found none, .* set config\.task\.version='2\.0'"):
        parse(content, needed=False)


def test_answers_may_be_missing_for_all_questions():
    bare = {'id': 'a', 'question': 'who', 'context': 'x'}
    content = squad_json({'context': 'red', 'qas': [bare, qa('b', ())]})
    assert [q.answers for q in parse(content, needed=False)] == [None, None]
    unlabeled = parse_squad_json(json.dumps(squad_json({'context': 'red', 'qas': [qa()]})), 'f.json', labeled=False)
    assert [q.answers for q in unlabeled] == [None]
    assert [q.answers for q in parse(GOOD, needed=False)] == [('red',)]
    with pytest.raises(UserError, match=r'f.json:data\[0\].paragraphs\[0\].qas\[1\].answers: found none'):
        parse(squad_json({'context': 'red', 'qas': [qa('a'), {'id': 'b', 'question': 'who'}]}), needed=False)


def broken(*path, value=None, drop=False):
    """Returns GOOD with the value at `path` replaced or removed."""
    content = json.loads(json.dumps(GOOD))
    *parents, last = path
    node = content
    for key in parents:
        node = node[key]
    if drop:
        del node[last]
    else:
        node[last] = value
    return content


Q = ('data', 0, 'paragraphs', 0, 'qas', 0)
A = (*Q, 'answers', 0)


@pytest.mark.parametrize(
    ('content', 'where', 'found'),
    [
        ([], 'f.json', 'a JSON list'),
        ('"data"', 'f.json', 'a JSON str'),
        ({'version': '1.1'}, 'f.json', "no 'data' among 'version'"),
        (broken('data', value={}), 'f.json:data', '{}'),
        (broken('data', value=[]), 'f.json', 'no question'),
        (broken('data', 0, value='x'), 'f.json:data[0]', '"x"'),
        (broken('data', 0, 'paragraphs', drop=True), 'f.json:data[0]', "no 'paragraphs' among 'title'"),
        (broken('data', 0, 'paragraphs', 0, value=None), 'f.json:data[0].paragraphs[0]', 'null'),
        (broken(*Q[:4], 'context', drop=True), 'f.json:data[0].paragraphs[0]', "no 'context' among 'qas'"),
        (broken(*Q[:4], 'context', value=3), 'f.json:data[0].paragraphs[0].context', '3'),
        (broken(*Q[:4], 'qas', value=None), 'f.json:data[0].paragraphs[0].qas', 'null'),
        (broken(*Q, value=[]), 'f.json:data[0].paragraphs[0].qas[0]', '[]'),
        (broken(*Q, 'id', drop=True), 'f.json:data[0].paragraphs[0].qas[0]', "no 'id' among 'question', 'answers'"),
        (broken(*Q, 'id', value=7.5), 'f.json:data[0].paragraphs[0].qas[0].id', '7.5'),
        (broken(*Q, 'question', value=['who']), 'f.json:data[0].paragraphs[0].qas[0].question', '["who"]'),
        (broken(*Q, 'answers', drop=True), 'f.json:data[0].paragraphs[0].qas[0]', "no 'answers'"),
        (broken(*Q, 'answers', value=[]), 'f.json:data[0].paragraphs[0].qas[0].answers', 'no answer'),
        (broken(*Q, 'answers', value={'text': ['x' * 99]}), 'f.json:data[0].paragraphs[0].qas[0].answers', 'xxx…'),
        (broken(*Q, 'is_impossible', value='no'), 'f.json:data[0].paragraphs[0].qas[0].is_impossible', '"no"'),
        (
            broken(*Q, 'is_impossible', value=True),
            'f.json:data[0].paragraphs[0].qas[0].answers',
            '1 answers and is_impossible',
        ),
        (broken(*A, value='red'), 'f.json:data[0].paragraphs[0].qas[0].answers[0]', '"red"'),
        (broken(*A, 'text', value=None), 'f.json:data[0].paragraphs[0].qas[0].answers[0].text', 'null'),
        (broken(*A, 'answer_start', drop=True), 'f.json:data[0].paragraphs[0].qas[0].answers[0]', "no 'answer_start'"),
        (broken(*A, 'answer_start', value='0'), '….answers[0].answer_start', '"0"'),
        (broken(*A, 'answer_start', value=0.0), '….answers[0].answer_start', '0.0'),
        (broken(*A, 'answer_start', value=True), '….answers[0].answer_start', 'true'),
        (broken(*Q, 'question', value='cut \ud83d'), '….question', 'a lone surrogate'),
        ('{"data": [\n  {"paragraphs" []}]}', 'f.json:2:17', "Expecting ':'"),
        ('{"data": [', 'f.json:1:11', 'the end of the file'),
        ('', 'f.json:1:1', 'the end of the file'),
        ('[' * 100_000, 'f.json', 'cannot be parsed'),
        ('9' * 5_000, 'f.json', 'cannot be parsed'),
    ],
)
def test_invalid_json_is_an_error_with_its_path(content, where, found):
    with pytest.raises(UserError) as error:
        parse(content)
    assert error.value.where == where.replace('…', 'f.json:data[0].paragraphs[0].qas[0]')
    assert found in error.value.found


def test_repeated_ids_are_refused():
    content = squad_json({'context': 'red', 'qas': [qa('a'), qa('b')]}, {'context': 'red', 'qas': [qa('b')]})
    with pytest.raises(UserError, match=r"paragraphs\[1\].qas\[0\]: found the id 'b', as in f.json:d.*.qas\[1\]"):
        parse(content)


def test_files_may_be_gzipped_and_have_a_byte_order_mark(tmp_path):
    raw = json.dumps(squad_json({'context': 'é\r\n😀 red', 'qas': [qa('q', (('red', 5),))]}), indent=1).encode()
    raw = raw.replace(b'\n', b'\r\n')
    for name, data in (('a.json', raw), ('b.json.gz', gzip.compress(raw)), ('c.json', b'\xef\xbb\xbf' + raw)):
        (tmp_path / name).write_bytes(data)
        (question,) = read_questions((tmp_path / name,), answerable=True, needed=True)
        assert question.context == 'é\r\n😀 red' and question.context[question.starts[0] :] == 'red'
    for name, data, found in (
        ('d.gz', gzip.compress(raw)[:40], 'damaged gzip'),
        ('e.json', json.dumps(GOOD).encode('utf-16'), 'e.json:1: found the byte 0xff'),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=found):
            read_questions((tmp_path / name,), answerable=True, needed=True)


def test_json_lines_are_parsed():
    text = '{"question": "who", "context": "a\\tb 😀"}\r\n\n{"id": "x", "question": "w", "context": "c", "k": 1}\n'
    assert parse_text(text) == [SquadQuestion('1', 'who', 'a\tb 😀'), SquadQuestion('x', 'w', 'c')]
    row = {'id': 7, 'question': 'who', 'context': 'a', 'data': [1]}
    assert parse_text(f'{json.dumps(row)}\n' + text) == [SquadQuestion('7', 'who', 'a'), *parse_text('\n' + text)]
    for indent in (None, 1):
        as_list = json.dumps(
            [{'question': 'who', 'context': 'a'}, {'id': 'x', 'question': 'w', 'context': 'c'}], indent=indent
        )
        assert parse_text(as_list) == [SquadQuestion('0', 'who', 'a'), SquadQuestion('x', 'w', 'c')]


@pytest.mark.parametrize('change', [{'context': ''}, {'context': None}, {'question': ' '}])
def test_a_row_with_a_blank_text_has_no_prediction(change):
    rows = [{'question': 'who', 'context': 'a'} | new for new in ({}, change, {})]
    lines = list(number_lines(''.join(json.dumps(row) + '\n' for row in rows)))
    for questions in (parse_input(lines, 'in'), parse_input(iter(lines), 'in')):
        assert list(questions) == [
            SquadQuestion('1', 'who', 'a'), Blank('in:2', 'an empty text', rows[1]), SquadQuestion('3', 'who', 'a'),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ('text', 'where', 'found'),
    [
        ('', 'in', 'an empty input'),
        ('\n \n', 'in', 'an empty input'),
        ('{"question": "who"}', 'in:1', "no 'context' among 'question'"),
        ('{"question": "w", "context": "x"}\n[1]', 'in:2', 'a JSON list'),
        ('{"question": "w", "context": "x"}\n{"question": 1, "context": "x"}', 'in:2.question', '1'),
        (
            '{"question": "w", "context": "x"}\n{"question": "w" "context": "x"}',
            'in:2',
            "Expecting ',' delimiter: line 1 column 18",
        ),
        ('{"question": "w", "context": }', 'in:1', 'Expecting value: line 1 column 30'),
        (
            '{"question": "w", "context": "x"}\n{"id": "1", "question": "w", "context": "x"}',
            'in:2',
            "the id '1', as in in:1",
        ),
        (
            '{"id": "2", "question": "w", "context": "x"}\n{"question": "w", "context": "x"}',
            'in:2',
            "the id '2', as in in:1",
        ),
        ('{"id": [5], "question": "w", "context": "x"}', 'in:1.id', '[5]'),
        ('{"data": [}', 'in:1:11', 'Expecting value'),
        ('{\n "data": 5}', 'in:data', '5'),
    ],
)
def test_invalid_input_is_an_error_with_its_line(text, where, found):
    with pytest.raises(UserError) as error:
        parse_text(text)
    assert error.value.where == where and found in error.value.found


def test_input_in_the_layout_of_squad_needs_no_answers():
    content = squad_json({'context': 'red', 'qas': [{'id': 'a', 'question': 'who'}, qa('b')]})
    for indent in (None, 2):
        assert parse_text(json.dumps(content, indent=indent)) == [
            SquadQuestion('a', 'who', 'red'),
            SquadQuestion('b', 'who is it', 'red'),
        ]


def test_the_error_about_a_repeated_id_names_the_first_line():
    text = '{"id": "a", "question": "w", "context": "x"}\n' * 2
    with pytest.raises(UserError, match=r"in:2: found the id 'a', as in in:1"):
        parse_text(text)


def test_the_id_of_a_row_without_an_id_is_its_number():
    row = {'question': 'w', 'context': 'x'}
    places = ('gs://b/x.parquet[3]', 'run:1/x.parquet[4]', 'in:5')
    assert [parse_question_row(row, at, labeled=False).id for at in places] == ['3', '4', '5']
    with pytest.raises(UserError, match=r"^a/x.parquet\[1\]: found the id 'q', as in x.parquet\[0\]"):
        rows = (parse_question_row({**row, 'id': 'q'}, f'a/x.parquet[{i}]', labeled=False) for i in range(2))
        list(check_ids(rows))
