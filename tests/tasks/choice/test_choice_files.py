"""Tests the files of multiple choice: layouts, labels, inputs for prediction, and errors."""

import json
import pathlib

import numpy as np
import pytest
from swag_files import HEADER, SWAG, TEST

from bertjax.errors import UserError
from bertjax.finetune.results import write_predictions
from bertjax.finetune.task_data import TaskSplit
from bertjax.tasks.choice.files import ChoiceQuestion, parse_questions, read_questions
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.reading.layout import Record
from bertjax.tasks.reading.records import parse_records
from bertjax.tasks.reading.texts import number_lines

CODAH = 'i\tI am "very" hungry. I\tsleep.\teat.\tfly.\tsing.\t1\no\tIt rains. We\tswim.\tdrown.\tget wet.\tburn.\t2\n'


def json_questions(text: str, *, labeled: bool) -> list[ChoiceQuestion]:
    return list(parse_questions(parse_records(number_lines(text), 'f', 'jsonl'), labels_required=labeled))


def question(context: str, *endings: str, label: int | None = 0, start: str = '') -> ChoiceQuestion:
    return ChoiceQuestion('x:1', context, start, endings, label)


def test_swag_files_are_read(swag: MultipleChoiceTask):
    assert swag.splits() == ['train', 'dev'] and swag.name == 'SWAG' and swag.score == 'accuracy'
    first, second = swag.records('dev')
    assert first == ChoiceQuestion(
        f'{swag.data}/val.csv:2', 'A man sits.', 'He', ('stands up.', 'says "no", twice.', 'eats.', 'runs.'), 1,
        'gold0-orig',
    )  # fmt: skip
    assert second.endings[0] == 'a\nb' and second.label == 3 and second.where.endswith('val.csv:3')
    assert [record.label for record in swag.records('train')] == [1, 3]
    test = swag.records('test')
    assert (test[0].context, test[0].start, test[0].endings, test[0].label) == ('A', 'B', ('c', 'd', 'e', 'f'), None)


