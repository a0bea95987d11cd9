"""Tests reading tables, and that everything else is an error with its file and line."""

import gzip
import json
import pathlib

import pytest

from bertjax.errors import UserError
from bertjax.files import streams
from bertjax.tasks.reading.layout import Column, TableLayout
from bertjax.tasks.reading.records import Row, parse_records, read_rows, select_columns
from bertjax.tasks.reading.texts import number_lines

TEXT_LABEL = TableLayout((Column(('text',)), Column(('label',), required=False)))


def write(path: pathlib.Path, content: str | bytes) -> pathlib.Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path: pathlib.Path, layout: TableLayout = TEXT_LABEL, format: str = 'auto') -> list[tuple]:
    return [row.values for row in read_rows([path], layout, format)]


def read_error(path: pathlib.Path, layout: TableLayout = TEXT_LABEL) -> UserError:
    with pytest.raises(UserError) as caught:
        list(read_rows([path], layout))
    return caught.value


ODD = [('say "no', '1'), ("'", '0'), ('a, b; c', '1'), ('\u2028 line\u0085', '0'), (' ', '1')]


def test_tsv_has_no_quoting(tmp_path):
    path = write(tmp_path / 'a.tsv', 'id\ttext\tlabel\n' + ''.join(f'{i}\t{a}\t{b}\n' for i, (a, b) in enumerate(ODD)))
    assert values(path) == ODD
    assert next(read_rows([path], TEXT_LABEL)) == Row(f'{path}:2', ODD[0])


@pytest.mark.parametrize('end', ['\n', '\r\n'])
@pytest.mark.parametrize('mark', [b'', b'\xef\xbb\xbf'])
@pytest.mark.parametrize('last', ['', '\n', '\n\n\n'])
def test_byte_order_marks_and_line_ends_do_not_matter(tmp_path, end: str, mark: bytes, last: str):
    text = f'text\tlabel\né 1\t1\nb\t0{last}'.replace('\n', end)
    assert values(write(tmp_path / 'a.tsv', mark + text.encode())) == [('é 1', '1'), ('b', '0')]


def test_csv_is_quoted_and_a_row_has_the_number_of_its_first_line(tmp_path):
    text = 'label,text\n1,"a ""b"", c\n\nd"\n0,e\n\n,\n,\n'
    path = write(tmp_path / 'a.csv', text)
    assert list(read_rows([path], TEXT_LABEL)) == [
        Row(f'{path}:2', ('a "b", c\n\nd', '1')),
        Row(f'{path}:5', ('e', '0')),
    ]
    assert 'fields with commas need "double quotes"' in read_error(write(path, 'text,label\na, b,1\n')).fix
    assert read_error(write(path, 'text,label\na\n')).fix == 'correct or remove the row'


def test_csv_fields_may_be_long(tmp_path):
    long = 'word ' * 100_000
    assert values(write(tmp_path / 'a.csv', f'text,label\n"{long}",1\n')) == [(long, '1')]


def test_json_lines_are_read(tmp_path):
    rows = [
        {'text': 'a\nb', 'label': 'x', 'more': {'deep': []}},
        {'label': 3, 'text': 'c'},
        {'text': ['d', 'e'], 'label': True},
        {'text': 'f', 'label': None},
        {'text': 'g'},
        {'text': 'h', 'label': 2.5},
    ]
    path = write(tmp_path / 'a.jsonl', ''.join(json.dumps(row) + '\n' for row in rows))
    expected = [('a\nb', 'x'), ('c', '3'), ('d e', 'true'), ('f', None), ('g', None), ('h', '2.5')]
    assert values(path) == expected
    assert [row.where for row in read_rows([path], TEXT_LABEL)] == [f'{path}:{i}' for i in range(1, 7)]


@pytest.mark.parametrize('content', [[{'text': 'a'}, {'text': 'b'}], {'k1': {'text': 'a'}, 'k2': {'text': 'b'}}])
def test_json_lists_and_objects_are_read(tmp_path, content):
    path = write(tmp_path / 'a.json', json.dumps(content, indent=2) + '\n\n')
    assert values(path) == [('a', None), ('b', None)]
    where = '[1]' if isinstance(content, list) else "['k2']"
    assert list(read_rows([path], TEXT_LABEL))[1].where == f'{path}{where}'


