"""SQuAD's files are read as they are, and what is wrong in them is named."""

import gzip
import json

import numpy as np
import pytest
from etils import epath
from squad_world import qa, squad_json, write

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import number_lines
from bertjax.tasks.squad.files import read_questions
from bertjax.tasks.squad.questions import Question, parse_input, parse_questions
from bertjax.tasks.squad.task import SquadTask

GOOD = squad_json({'context': 'red house', 'qas': [qa()]})


def parse(content, *, answerable=True, labels='needed'):
    text = content if isinstance(content, str) else json.dumps(content)
    return parse_questions(text, 'f.json', answerable=answerable, labels=labels)


def given(text: str) -> list[Question]:
    """From a whole file of one's own."""
    return list(parse_input(list(number_lines(text)), 'in'))


def test_the_layout_of_v1():
    content = squad_json(
        {'context': 'red 😀 house', 'qas': [qa('a', (('red', 0), ('house', 6))), qa('b', (('house', 6),))]},
        {'context': '', 'qas': []},
        {'context': 'it', 'qas': [qa('c', (('it', 0),), is_impossible=False, more=1)]},
    )
    assert parse(content) == [
        Question('a', 'who is it', 'red 😀 house', ('red', 'house'), (0, 6)),
        Question('b', 'who is it', 'red 😀 house', ('house',), (6,)),
        Question('c', 'who is it', 'it', ('it',), (0,)),
    ]


def test_the_layout_of_v2():
    impossible = qa('a', (), is_impossible=True, plausible_answers=[{'text': 'red', 'answer_start': 0}])
    without = {'id': 'b', 'question': '', 'is_impossible': True}
    content = squad_json({'context': 'red', 'qas': [impossible, without, qa('c', ()), qa('d')]})
    questions = parse(content, answerable=False)
    assert [question.answers for question in questions] == [(), (), (), ('red',)]
    assert questions[1].question == ''


def test_labels_that_are_not_there():
    bare = {'id': 'a', 'question': 'who', 'context': 'x'}
    content = squad_json({'context': 'red', 'qas': [bare, qa('b', ())]})
    assert [q.answers for q in parse(content, labels='optional')] == [None, None]
    assert [q.answers for q in parse(squad_json({'context': 'red', 'qas': [qa()]}), labels='ignored')] == [None]
    assert [q.answers for q in parse(GOOD, labels='optional')] == [('red',)]
    with pytest.raises(UserError, match=r'f.json:data\[0\].paragraphs\[0\].qas\[1\].answers: found none'):
        parse(squad_json({'context': 'red', 'qas': [qa('a'), {'id': 'b', 'question': 'who'}]}), labels='optional')


def broken(*path, value=None, drop=False):
    """GOOD with the value at `path` replaced, or without it."""
    content = json.loads(json.dumps(GOOD))
    *way, last = path
    place = content
    for step in way:
        place = place[step]
    if drop:
        del place[last]
    else:
        place[last] = value
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
        (broken(*Q, 'id', value=7), 'f.json:data[0].paragraphs[0].qas[0].id', '7'),
        (broken(*Q, 'question', value=['who']), 'f.json:data[0].paragraphs[0].qas[0].question', '["who"]'),
        (broken(*Q, 'answers', drop=True), 'f.json:data[0].paragraphs[0].qas[0]', "no 'answers'"),
        (broken(*Q, 'answers', value=[]), 'f.json:data[0].paragraphs[0].qas[0].answers', 'no answer'),
        (broken(*Q, 'answers', value={'text': ['x' * 99]}), 'f.json:data[0].paragraphs[0].qas[0].answers', 'xxx…'),
        (broken(*Q, 'is_impossible', value='no'), 'f.json:data[0].paragraphs[0].qas[0].is_impossible', '"no"'),
        (
            broken(*Q, 'is_impossible', value=True),
            'f.json:data[0].paragraphs[0].qas[0].answers',
            '1, and is_impossible',
        ),
        (broken(*A, value='red'), 'f.json:data[0].paragraphs[0].qas[0].answers[0]', '"red"'),
        (broken(*A, 'text', value=None), 'f.json:data[0].paragraphs[0].qas[0].answers[0].text', 'null'),
        (broken(*A, 'answer_start', drop=True), 'f.json:data[0].paragraphs[0].qas[0].answers[0]', "no 'answer_start'"),
        (broken(*A, 'answer_start', value='0'), '….answers[0].answer_start', '"0"'),
        (broken(*A, 'answer_start', value=0.0), '….answers[0].answer_start', '0.0'),
        (broken(*A, 'answer_start', value=True), '….answers[0].answer_start', 'true'),
        (broken(*A, 'answer_start', value=-1), '….answers[0].answer_start', '-1'),
        (broken(*Q, 'question', value='cut \ud83d'), '….question', 'half a surrogate pair'),
        ('{"data": [\n  {"paragraphs" []}]}', 'f.json:2:17', "Expecting ':'"),
        ('{"data": [', 'f.json:1:11', 'the end of the file'),
        ('', 'f.json:1:1', 'the end of the file'),
        ('[' * 100_000, 'f.json', 'cannot be read'),
        ('9' * 5_000, 'f.json', 'cannot be read'),
    ],
)
def test_what_is_wrong_is_named(content, where, found):
    with pytest.raises(UserError) as error:
        parse(content)
    assert error.value.where == where.replace('…', 'f.json:data[0].paragraphs[0].qas[0]')
    assert found in error.value.found


