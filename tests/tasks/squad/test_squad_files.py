"""Tests the files of a question answering task: splits, prepared datasets, and one question per row."""

import gzip
import json

import numpy as np
import pytest
from etils import epath
from squad_world import GOOD, letters_tokenizer, qa, squad_json, write

from bertjax.errors import UserError
from bertjax.tasks.squad.questions import SquadQuestion, check_questions, parse_squad_json
from bertjax.tasks.squad.task import SquadTask


def test_the_files_of_each_split_are_found(tmp_path):
    task = SquadTask(data=str(tmp_path), seq_len=100, version='2.0')
    with pytest.raises(UserError, match=r'found an empty folder, expected train-v2.0.json or train-v2.0.json.gz, '):
        task.records('train')
    write(tmp_path / 'train-v2.0.json', GOOD)
    assert task.splits() == ['train']
    (tmp_path / 'dev-v2.0.json.gz').write_bytes(gzip.compress(json.dumps(GOOD).encode()))
    assert task.splits() == ['train', 'dev']
    assert (
        task.records('train')
        == task.records('dev')
        == check_questions(parse_squad_json(json.dumps(GOOD), 'f.json'), answerable=True, needed=True)
    )
    for split, key in (('test', 'config.task.test_file'), ('validation', 'config.split')):
        with pytest.raises(UserError, match=key):
            task.records(split)
    bare = squad_json({'context': 'red', 'qas': [{'id': 'a', 'question': 'who'}]})
    for content, splits in ((GOOD, ['train', 'dev', 'test']), (bare, ['train', 'dev'])):
        write(tmp_path / 'mine.json', content)
        task = SquadTask(data=str(tmp_path), seq_len=100, version='2.0', test_file='mine.json')
        assert task.splits() == splits and len(task.records('test')) == 1
    with pytest.raises(UserError, match=r"'dev-v2.0.json.gz', 'mine.json', 'train-v2.0.json', expected other.json"):
        SquadTask(data=str(tmp_path), seq_len=100, dev_file='other.json').records('dev')
    for name, found in (
        ('no', 'no such folder'),
        ('mine.json', 'its folder; give .*, with config.task.dev_file=mine.json'),
        ('mine.json/', 'its folder; give .*, with config.task.dev_file=mine.json'),
    ):
        with pytest.raises(UserError, match=found):
            SquadTask(data=f'{tmp_path}/{name}', seq_len=100).records('dev')


def test_a_single_object_is_refused_with_the_path_of_its_folder(bucket):
    bucket.put({'squad/mine.json': json.dumps(GOOD).encode()})
    with pytest.raises(UserError) as caught:
        SquadTask(data='s3://bucket/squad/mine.json', seq_len=100).records('dev')
    assert caught.value.found == 'the file s3://bucket/squad/mine.json'
    assert caught.value.fix == 'give s3://bucket/squad, with config.task.dev_file=mine.json'
    with pytest.raises(UserError, match=r"^s3://bucket/squad: found 'mine\.json', expected dev-v1\.1\.json"):
        SquadTask(data='s3://bucket/squad', seq_len=100).records('dev')


def test_a_deeply_nested_file_is_refused(tmp_path):
    (tmp_path / 'train.json').write_text('{"a":' * 100_000)
    with pytest.raises(UserError, match='JSON that cannot be parsed'):
        SquadTask(data=str(tmp_path), seq_len=100).records('train')


def test_v1_refuses_questions_without_an_answer(tmp_path):
    write(tmp_path / 'dev-v1.1.json', squad_json({'context': 'red', 'qas': [qa('a', (), is_impossible=True)]}))
    with pytest.raises(UserError, match=r"config\.task\.version='2\.0'"):
        SquadTask(data=str(tmp_path), seq_len=100).records('dev')


def test_published_files_are_read(shared):
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
    """Prepares datasets with the names and features of squad/v1.1 and squad/v2.0 where tensorflow-datasets searches."""
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


def test_tensorflow_datasets_are_read(prepared):
    for version in ('1.1', '2.0'):
        task = SquadTask(data='', seq_len=100, version=version)
        assert task.splits() == ['train', 'dev']
        for split in ('train', 'dev'):
            questions = sorted(task.records(split), key=lambda question: question.id)
            assert questions == [
                SquadQuestion(f'{split}0', 'who', ' é😀 x', ('é', '😀 x'), (1, 2)),
                SquadQuestion(f'{split}1', 'who', ' é😀 x', (), ()),
            ]


@pytest.mark.parametrize('more', [{}, {'is_impossible': False}])
def test_a_test_file_without_answers_is_unlabeled(tmp_path, more: dict):
    """The file has no answers, and nothing says that the questions have none, so it is only for prediction."""
    write(tmp_path / 'train-v2.0.json', GOOD)
    write(tmp_path / 'dev-v2.0.json', GOOD)
    bare = [qa('a', (), **more), qa('b', (), **more)]
    write(tmp_path / 'test.json', squad_json({'context': 'red', 'qas': bare}))
    task = SquadTask(data=str(tmp_path), seq_len=100, version='2.0')
    assert task.splits() == ['train', 'dev'] and [q.answers for q in task.records('test')] == [None, None]
    assert task.sources().endswith('test: test.json (no answers; for prediction only)')
    labeled = squad_json({'context': 'red', 'qas': [*bare, qa('c', (), is_impossible=True)]})
    write(tmp_path / 'test.json', labeled)
    assert task.splits() == ['train', 'dev', 'test'] and [q.answers for q in task.records('test')] == [()] * 3
    write(tmp_path / 'dev-v2.0.json', squad_json({'context': 'red', 'qas': bare}))
    with pytest.raises(UserError, match=r'no answer in any question, expected answers, or "is_impossible": true'):
        task.records('dev')