def write_file(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    return path


def check_error(error: UserError, parts: tuple[str, ...]) -> None:
    for part in parts:
        assert part in str(error), str(error)


@pytest.mark.parametrize(
    ('text', 'parts'),
    [
        ('', ('f.csv', 'an empty file')),
        (f'{HEADER}\n', ('f.csv', 'no row')),
        ('a,b\n1,2\n', ('f.csv:1', "the columns 'a', 'b'", 'a column sent1')),
        (HEADER.replace('ending0', 'distractor-0') + '\n', ('f.csv:1', 'a column ending0')),
        (TEST, ('f.csv:1', 'a column label')),
        (f'{HEADER}\n0,v,3,s,a,b,g,c,d,e,f\n', ('f.csv:2', '11 columns', '12')),
        (f'{SWAG}2,v,3,s,a,b,g,c,d,e,f,4\n', ('f.csv:5', "the label '4'", '0 to 3')),
        (f'{SWAG}2,v,3,s,a,b,g,c,d,e,f,x\n', ('f.csv:5', "the label 'x'")),
        (f'{SWAG}2,v,3,s,a,b,g,c,,e,f,1\n', ('f.csv:5', 'an empty ending 1')),
        (f'{SWAG}2,v,3,s, ,b,g,c,d,e,f,1\n', ('f.csv:5', 'an empty context')),
        (f'{SWAG}2,v,3,s,"a,b,g,c,d,e,f,1\n', ('f.csv:5', 'invalid CSV')),
        (f'{SWAG}2,v,3,s,"a"x,b,g,c,d,e,f,1\n', ('f.csv:5', 'invalid CSV')),
    ],
)
def test_malformed_swag_is_refused(tmp_path: pathlib.Path, text: str, parts: tuple[str, ...]):
    with pytest.raises(UserError) as error:
        read_questions((write_file(tmp_path / 'f.csv', text),), 'swag')
    check_error(error.value, parts)


def test_a_fifth_ending_in_swags_columns_is_refused(tmp_path: pathlib.Path):
    header, row, *_ = SWAG.replace(',label', ',ending4,label').replace('runs.,1', 'runs.,waits.,1').splitlines()
    (tmp_path / 'train.csv').write_text(f'{header}\n{row}\n')
    task, match = MultipleChoiceTask(str(tmp_path), 16), r'train\.csv:2: found the column ending4, .*swag\.py:jsonl'
    with pytest.raises(UserError, match=match):
        task.records('train')
    with pytest.raises(UserError, match=match):
        list(task.parse(number_lines(f'{header}\n{row}\n'), 'train.csv'))


def test_two_files_of_a_split_are_refused(swag: MultipleChoiceTask, tmp_path: pathlib.Path):
    (tmp_path / 'dev.csv').write_text(SWAG)
    with pytest.raises(UserError, match=r'found dev\.csv and val\.csv'):
        swag.records('dev')


def test_the_start_of_the_second_sentence_may_be_empty(tmp_path: pathlib.Path):
    path = write_file(tmp_path / 'f.csv', SWAG.replace('sits.,He,', 'sits.,,'))
    assert read_questions((path,), 'swag')[0].start == ''


@pytest.mark.parametrize(
    ('text', 'parts'),
    [
        ('', ('f.tsv', 'an empty file')),
        (f'{CODAH}i\tp\ta\tb\tc\t1\n', ('f.tsv:3', '6 columns', "7: 'category'")),
        (f'{CODAH}i\tp\ta\tb\tc\td\t-1\n', ('f.tsv:3', "the label '-1'", '0 to 3')),
        (f'{CODAH}i\tp\ta\tb\t\td\t1\n', ('f.tsv:3', 'an empty ending 2')),
    ],
)
def test_malformed_codah_is_refused(tmp_path: pathlib.Path, text: str, parts: tuple[str, ...]):
    with pytest.raises(UserError) as error:
        read_questions((write_file(tmp_path / 'f.tsv', text),), 'codah')
    check_error(error.value, parts)


def test_codah_is_split_by_its_contexts(tmp_path: pathlib.Path):
    rows = [f'i\tprompt {n // 2}\ta\tb\tc\td\t{n % 4}\n' for n in range(400)]
    (tmp_path / 'full_data.tsv').write_text(''.join(rows))
    task = MultipleChoiceTask(str(tmp_path), 16, layout='codah', dev_share=0.2, test_share=0.1)
    assert task.splits() == ('train', 'dev', 'test')
    parts = {split: task.records(split) for split in task.splits()}
    assert sum(map(len, parts.values())) == 400
    assert 40 < len(parts['dev']) < 120 and 15 < len(parts['test']) < 70
    contexts = [{record.context for record in part} for part in parts.values()]
    assert sum(map(len, contexts)) == 200  # No context is in two splits.
    other = MultipleChoiceTask(str(tmp_path), 16, layout='codah', dev_share=0.2, test_share=0.1)
    assert [record.where for record in other.records('dev')] == [record.where for record in parts['dev']]
    (tmp_path / 'more.tsv').write_text(CODAH)
    with pytest.raises(UserError, match=r'full_data\.tsv and more\.tsv'):
        task.records('dev')
    (tmp_path / 'train.tsv').write_text(CODAH)
    assert [record.label for record in task.records('train')] == [1, 2] and task.splits() == ['train']


def test_the_published_codah_file_is_read(shared: pathlib.Path):
    task = MultipleChoiceTask(str(shared / 'multiple_choice'), 64, layout='codah')
    parts = {split: task.records(split) for split in task.splits()}
    assert sum(map(len, parts.values())) == 2776
    assert all(230 < len(parts[split]) < 325 for split in ('dev', 'test'))
    quoted = next(record for record in parts['train'] if 'orchestra "Play' in record.context)
    assert quoted.endings[1] == 'softly blew into her instrument.' and quoted.label == 1


def test_json_lines_are_read(tmp_path: pathlib.Path, swag: MultipleChoiceTask):
    lines = '{"prompt": "A", "endings": ["b", "c", "d"], "label": 2}\n\n'
    lines += '{"prompt": "E", "start": "f", "endings": ["g", "h", "i"], "label": 0}\n'
    records = list(swag.parse(number_lines(lines), 'in'))
    assert [(record.where, record.context, record.start, record.endings, record.label) for record in records] == [
        ('in:1', 'A', '', ('b', 'c', 'd'), None), ('in:3', 'E', 'f', ('g', 'h', 'i'), None),
    ]  # fmt: skip
    as_list = f'[{lines.strip().replace(chr(10) * 2, ",")}]'
    assert [record.endings for record in swag.parse(number_lines(as_list), 'in')] == [r.endings for r in records]
    table = 'sent1,sent2,ending0,ending1,ending2,ending3\nA,s,b,c,d,e\n'
    for where in ('test.csv', 'standard input'):
        (record,) = swag.parse(number_lines(table), where)
        assert (record.context, record.start, record.endings) == ('A', 's', ('b', 'c', 'd', 'e'))
    for split in ('train', 'test'):
        (tmp_path / f'{split}.jsonl').write_text(lines)
    task = MultipleChoiceTask(str(tmp_path), 16, layout='jsonl')
    assert task.splits() == ['train', 'test'] and [record.label for record in task.records('test')] == [2, 0]
    (tmp_path / 'test.jsonl').write_text('{"prompt": "A", "endings": ["b", "c", "d"], "label": NaN}\n')
    assert task.splits() == ['train'] and task.records('test')[0].label is None
    with pytest.raises(UserError, match=r'dev\.jsonl'):
        task.records('dev')


@pytest.mark.parametrize(
    ('where', 'rows', 'blank'),
    [
        ('f', '{"prompt": "A", "endings": ["b", "c"]}\n', '{"prompt": "", "endings": ["d", "e"]}\n'),
        ('f', '{"prompt": "A", "endings": ["b", "c"]}\n', '{"prompt": "D", "endings": ["e", null]}\n'),
        ('f.csv', '0,v,3,s,A,,g,b,c,d,e,0\n', ',,,,,,,,,,,\n'),
        ('f.csv', '0,v,3,s,A,,g,b,c,d,e,0\n', '0,v,3,s,D,,g,e,f, ,h,0\n'),
    ],
)
def test_a_row_with_a_blank_text_has_no_prediction(
    swag: MultipleChoiceTask, tmp_path: pathlib.Path, where: str, rows: str, blank: str
):
    text = f'{rows}{blank}{rows}'
    items = list(swag.parse(number_lines(f'{HEADER}\n{text}' if where == 'f.csv' else text), where))
    first, skipped, last = items
    assert first.context == last.context == 'A' and skipped.kind == 'an empty text' and skipped.fields
    split, predictions = TaskSplit([first, last], None), [np.eye(2)[1]] * 2
    for rows_of_file, count in ((split.records, 3), (items, 1)):  # the server needs a prediction for every row
        written = write_predictions(tmp_path / 'out', swag, 'f', split, predictions, rows_of_file)
        assert len(written) == count == sum(path.is_file() for path in (tmp_path / 'out').rglob('*'))


def test_a_table_on_standard_input_needs_the_names_of_its_columns(swag: MultipleChoiceTask):
    names, row = ['category', 'prompt', *(f'ending{i}' for i in range(4))], ['x', 'A', *'bcde']
    for separator in ',\t':
        (record,) = swag.parse(number_lines('\n'.join(map(separator.join, (names, row)))), 'standard input')
        assert (record.context, record.endings) == ('A', ('b', 'c', 'd', 'e'))
    error = r"standard input: found the first line 'sent1;ending0', expected JSON, or a table with the columns sent1 "
    with pytest.raises(UserError, match=error):
        swag.parse(number_lines('sent1;ending0\nA;b\n'), 'standard input')
    with pytest.raises(UserError, match='standard input:1: found invalid JSON'):
        list(swag.parse(number_lines('{"prompt": "A",\n'), 'standard input'))


def test_fields_of_another_layout_may_be_blank_in_predictions(swag: MultipleChoiceTask):
    row = {'sent1': 'A', 'sent2': 's', **{f'ending{i}': letter for i, letter in enumerate('bcde')}}
    (record,) = swag.from_rows(iter([Record('f:1', {**row, 'prompt': None, 'endings': None})]))
    assert (record.context, record.endings) == ('A', ('b', 'c', 'd', 'e'))
    with pytest.raises(UserError, match='found the column ending4'):
        list(swag.from_rows(iter([Record('f:1', {**row, 'ending3': '', 'ending4': 'f'})])))


@pytest.mark.parametrize('labels', [(0, -1), (-1, 0)])
def test_a_partly_labeled_test_file_is_refused(tmp_path: pathlib.Path, labels: tuple[int, int]):
    lines = [json.dumps({'prompt': 'A', 'endings': ['b', 'c'], 'label': label}) for label in labels]
    (tmp_path / 'test.jsonl').write_text('\n'.join(lines))
    task = MultipleChoiceTask(str(tmp_path), 16, layout='jsonl')
    for read in (task.splits, lambda: task.records('test')):
        with pytest.raises(UserError, match=rf'test\.jsonl:{labels.index(-1) + 1}: found no label.* remove all labels'):
            read()


@pytest.mark.parametrize(
    ('line', 'parts'),
    [
        ('{"prompt": "A"', ('f:2', 'invalid JSON')),
        ('["A"]', ('f:2', 'an object')),
        ('{"prompt": 3, "endings": ["a", "b"]}', ('f:2', '"prompt": "text"')),
        ('{"prompt": "A", "endings": ["a", 3]}', ('f:2', '"prompt": "text"')),
        ('{"prompt": "A", "endings": "ab"}', ('f:2', '"prompt": "text"')),
        ('{"prompt": "A", "endings": ["a", "b", "c"], "label": 3}', ('f:2', "the label '3'", '0 to 2')),
        ('{"prompt": "A", "endings": ["a", ""], "label": 0}', ('f:2', 'an empty ending 1')),
        ('{"prompt": "A", "endings": ["a", "b"]}', ('f:2', 'no label', '0 to 1')),
        ('{"prompt": "A", "endings": ["a", "b"], "label": true}', ('f:2', "the label 'true'")),
    ],
)
def test_malformed_json_lines_are_refused(line: str, parts: tuple[str, ...]):
    with pytest.raises(UserError) as error:
        json_questions('{"prompt": "A", "endings": ["a", "b"], "label": 1}\n' + line, labeled=True)
    check_error(error.value, parts)
    with pytest.raises(UserError, match='f:1: found 1 endings'):
        json_questions('{"prompt": "A", "endings": ["a"]}', labeled=False)


@pytest.mark.parametrize('data', ['', '/nowhere'])
def test_missing_data_is_refused(data: str):
    with pytest.raises(UserError, match=r'--config\.data=DIR'):
        MultipleChoiceTask(data, 12).records('train')


@pytest.mark.parametrize(
    ('name', 'layout', 'fix'),
    [
        ('mine.csv', 'swag', 'rename it to train or dev, with its suffix, and give its folder'),
        ('full_data.tsv', 'codah', 'give its folder'),
    ],
)
def test_a_single_file_is_refused(name: str, layout: str, fix: str, tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=f'{name}.*; {fix}$'):
        MultipleChoiceTask(str(write_file(tmp_path / name, SWAG)), 12, layout=layout).records('dev')