def test_ids_are_their_own():
    content = squad_json({'context': 'red', 'qas': [qa('a'), qa('b')]}, {'context': 'red', 'qas': [qa('b')]})
    with pytest.raises(UserError, match=r"paragraphs\[1\].qas\[0\].id: found 'b', which data\[0\].p.*\[0\].qas\[1\]"):
        parse(content)


def test_files_plain_gzipped_and_with_a_mark(tmp_path):
    raw = json.dumps(squad_json({'context': 'é\r\n😀 red', 'qas': [qa('q', (('red', 5),))]}), indent=1).encode()
    raw = raw.replace(b'\n', b'\r\n')
    for name, data in (('a.json', raw), ('b.json.gz', gzip.compress(raw)), ('c.json', b'\xef\xbb\xbf' + raw)):
        (tmp_path / name).write_bytes(data)
        (question,) = read_questions((tmp_path / name,), answerable=True, labels='needed')
        assert question.context == 'é\r\n😀 red' and question.context[question.starts[0] :] == 'red'
    for name, data, found in (
        ('d.gz', gzip.compress(raw)[:40], 'damaged gzip'),
        ('e.json', json.dumps(GOOD).encode('utf-16'), 'e.json:1: found the byte 0xff'),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=found):
            read_questions((tmp_path / name,), answerable=True, labels='needed')


def test_json_lines():
    text = '{"question": "who", "context": "a\\tb 😀"}\r\n\n{"id": "x", "question": "", "context": "", "k": 1}\n'
    assert given(text) == [Question('1', 'who', 'a\tb 😀'), Question('x', '', '')]


@pytest.mark.parametrize(
    ('text', 'where', 'found'),
    [
        ('', 'in', 'nothing'),
        ('\n \n', 'in', 'nothing'),
        ('{"question": "who"}', 'in:1', "no 'context' among 'question'"),
        ('{"question": "w", "context": "x"}\n[1]', 'in:2', 'a JSON list'),
        ('{"question": "w", "context": "x"}\n{"question": 1, "context": "x"}', 'in:2.question', '1'),
        ('{"question": "w", "context": "x"}\n{"question": "w" "context": "x"}', 'in:2:18', "Expecting ','"),
        ('{"question": "w", "context": }', 'in:1:30', 'Expecting value'),
        (
            '{"question": "w", "context": "x"}\n{"id": "1", "question": "w", "context": "x"}',
            'in:2.id',
            "'1' as in line 1",
        ),
        ('{"id": [5], "question": "w", "context": "x"}', 'in:1.id', '[5]'),
        ('{"data": [}', 'in:1:11', 'Expecting value'),
        ('{\n "data": 5}', 'in:data', '5'),
    ],
)
def test_wrong_input_is_named(text, where, found):
    with pytest.raises(UserError) as error:
        given(text)
    assert error.value.where == where and found in error.value.found


def test_input_in_the_layout_of_squad_needs_no_answers():
    content = squad_json({'context': 'red', 'qas': [{'id': 'a', 'question': 'who'}, qa('b')]})
    for indent in (None, 2):
        assert given(json.dumps(content, indent=indent)) == [
            Question('a', 'who', 'red'),
            Question('b', 'who is it', 'red'),
        ]