FLAT = {
    'id': 'q1',
    'title': 't',
    'question': 'who',
    'context': 'é red',
    'answers': {'text': ['red'], 'answer_start': [2]},
}


@pytest.mark.parametrize(
    ('name', 'form'),
    [(name, 'lines') for name in ('train.jsonl', 'train.json', 'train-v2.0.json')]
    + [(name, 'list') for name in ('train.json', 'train-v2.0.json')],
)
def test_files_with_one_question_per_row_are_read(tmp_path, name: str, form: str):
    rows = [FLAT, {**FLAT, 'id': 7, 'answers': {'text': [], 'answer_start': []}}]
    rows.append({'question': 'w', 'context': 'x y', 'answers': [{'text': 'y', 'answer_start': 2}]})
    text = json.dumps(rows, indent=1) if form == 'list' else ''.join(json.dumps(row) + '\n' for row in rows)
    (tmp_path / name).write_text(text)
    questions = SquadTask(data=str(tmp_path), seq_len=100, version='2.0').records('train')
    assert [(q.id, q.answers, q.starts) for q in questions[:2]] == [('q1', ('red',), (2,)), ('7', (), ())]
    assert questions[2].answers == ('y',) and questions[2].id.startswith(name)


@pytest.mark.parametrize('start', [-500, -1, 99, 10**30])
def test_an_answer_at_a_position_outside_the_context_is_moved(tmp_path, capsys, start: int):
    write(tmp_path / 'train-v1.1.json', squad_json({'context': 'a red house', 'qas': [qa('q', (('red', start),))]}))
    task = SquadTask(data=str(tmp_path), seq_len=100)
    records = task.records('train')
    task.learn(records)
    assert f"nearest occurrence in the text is used: 1\n  q: 'red' at {start}, found at 2\n" in capsys.readouterr().out
    tokenizer = letters_tokenizer()
    features = task.features(records, tokenizer, training=True)
    assert tokenizer.pieces[features.tokens[features.row['start'][0]]] == 'red'
    (judgment,) = task.judgments(records, [{'answer': '', 'start': None, 'probability': 1.0}])
    assert judgment.texts['text'] == '… a red house …'


def test_the_position_of_an_answer_with_another_text_is_kept(tmp_path):
    context = f'{"It is a house. " * 40}He paid twenty-five dollars. {"It is a house. " * 40}'
    starts = (context.index('twenty'), context.index('paid'))
    questions = [qa(str(start), (('25 dollars', start),)) for start in starts]
    write(tmp_path / 'dev-v1.1.json', squad_json({'context': context, 'qas': questions}))
    task = SquadTask(data=str(tmp_path), seq_len=100)
    records = task.records('dev')
    for judgment in task.judgments(records, [{'answer': '', 'start': None, 'probability': 1.0}] * 2):
        assert 'paid twenty-five dollars' in judgment.texts['text']
    features = task.features(records, letters_tokenizer(), training=False)
    assert 'because their answer is not in the text or has no piece: 2\n' in features.notes[0]


@pytest.mark.parametrize('form', ['layout', 'lines', 'list'])
def test_all_shards_of_a_split_are_read(tmp_path, form: str):
    parts = [['a'], ['b', 'c']]  # The first shard has only one line.
    for number, names in enumerate(parts):
        rows = [{**FLAT, 'id': name} for name in names]
        text = json.dumps(rows) if form == 'list' else ''.join(json.dumps(row) + '\n' for row in rows)
        if form == 'layout':
            text = json.dumps(squad_json({'context': 'é red', 'qas': [qa(name, (('red', 2),)) for name in names]}))
        (tmp_path / f'train-0000{number}-of-00002.json').write_text(text)
    task = SquadTask(data=str(tmp_path), seq_len=100)
    assert [(q.id, q.answers) for q in task.records('train')] == [(name, ('red',)) for name in 'abc']
    (tmp_path / 'train-00000-of-00002.json').write_text((tmp_path / 'train-00001-of-00002.json').read_text())
    with pytest.raises(UserError, match=r"00001-of-00002.json.*: found the id 'b', as in train-00000-of-00002.json"):
        task.records('train')


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'context': None}, 'train.jsonl:1.context: found null'),
        ({'answers': {'text': ['red']}}, "train.jsonl:1.answers: found no 'answer_start'"),
        ({'answers': {'text': ['red'], 'answer_start': []}}, '1 texts and 0 answer_start'),
        ({'answers': 'red'}, 'train.jsonl:1.answers: found "red"'),
        ({'id': None}, 'train.jsonl:1.id: found null'),
    ],
)
def test_invalid_rows_are_errors_with_their_line(tmp_path, change: dict, message: str):
    (tmp_path / 'train.jsonl').write_text(json.dumps({**FLAT, **change}) + '\n')
    with pytest.raises(UserError) as error:
        SquadTask(data=str(tmp_path), seq_len=100).records('train')
    assert message in str(error.value), str(error.value)