def test_a_single_json_object_is_a_record(tmp_path):
    path = write(tmp_path / 'a.json', json.dumps({'text': 'a', 'label': 3}))
    assert values(path) == [('a', '3')]
    assert next(read_rows([path], TEXT_LABEL)).where == f'{path}:1'


def test_compressed_files_are_read(tmp_path):
    path = write(tmp_path / 'a.tsv.gz', gzip.compress(b'text\tlabel\na\t1\n'))
    assert values(path) == [('a', '1')]
    damaged = write(tmp_path / 'b.tsv.gz', path.read_bytes()[:-9])
    assert 'an error while reading' in str(read_error(damaged))


def test_a_column_may_have_several_names(tmp_path):
    layout = TableLayout((Column(('sentence1', 'premise')), Column(('gold', 'label'))))
    assert values(write(tmp_path / 'a.tsv', 'label\tpremise\tgold\nx\ta\ty\n'), layout) == [('a', 'y')]
    assert values(write(tmp_path / 'a.tsv', 'label\tpremise\nx\ta\n'), layout) == [('a', 'x')]


def test_a_table_may_have_no_header(tmp_path):
    layout = TableLayout((Column(('text',)), Column(('label',))), headerless_columns=('label', 'text'))
    assert values(write(tmp_path / 'a.tsv', 'x\ta\ny\tb\n'), layout) == [('a', 'x'), ('b', 'y')]
    assert values(write(tmp_path / 'a.tsv', 'text\tlabel\na\tx\n'), layout) == [('a', 'x')]
    error = read_error(write(tmp_path / 'a.tsv', 'a\tb\tc\n'), layout)
    assert error.where.endswith('a.tsv:1') and 'no header' in error.expected


def test_broken_rows_are_skipped_up_to_a_maximum(tmp_path, capsys):
    path = write(tmp_path / 'a.tsv', 'text\tlabel\na\t1\nb\nc\t0\t0\nd\t1\n')
    assert values(path, TableLayout(TEXT_LABEL.columns, max_broken_rows=2)) == [('a', '1'), ('d', '1')]
    assert 'skipped 2 rows with a wrong number of columns' in capsys.readouterr().out
    assert read_error(path, TableLayout(TEXT_LABEL.columns, max_broken_rows=1)).where == f'{path}:4'


@pytest.mark.parametrize(
    ('name', 'content', 'line', 'text'),
    [
        ('a.tsv', '', '', 'empty file'),
        ('a.tsv', '\n\n', '', 'empty file'),
        ('a.csv', '', '', 'empty file'),
        ('a.jsonl', '', '', 'no row'),
        ('a.json', '', ':1', 'invalid JSON'),
        ('a.json', '[]', '', 'no row'),
        ('a.tsv', 'text\tlabel\n', '', 'no row'),
        ('a.tsv', 'txt\tlabel\na\t1\n', ':1', "'txt', 'label'"),
        ('a.tsv', 'text,label\na,1\n', ':1', "'text,label'"),
        ('a.tsv', 'text\ttext\na\t1\n', ':1', "2 columns named 'text'"),
        ('a.tsv', 'text\tlabel\na\t1\nb\n', ':3', '1 column'),
        ('a.tsv', 'text\tlabel\na\t1\nb\tc\t1\n', ':3', '3 columns'),
        ('a.tsv', 'text\tlabel\na\t1\n\nb\t1\n', ':3', 'a blank line'),
        ('a.csv', 'text,label\na,1\n\n\nb,1\n', ':3', 'a blank line'),
        ('a.csv', 'text,label\na,1\n,\nb,1\n', ':3', 'a blank line'),
        ('a.csv', 'text,label\na,b,1\n', ':2', '3 columns'),
        ('a.csv', 'text,label\n"a"b,1\n', ':2', 'invalid CSV'),
        ('a.csv', 'text,label\na,1\n"b,1\nc,1\n', ':3', 'invalid CSV'),
        ('a.jsonl', '{"text": "a"}\n{"text": "b"\n', ':2', 'invalid JSON'),
        ('a.jsonl', '{"text": "a"}\n["b"]\n', ':2', 'a JSON list'),
        ('a.jsonl', '{"text": "a"}\n{"txt": "b"}\n', ':2', "the fields 'txt'"),
        ('a.jsonl', '{"text": {"x": 1}}\n', ':1', 'a JSON dict'),
        ('a.jsonl', '{"text": "\\ud800"}\n', ':1', 'surrogate'),
        ('a.json', '{"k": 1, "l": {}}', "['k']", 'a JSON int'),
        ('a.json', '{"k": 1}', ':1', "the fields 'k'"),
        ('a.json', '{"text": ["a", "b"], "label": ["0", "1"]}', "['text']", 'a JSON list'),
        ('a.json', '{"version": "1", "text": ["a", "b"]}', "['version']", 'a JSON str'),
        ('a.json', '{"version": "1", "data": [{"text": "a"}]}', "['version']", 'a JSON str'),
        ('a.json', '"text"', '', 'a JSON str'),
        ('a.tsv', b'text\tlabel\na\t1\n\xff\t1\n', ':3', '0xff'),
        ('a.tsv', 'text\tlabel\n'.encode('utf-16'), ':1', 'UTF-16'),
        ('a.tsv', b'text\tlabel\na\0\t1\n', ':2', 'zero byte'),
    ],
)
def test_invalid_files_are_errors_with_file_and_line(tmp_path, name: str, content: str | bytes, line: str, text: str):
    path = write(tmp_path / name, content)
    error = read_error(path)
    assert text in error.found
    assert error.where.startswith(f'{path}{line}') and error.expected and error.fix
    assert (error.where == f'{path}{line}') or error.where.startswith(f'{path}{line},')
    assert 'config.' not in error.fix  # no key names the columns of TEXT_LABEL