def test_splits_and_their_files(tmp_path):
    task = SquadTask(data=str(tmp_path), seq_len=100, version='2.0')
    with pytest.raises(UserError, match=r'found an empty folder, expected train-v2.0.json or train-v2.0.json.gz, '):
        task.records('train')
    write(tmp_path / 'train-v2.0.json', GOOD)
    (tmp_path / 'dev-v2.0.json.gz').write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert task.splits() == ['train', 'dev']
    assert task.records('train') == task.records('dev') == parse(GOOD)
    for split in ('test', 'validation'):
        with pytest.raises(UserError, match=r'config.split'):
            task.records(split)
    bare = squad_json({'context': 'red', 'qas': [{'id': 'a', 'question': 'who'}]})
    for content, splits in ((GOOD, ['train', 'dev', 'test']), (bare, ['train', 'dev'])):
        write(tmp_path / 'mine.json', content)
        task = SquadTask(data=str(tmp_path), seq_len=100, version='2.0', test_file='mine.json')
        assert task.splits() == splits and len(task.records('test')) == 1
    with pytest.raises(UserError, match=r"'dev-v2.0.json.gz', 'mine.json', 'train-v2.0.json', expected other.json"):
        SquadTask(data=str(tmp_path), seq_len=100, dev_file='other.json').records('dev')
    with pytest.raises(UserError, match='no such folder'):
        SquadTask(data=str(tmp_path / 'no'), seq_len=100).records('dev')


def test_v1_does_not_take_questions_without_answer(tmp_path):
    write(tmp_path / 'dev-v1.1.json', squad_json({'context': 'red', 'qas': [qa('a', (), is_impossible=True)]}))
    with pytest.raises(UserError, match=r"config\.task\.version='2\.0'"):
        SquadTask(data=str(tmp_path), seq_len=100).records('dev')


def test_every_shared_file_is_read(shared):
    counts = {'cs224n-dev-v2.0.json': 6078, 'xquad.en.json': 1190}
    counts |= {'squadshifts_new_wiki_v1.0.json.gz': 7938, 'squadshifts_reddit_v1.0.json.gz': 9803}
    for name, count in counts.items():
        version = '2.0' if 'v2' in name else '1.1'
        task = SquadTask(data=str(shared / 'squad'), seq_len=384, version=version, dev_file=name)
        questions = task.records('dev')
        assert len(questions) == count
        for question in questions:
            for answer, start in zip(question.answers, question.starts, strict=True):
                assert question.context.startswith(answer, start)


