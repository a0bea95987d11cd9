"""Tests the conversion of TriviaQA's layout to SQuAD's."""

import collections
import json
import pathlib
from collections.abc import Callable

import pytest
from etils import epath

from bertjax.commands.triviaqa import run as run_triviaqa
from bertjax.config.files import load_recipe
from bertjax.errors import UserError
from bertjax.tasks.squad.files import SquadFiles
from bertjax.tasks.squad.trivia import (
    alias_pattern,
    convert_to_squad,
    find_aliases,
    first_words,
    read_questions,
)

LONG = ' '.join(['word'] * 399)
QUESTION = {
    'Question': 'Which bird sings by night?',
    'QuestionId': 'tc_1',
    'Answer': {
        'Value': 'Nightingale',
        'Aliases': ['Nightingale', 'Luscinia megarhynchos', 'night-ingale'],
        'Type': 'X',
    },
    'EntityPages': [{'DocSource': 'TagMe', 'Filename': 'Birds.txt', 'Title': 'Birds'}],
    'SearchResults': [{'Filename': '0/0_1.txt', 'Rank': 1, 'Url': 'http://…'}],
}


@pytest.fixture
def triviaqa(tmp_path: pathlib.Path) -> pathlib.Path:
    """Returns a folder triviaqa-rc with two questions; one has no answer within the words that are read."""
    folder = tmp_path / 'triviaqa-rc'
    late = {**QUESTION, 'QuestionId': 'tc_2', 'EntityPages': [{'Filename': 'Late.txt'}], 'SearchResults': []}
    texts = {
        'qa/wikipedia-train.json': json.dumps({'Data': [QUESTION, late], 'Domain': 'Wikipedia', 'Version': 1.0}),
        'evidence/wikipedia/Birds.txt': '  Owls hoot.\nThe NIGHTINGALE (Luscinia\nmegarhynchos), or nightingale, …',
        'evidence/wikipedia/Late.txt': f'{LONG} one Nightingale',
        'evidence/web/0/0_1.txt': f'{LONG} Nightingales',
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding='utf-8')
    return folder


@pytest.fixture
def convert() -> Callable[..., None]:
    """convert(data, workdir, **task): runs the command triviaqa with the recipe's config."""

    def run(data: pathlib.Path, workdir: pathlib.Path, **task: str) -> None:
        config = load_recipe(str(pathlib.Path(__file__).parents[3] / 'configs' / 'squad.py'))
        config.data = str(data)
        for key, value in task.items():
            config.task[key] = value
        run_triviaqa(config, str(workdir))

    return run


def converted(folder: pathlib.Path, counts: collections.Counter[str]) -> list[dict]:
    path = epath.Path(folder / 'qa' / 'wikipedia-train.json')
    return list(convert_to_squad(epath.Path(folder), path, read_questions(path), counts))


def test_documents_with_an_answer_become_paragraphs(triviaqa: pathlib.Path, tmp_path: pathlib.Path):
    counts = collections.Counter()
    (entry,) = converted(triviaqa, counts)
    assert counts == collections.Counter(questions=2, documents=3, paragraphs=1, answered=1)
    (paragraph,) = entry['paragraphs']
    (qa,) = paragraph['qas']
    assert qa['id'] == 'tc_1--Birds.txt' and qa['question'] == QUESTION['Question']
    assert paragraph['context'].startswith('Owls hoot.\nThe')
    texts = [answer['text'] for answer in qa['answers']]
    assert texts == ['NIGHTINGALE', 'Luscinia\nmegarhynchos', 'nightingale']
    for answer in qa['answers']:
        start = answer['answer_start']
        assert paragraph['context'][start : start + len(answer['text'])] == answer['text']
    (tmp_path / 'trivia.json').write_text(json.dumps({'data': [entry]}))
    (question,) = SquadFiles(str(tmp_path), '1.1', {'train': 'trivia.json', 'dev': '', 'test': ''}).records('train')
    assert question.answers[0] == 'NIGHTINGALE' and question.starts[0] == 15


