"""Tests the forms of input texts for prediction."""

import numpy as np
import pytest
from text_world import learned

from bertjax.errors import UserError
from bertjax.tasks.reading.texts import Blank, number_lines, read_lines
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.sentence.task import Example

INPUTS = {
    'JSON lines': ('x.jsonl', '{"text": "a b", "label": "spam"}\n{"text": "c"}\n'),
    'JSON lines from a pipe': ('standard input', '{"text": "a b"}\n{"text": "c", "id": 3}\n'),
    'list from a pipe': ('standard input', '[{"text": "a b"}, {"text": "c"}]'),
    'list on several lines': ('x.txt', '[\n  {"text": "a b"},\n  {"text": "c"}\n]\n'),
    'list of objects on several lines': ('x.txt', '[{\n  "text": "a b"\n}, {\n  "text": "c"\n}]\n'),
    'TSV': ('x.tsv', 'label\ttext\nspam\ta b\n\tc\n'),
    'TSV from a pipe': ('standard input', '\ufeffid\ttext\r\n1\ta b\r\n2\tc\r\n'),
    'CSV': ('x.csv', 'text\n"a b"\nc\n'),
    'CSV from a pipe': ('standard input', 'text,more\n"a b",x\nc,y\n'),
    'CSV of a spreadsheet': ('x.csv', 'text,more\na b,x\n\nc,y\n,\n,\n'),
    'lines': ('x.txt', 'a b\nc\n'),
    'lines without end': ('standard input', 'a b\nc'),
    'lines with Windows ends': ('x.txt', 'a b\r\nc\r\n'),
}


@pytest.mark.parametrize('name', INPUTS)
def test_texts_are_read_in_every_form(mails, name: str, tokenizer, capsys):
    where, text = INPUTS[name]
    task = learned(mails)
    records = list(task.parse(number_lines(text), where))
    assert records == [Example('a b', None, None), Example('c', None, None)]
    assert f'{where}: read as {"one text per line" if name[:5] == "lines" else ""}' in capsys.readouterr().out
    assert records[1].where.startswith(where)
    features = task.features(records, tokenizer, training=False)
    assert 'labels' not in features.row and len(features) == 2
    rows = list(task.rows(records, [np.array([0.0, 1.0])] * 2))
    assert 'true' not in rows[0]


@pytest.mark.parametrize(
    ('where', 'text'),
    [
        ('x.csv', 'text,more\na,x\n ,\nb,y\n,\n'),
        ('x.csv', 'more,text\nx,a\nx,\ny,b\n'),
        ('x.jsonl', '{"text": "a"}\n{"text": null}\n{"text": "b"}\n'),
    ],
)
def test_a_row_without_text_between_the_rows_of_an_input_is_skipped(mails, where: str, text: str):
    """The rows of an output correspond to those of a table."""
    first, blank, last = learned(mails).parse(number_lines(text), where)
    assert (first.first, blank.kind, last.first) == ('a', 'an empty text', 'b') and blank.fields.keys() >= {'text'}


def test_each_blank_line_of_a_text_has_a_row(mails, tmp_path):
    text, path = 'a b\n\nc\n\n\n', tmp_path / 'x.txt'
    path.write_text(text)
    for lines in (number_lines(text), read_lines(path)):
        rows = list(learned(mails).parse(lines, 'x'))
        assert [isinstance(row, Blank) for row in rows] == [False, True, False, True, True]


def test_a_pair_may_have_an_empty_text(tmp_path):
    task = ClassificationTask(str(tmp_path), 32, text_a='title', text_b='body', labels=('x', 'y'))
    rows = [('x', {'title': title, 'body': body}) for title, body in (('', 'a'), (None, 'a'), ('', None))]
    *pairs, blank = task.from_rows(iter(rows))
    assert pairs == [Example('', 'a', None)] * 2 and blank == ('x', 'an empty text', rows[2][1])


@pytest.mark.parametrize('text', ['call, text, or mail', 'word ' * 40_000, 'a\rb'], ids=['commas', 'long', 'return'])
def test_texts_with_commas_or_returns_are_not_read_as_a_table(mails, text: str):
    records = learned(mails).parse(number_lines(f'{text}\nb\n'), 'x.txt')
    assert list(records) == [Example(text, None, None), Example('b', None, None)]


def test_pairs_are_read_from_tabs_or_columns(tmp_path):
    task = ClassificationTask(str(tmp_path), 32, text_a='q', text_b='p', labels=('x', 'y'))
    texts = ('a b\tc\nd\te, f\n', 'p,n,q\nc,1,a b\n"e, f",2,d\n')
    by_position, by_name = (list(task.parse(number_lines(text), 'standard input')) for text in texts)
    assert by_position == by_name == [Example('a b', 'c', None), Example('d', 'e, f', None)]


@pytest.mark.parametrize(
    ('where', 'text', 'line', 'message'),
    [
        ('-', '', '-', 'no text'),
        ('-', '\n\n', '-', 'no text'),
        ('-', 'a\nb\tc\n', '-:2', '1 tab'),
        ('x.csv', 'txt\na\n', 'x.csv:1', "'txt'"),
        ('x.jsonl', '{"text": "a"}\n{}\n', 'x.jsonl:2', 'the fields none'),
    ],
)
def test_invalid_texts_are_errors_with_their_line(mails, where: str, text: str, line: str, message: str):
    with pytest.raises(UserError) as caught:
        list(learned(mails).parse(number_lines(text), where))
    assert caught.value.where == line and message in caught.value.found
    if where != '-':
        assert 'config.task.text_a' in caught.value.fix


@pytest.mark.parametrize(('where', 'text'), [('x.csv', 'ham,a b\nspam,c\n'), ('x.tsv', 'ham\ta b\nspam\tc\n')])
def test_a_table_without_a_header_is_read_as_in_training(tmp_path, where: str, text: str):
    task = ClassificationTask(data=str(tmp_path), seq_len=16, columns=('label', 'text'))
    assert [record.first for record in task.parse(number_lines(text), where)] == ['a b', 'c']


def test_a_file_with_an_unknown_suffix_has_the_format_of_training(tmp_path):
    options = {'data': str(tmp_path), 'seq_len': 16, 'columns': ('label', 'text'), 'format': 'csv'}
    task = ClassificationTask(**options)
    for where, text in (('new.txt', 'ham,a b\nspam,c\n'), ('new.tsv', 'ham\ta b\nspam\tc\n')):
        assert [record.first for record in task.parse(number_lines(text), where)] == ['a b', 'c']
    with pytest.raises(UserError, match=r'new\.txt:1'):
        list(task.parse(number_lines('a b\n'), 'new.txt'))
    for where, format in (('new.txt', 'auto'), ('standard input', 'csv'), ('standard input', 'json')):
        lines = ClassificationTask(**{**options, 'format': format}).parse(number_lines('a b\n'), where)
        assert [record.first for record in lines] == ['a b']


def test_a_named_split_beside_an_object_is_fetched(bucket):
    bucket.put({f'mails/{name}.csv': f'text,label\n{name},x\nb,y\n'.encode() for name in ('train', 'other')})
    task = ClassificationTask('s3://bucket/mails/train.csv', 32, dev='other.csv')
    assert [task.records(split)[0].first for split in ('train', 'dev')] == ['train', 'other']