@pytest.fixture(scope='module')
def prepared(tmp_path_factory):
    """Datasets with the names and features of squad/v1.1 and squad/v2.0, where tensorflow-datasets looks for them."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core import registered
    from tensorflow_datasets.core.utils import file_utils

    answers = tfds.features.Sequence({'text': tfds.features.Text(), 'answer_start': np.int32})
    texts = {'id': np.str_, **{name: tfds.features.Text() for name in ('title', 'context', 'question')}}

    with registered.skip_registration():

        class Squad(tfds.core.GeneratorBasedBuilder):
            """Two questions."""

            name = 'squad'
            pkg_dir_path = epath.Path(__file__).parent
            VERSION = tfds.core.Version('3.0.0')
            BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=name) for name in ('v1.1', 'v2.0')]  # noqa: RUF012

            def _info(self):
                more = (
                    {'is_impossible': np.bool_, 'plausible_answers': answers}
                    if self.builder_config.name == 'v2.0'
                    else {}
                )
                features = tfds.features.FeaturesDict({**texts, 'answers': answers, **more})
                return tfds.core.DatasetInfo(builder=self, features=features)

            def _split_generators(self, dl_manager):
                return {'train': self._generate_examples('train'), 'validation': self._generate_examples('dev')}

            def _generate_examples(self, split):
                for index, (text, start) in enumerate(((['é', '😀 x'], [1, 2]), ([], []))):
                    row = {'id': f'{split}{index}', 'title': '', 'context': ' é😀 x', 'question': 'who'}
                    row['answers'] = {'text': text, 'answer_start': start}
                    if self.builder_config.name == 'v2.0':
                        row |= {'is_impossible': not text, 'plausible_answers': {'text': [], 'answer_start': []}}
                    yield index, row

    folder = str(tmp_path_factory.mktemp('tfds'))
    for name in ('v1.1', 'v2.0'):
        Squad(config=name, data_dir=folder, file_format='array_record').download_and_prepare()
    file_utils.add_data_dir(folder)
    yield
    file_utils.clear_registered_data_dirs()


def test_tensorflow_datasets(prepared):
    for version in ('1.1', '2.0'):
        task = SquadTask(data='', seq_len=100, version=version)
        for split in ('train', 'dev'):
            found = sorted(task.records(split), key=lambda question: question.id)
            assert found == [
                Question(f'{split}0', 'who', ' é😀 x', ('é', '😀 x'), (1, 2)),
                Question(f'{split}1', 'who', ' é😀 x', (), ()),
            ]


def test_json_lines_name_the_line_of_the_first_of_two_ids():
    text = '{"id": "a", "question": "w", "context": "x"}\n' * 2
    with pytest.raises(UserError, match=r"in:2.id: found 'a' as in line 1"):
        given(text)


@pytest.mark.parametrize('more', [{}, {'is_impossible': False}])
def test_a_test_file_without_answers_is_unlabelled(tmp_path, more: dict):
    """No answers, and nothing that says that there are none: it is only predicted."""
    write(tmp_path / 'train-v2.0.json', GOOD)
    write(tmp_path / 'dev-v2.0.json', GOOD)
    bare = [qa('a', (), **more), qa('b', (), **more)]
    write(tmp_path / 'test.json', squad_json({'context': 'red', 'qas': bare}))
    task = SquadTask(data=str(tmp_path), seq_len=100, version='2.0')
    assert task.splits() == ['train', 'dev'] and [q.answers for q in task.records('test')] == [None, None]
    assert task.sources().endswith('test: test.json (no answers: it is only predicted)')
    told = squad_json({'context': 'red', 'qas': [*bare, qa('c', (), is_impossible=True)]})
    write(tmp_path / 'test.json', told)
    assert task.splits() == ['train', 'dev', 'test'] and [q.answers for q in task.records('test')] == [()] * 3
    write(tmp_path / 'dev-v2.0.json', squad_json({'context': 'red', 'qas': bare}))
    with pytest.raises(UserError, match=r'no answer, as of every question, expected answers, or "is_impossible": true'):
        task.records('dev')


FLAT = {
    'id': 'q1',
    'title': 't',
    'question': 'who',
    'context': 'é red',
    'answers': {'text': ['red'], 'answer_start': [2]},
}


@pytest.mark.parametrize('name', ['train.jsonl', 'train.json', 'train-v2.0.json'])
@pytest.mark.parametrize('form', ['lines', 'list'])
def test_a_question_a_row(tmp_path, name: str, form: str):
    rows = [FLAT, {**FLAT, 'id': 7, 'answers': {'text': [], 'answer_start': []}}]
    rows.append({'question': 'w', 'context': 'x y', 'answers': [{'text': 'y', 'answer_start': 2}]})
    text = json.dumps(rows, indent=1) if form == 'list' else ''.join(json.dumps(row) + '\n' for row in rows)
    if form == 'list' and name.endswith('l'):
        pytest.skip('JSON lines are lines')
    (tmp_path / name).write_text(text)
    questions = SquadTask(data=str(tmp_path), seq_len=100, version='2.0').records('train')
    assert [(q.id, q.answers, q.starts) for q in questions[:2]] == [('q1', ('red',), (2,)), ('7', (), ())]
    assert questions[2].answers == ('y',) and questions[2].id.startswith(name)


@pytest.mark.parametrize(
    ('change', 'said'),
    [
        ({'context': None}, 'train.jsonl:1.context: found null'),
        ({'answers': {'text': ['red']}}, "train.jsonl:1.answers: found no 'answer_start'"),
        ({'answers': {'text': ['red'], 'answer_start': []}}, '1 texts and 0 places'),
        ({'answers': 'red'}, 'train.jsonl:1.answers: found "red"'),
        ({'id': None}, 'train.jsonl:1.id: found null'),
    ],
)
def test_wrong_rows_are_named(tmp_path, change: dict, said: str):
    (tmp_path / 'train.jsonl').write_text(json.dumps({**FLAT, **change}) + '\n')
    with pytest.raises(UserError) as error:
        SquadTask(data=str(tmp_path), seq_len=100).records('train')
    assert said in str(error.value), str(error.value)