def test_first_words_and_aliases():
    assert (
        first_words(' a  b\nc d ', 3) == 'a  b\nc' and first_words(f'{LONG} x y') == f'{LONG} x' and not first_words('')
    )
    pattern = alias_pattern(['York', 'New York', 'C++', ' '])
    aliases = [(answer['text'], answer['answer_start']) for answer in find_aliases('Yorks new york, york C++', pattern)]
    assert aliases == [('new york', 6), ('york', 16), ('C++', 21)]


def test_malformed_files_are_errors_with_the_path_of_the_value(triviaqa: pathlib.Path):
    path = triviaqa / 'qa' / 'wikipedia-train.json'
    for changes, where, found in (
        ({'Answer': None}, 'Data[1].Answer', 'null'),
        ({'Answer': {'Value': ''}}, 'Data[1].Answer.Value', "''"),
        ({'Question': 3}, 'Data[1].Question', '3'),
        ({'EntityPages': {}}, 'Data[1].EntityPages', '{}'),
        ({'EntityPages': [{'Title': 'x'}]}, 'Data[1].EntityPages[0]', "no 'Filename' among 'Title'"),
        ({'EntityPages': [{'Filename': 'no.txt'}]}, 'Data[1].EntityPages[0].Filename', 'no file'),
    ):
        path.write_text(json.dumps({'Data': [QUESTION, {**QUESTION, **changes}]}))
        with pytest.raises(UserError) as error:
            converted(triviaqa, collections.Counter())
        assert error.value.where == f'{path}: {where}' and error.value.found.startswith(found)
    bare = {key: value for key, value in QUESTION.items() if key not in ('EntityPages', 'SearchResults')}
    for text, found in (
        ('{"Data": []}', 'no list of questions in Data'),
        ('[1]', 'no list of questions in Data'),
        (json.dumps({'Data': [bare]}), 'no doc'),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=found):
            converted(triviaqa, collections.Counter())


def test_several_files_are_read_in_their_order(tmp_path: pathlib.Path):
    """config.task.train_file='a.json,b.json' reads both files in this order; ids must be unique across them."""

    def write(name: str, id: str) -> None:
        qa = {'id': id, 'question': 'q', 'answers': [{'text': 'b', 'answer_start': 2}]}
        (tmp_path / name).write_text(json.dumps({'data': [{'paragraphs': [{'context': 'a b', 'qas': [qa]}]}]}))

    write('a.json', '1')
    write('b.json', '2')
    files = lambda name: SquadFiles(str(tmp_path), '1.1', {'train': name, 'dev': '', 'test': ''})  # noqa: E731
    assert [question.id for question in files('b.json, a.json').records('train')] == ['2', '1']
    for name in ('a.json,c.json', 'a.json,a.json'):
        with pytest.raises(UserError, match=r'expected a\.json,'):
            files(name).records('train')
    write('b.json', '1')
    with pytest.raises(UserError, match='a different id'):
        files('a.json,b.json').records('train')


def test_the_command_writes_files_of_squad(convert, triviaqa: pathlib.Path, tmp_path: pathlib.Path, capsys):
    """It writes WORKDIR/train-v1.1.json, which SQuAD's recipe reads, and no dev file if the data have none."""
    workdir = tmp_path / 'out'
    convert(triviaqa, workdir)
    output = capsys.readouterr().out
    assert '1 of 3 documents have an answer in their first 400 words; 1 of 2 questions' in output
    text = (workdir / 'train-v1.1.json').read_text(encoding='utf-8')
    assert text == json.dumps(json.loads(text), ensure_ascii=False) + '\n' and len(json.loads(text)['data']) == 1
    assert not (workdir / 'dev-v1.1.json').exists()
    with pytest.raises(UserError, match='without qa/wikipedia-train'):
        convert(triviaqa / 'qa', workdir)
    with pytest.raises(UserError, match=r'no file .*web-dev'):
        convert(triviaqa, workdir, dev_file='qa/web-dev.json')
    with pytest.raises(UserError, match='give --config=squad:v1'):
        convert(triviaqa, workdir, version='2.0')