@pytest.mark.parametrize('header', ['"text";"label"', 'text;label', 'text;label, b'])
def test_a_file_with_semicolons_needs_commas(tmp_path, header: str):
    error = read_error(write(tmp_path / 'a.csv', f'{header}\n"a";"x"\n'))
    assert error.where == f'{tmp_path}/a.csv:1' and 'save the file with commas' in error.fix


def test_a_cell_of_a_single_column_may_be_empty(tmp_path):
    path = write(tmp_path / 'a.csv', 'text\na\n""\nb\n""\n')
    assert values(path) == [('a', None), ('', None), ('b', None), ('', None)]


def test_a_missing_file_is_an_error(tmp_path):
    assert 'no such file' in read_error(tmp_path / 'a.tsv').found
    assert 'no such file' in read_error(tmp_path).found


def test_the_format_follows_from_the_suffix(tmp_path):
    table, row = 'label,text\n3,a\n', '{"label": 3, "text": "a"}'
    for end, text in {
        'tsv': table.replace(',', '\t'), 'CSV': table, 'ndjson': row, 'json': f'[\n{row}\n]',
        'jsonl.gz': gzip.compress(row.encode()),
    }.items():  # fmt: skip
        assert values(write(tmp_path / f'x.{end}', text)) == [('a', '3')]
    path = write(tmp_path / 'x.txt', table)
    assert values(path, format='csv') == [('a', '3')]
    with pytest.raises(UserError, match=r'suffix .*; rename it, or set config\.task\.format to one of tsv, csv'):
        values(path)
    assert read_error(write(tmp_path / 'x.xlsx', b'PK')).fix == 'save it as CSV UTF-8'


def test_lines_are_numbered_from_one():
    columns = (Column(('text',)),)
    records = parse_records(number_lines('\ufefftext\r\na\n'), 'standard input', 'tsv', TableLayout(columns))
    rows = select_columns(records, columns)
    assert list(rows) == [Row('standard input:2', ('a',))]


def test_a_list_on_one_line_may_be_longer_than_a_record(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(streams, 'MAX_RECORD', 1 << 20)
    rows = json.dumps([{'text': 'a' * 1000, 'label': str(i)} for i in range(1500)])
    path = write(tmp_path / 'a.json', rows)
    assert [label for _, label in values(path)][-2:] == ['1498', '1499']
    error = read_error(write(tmp_path / 'a.jsonl', rows))
    assert error.found == 'a line of more than 1 MiB' and error.expected == 'one record per line'
    assert '.json' in error.fix
