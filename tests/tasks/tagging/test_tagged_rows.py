"""Tests the reading of sentences from rows with lists of words and tags."""

import json
import pathlib

import pytest

from bertjax.errors import UserError
from bertjax.finetune.results import prediction_rows, write_predictions
from bertjax.finetune.task_data import TaskSplit
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.texts import number_lines
from bertjax.tasks.tagging.columns import read_columns
from bertjax.tasks.tagging.task import TaggingTask, Tags

ROWS = [
    {'id': '0', 'tokens': ['EU', 'rejects', 'call'], 'ner_tags': ['B-ORG', 'O', 'O'], 'pos_tags': [1, 2, 3]},
    {'id': '1', 'tokens': ['Jane'], 'ner_tags': ['B-PER'], 'pos_tags': [1]},
]


def write(folder: pathlib.Path, name: str, rows: list[dict]) -> None:
    (folder / name).write_text(''.join(json.dumps(row) + '\n' for row in rows))


def test_json_lines_are_read(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    write(tmp_path, 'train.jsonl', [*ROWS, {'tokens': [], 'ner_tags': []}])
    write(tmp_path, 'val.jsonl', ROWS)
    write(tmp_path, 'test.jsonl', [{'id': 'x', 'tokens': ['a', 'b']}])
    task = TaggingTask(str(tmp_path), 12)
    assert task.splits() == ['train', 'dev']
    assert task.sources() == 'train: train.jsonl, dev: val.jsonl, test: test.jsonl (no tags; for prediction only)'
    records = task.records('train')
    assert [(record.words, record.tags) for record in records] == [
        (('EU', 'rejects', 'call'), ('B-ORG', 'O', 'O')), (('Jane',), ('B-PER',)),
    ]  # fmt: skip
    assert records[1].where == f'{tmp_path}/train.jsonl:2' and records[0].scheme == 'iob2'
    assert f'skipped 1 records without words, the first at {tmp_path}/train.jsonl:3' in capsys.readouterr().out
    (test,) = task.records('test')
    assert test.tags is None and test.fields['id'] == 'x'
    write(tmp_path, 'test.jsonl', [{'tokens': [], 'ner_tags': []}, *ROWS])
    assert task.splits() == ['train', 'dev', 'test']
    task.learn(records)
    write(tmp_path, 'val.jsonl', [{'tokens': [], 'ner_tags': []}])
    with pytest.raises(UserError, match=r'val.jsonl: found no record with words, expected at least one'):
        task.records('dev')
    lines = number_lines('{"id": 7, "words": ["a", "b"], "tags": ["x", "y"]}\n\n{"tokens": ["c"]}\n')
    parsed = list(task.parse(lines, 'standard input'))
    assert [(record.words, record.tags, record.fields.get('id')) for record in parsed] == [
        (('a', 'b'), None, 7), (('c',), None, None),
    ]  # fmt: skip
    for indent in (None, 1):  # a list, as in a split of the folder
        text = json.dumps([{'words': ['a', 'b']}, {'tokens': ['[']}], indent=indent)
        assert [record.words for record in task.parse(number_lines(text), 'in.json')] == [('a', 'b'), ('[',)]


@pytest.mark.parametrize('line', [1, 3])
def test_a_partly_tagged_test_file_is_refused(tmp_path: pathlib.Path, line: int):
    rows = [*ROWS]
    rows.insert(line - 1, {'tokens': ['a', 'b']})
    write(tmp_path, 'test.jsonl', rows)
    task = TaggingTask(str(tmp_path), 12)
    for read in (task.splits, lambda: task.records('test')):
        with pytest.raises(UserError, match=rf'test\.jsonl:{line}: found no tags, expected tags, as for other records'):
            read()


def test_a_record_without_words_has_a_row_among_the_predictions(tmp_path: pathlib.Path):
    task = TaggingTask(str(tmp_path), 12)
    rows = [{'id': 1, 'tokens': ['a']}, {'id': 2, 'tokens': []}, {'id': 3, 'tokens': ['b']}]
    records = list(task.parse(number_lines(''.join(json.dumps(row) + '\n' for row in rows)), 'in'))
    assert records == list(task.from_rows(Record(f'in:{i}', row) for i, row in enumerate(rows, 1)))
    predictions = [Tags(('O',), (1.0,))] * 2
    predicted = list(prediction_rows(task, records, predictions))
    assert [row['id'] for row in predicted] == [1, 2, 3] and predicted[2]['tags'] == ('O',)
    assert predicted[1] == {'id': 2, 'tokens': [], 'skipped': 'a record without words', 'where': 'in:2'}
    write_predictions(tmp_path, task, 'in', TaskSplit(records[::2], None), predictions, records)
    assert (tmp_path / 'in' / 'in.txt').read_text() == 'a\tO\n\nb\tO\n\n'


def test_tags_that_are_numbers_need_tag_names(tmp_path: pathlib.Path):
    write(tmp_path, 'train.json', [{'words': ['a', 'b'], 'tags': [0, 2]}] * 2)
    with pytest.raises(
        UserError, match=r"train.json:1: found the tag 0, expected the name of a tag; .*config.task.tag_names=\('O"
    ):
        TaggingTask(str(tmp_path), 12).records('train')
    names = ('O', 'I-X', 'B-X')
    assert TaggingTask(str(tmp_path), 12, tag_names=names).records('train')[0].tags == ('O', 'B-X')
    with pytest.raises(UserError, match='the tag 2, expected a number from 0 to 1'):
        TaggingTask(str(tmp_path), 12, tag_names=names[:2]).records('train')
    write(tmp_path, 'train.json', [{'words': ['a', 'b'], 'tags': [0, True]}] * 2)
    with pytest.raises(UserError, match='the tag True, expected a number from 0 to 2'):
        TaggingTask(str(tmp_path), 12, tag_names=names).records('train')


@pytest.mark.parametrize(
    ('row', 'message'),
    [
        ({'text': 'a'}, "the fields 'text', expected tokens or words"),
        ({'tokens': 'a b', 'tags': ['O']}, "field tokens: found 'a b', expected a list of words"),
        ({'tokens': ['a', ''], 'tags': ['O', 'O']}, "found '' at index 1, expected a non-blank word"),
        ({'tokens': ['a', 'b'], 'tags': ['O']}, '1 tags, expected 2'),
        ({'tokens': ['a']}, "no list of tags in the fields 'tokens'"),
        ({'tokens': ['a'], 'tags': ['NN']}, "the tag 'NN'"),
        ({'tokens': ['a'], 'tags': ['B-\ud83d']}, 'a lone surrogate'),
    ],
)
def test_malformed_rows_are_errors(tmp_path: pathlib.Path, row: dict, message: str):
    write(tmp_path, 'train.jsonl', [row])
    with pytest.raises(UserError) as error:
        TaggingTask(str(tmp_path), 12).records('train')
    assert message in str(error.value) and 'train.jsonl:1' in str(error.value), str(error.value)


def test_column_files_take_precedence_over_rows(tmp_path: pathlib.Path):
    write(tmp_path, 'train.json', ROWS)
    (tmp_path / 'train.txt').write_text('a B-X\n')
    (tmp_path / 'eval.txt').write_text('a B-X\n')
    task = TaggingTask(str(tmp_path), 12)
    assert task.records('train')[0].words == ('a',)
    assert task.sources() == "train: train.txt, dev: eval.txt\nnot used: 'train.json'"


@pytest.mark.parametrize('tag_column', [-1, 3, -2])
def test_rows_are_written_with_the_true_and_the_predicted_tag(tmp_path: pathlib.Path, tag_column):
    write(tmp_path, 'train.jsonl', ROWS)
    task = TaggingTask(str(tmp_path), 12, tag_column=tag_column)
    records = task.records('train')
    task.learn(records)
    text = task.official_files('dev', records, [Tags(record.tags, ()) for record in records])['dev.txt']
    words = [line.split('\t') for line in text.split('\n') if line]
    assert words[0] == ['EU', 'B-ORG', 'B-ORG'] and words[-1] == ['Jane', 'B-PER', 'B-PER']


def test_words_and_types_with_spaces_are_written_between_tabs(tmp_path: pathlib.Path):
    write(tmp_path, 'train.jsonl', [{'tokens': ['New York', 'is'], 'tags': ['B-big city', 'O']}])
    task = TaggingTask(str(tmp_path), 12)
    (record,) = task.records('train')
    text = task.official_files('dev', [record], [Tags(record.tags, ())])['dev.txt']
    assert text == 'New York\tB-big city\tB-big city\nis\tO\tO\n\n'
    (again,) = read_columns(text, 'dev.txt', task.format, tagged=True)
    assert (again.words, again.tags) == (record.words, record.tags)
    write(tmp_path, 'train.jsonl', [{'tokens': ['a'], 'tags': ['NN\n']}])
    with pytest.raises(UserError, match=r"train.jsonl:1: found the tag 'NN\\n', expected a non-blank tag"):
        TaggingTask(str(tmp_path), 12, scheme='plain').records('train')
