"""Tests several labels per record: the forms of a cell, learned labels, metrics, and errors."""

import json
import pathlib

import numpy as np
import pytest

from bertjax.errors import UserError
from bertjax.losses import MULTI_LABEL
from bertjax.tasks.sentence.multi_label import MultiLabelTask

RECORDS = [('a b', ('x', 'y')), ('c', ()), ('d', ('y',)), ('e', ('z', 'x')), ('f', ('x',))]
FILES = {
    'bars.csv': 'text,label\n' + ''.join(f'{text},{"|".join(labels)}\n' for text, labels in RECORDS),
    'commas.tsv': 'text\tlabel\n' + ''.join(f'{text}\t{", ".join(labels)}\n' for text, labels in RECORDS),
    'json in cells.tsv': 'text\tlabel\n' + ''.join(f'{text}\t{json.dumps(labels)}\n' for text, labels in RECORDS),
    'lists.jsonl': ''.join(json.dumps({'text': text, 'label': labels}) + '\n' for text, labels in RECORDS),
    'columns.csv': 'text,x,y,z\n' + ''.join(
        f'{text},{",".join(str(int(label in labels)) for label in "xyz")}\n' for text, labels in RECORDS
    ),
    'columns with nulls.jsonl': ''.join(
        json.dumps({'text': text} | {label: 1 if label in labels else None for label in 'xyz'}) + '\n'
        for text, labels in RECORDS
    ),
}  # fmt: skip


def learned(data: pathlib.Path, **options) -> MultiLabelTask:
    task = MultiLabelTask(str(data), 32, dev_fraction=0.0, **options)
    task.learn(task.records('train'))
    return task


@pytest.mark.parametrize('name', FILES)
def test_labels_in_every_form_of_a_table_are_read(name: str, tmp_path: pathlib.Path, tokenizer, capsys):
    (tmp_path / name).write_text(FILES[name])
    options = {'label_columns': ('x', 'y', 'z')} if 'columns' in name else {}
    task = learned(tmp_path / name, **options)
    output = capsys.readouterr().out
    assert '5 records for training, 3 labels, 1.20 per record' in output and '1 records have no label' in output
    assert ("a record is ','" in output) == ('commas' in name) and 'empty cells' not in output
    records = task.records('train')
    assert task.labels == ['x', 'y', 'z'] and [{*record.label} for record in records] == [{*ys} for _, ys in RECORDS]
    features = task.features(records, tokenizer, training=True)
    assert features.row['labels'].dtype == np.float32
    assert features.row['labels'].tolist() == [[1, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 0, 0]]
    assert task.objective is MULTI_LABEL and task.score == 'micro_f1'
    other = MultiLabelTask(str(tmp_path / name), 32, dev_fraction=0.0, **options)
    other.restore(json.loads(json.dumps(task.learned_state())))
    assert [record.label for record in other.records('train')] == [record.label for record in records]
    assert 'separated' not in capsys.readouterr().out


def test_metrics_rows_and_report(tmp_path: pathlib.Path):
    (tmp_path / 'train.csv').write_text(FILES['bars.csv'])
    task = learned(tmp_path, metric='macro_f1')
    records = task.records('train')
    perfect = [np.where(row > 0, 2.0, -2.0) for row in task._targets(records)]
    assert task.metrics(records, perfect) == dict.fromkeys(task.measures, 1.0) and task.measures[0] == 'macro_f1'
    worse = [np.array([-2.0, -2.0, -2.0]), *perfect[1:]]
    metrics = task.metrics(records, worse)  # 4 of 6 labels are predicted, and no wrong ones.
    assert metrics['micro_recall'] == pytest.approx(4 / 6) and metrics['micro_precision'] == 1
    assert metrics['exact'] == 0.8
    assert not task.collapsed(records, worse) and task.collapsed(records, worse[:1] * 5)
    row = json.loads(json.dumps(list(task.rows(records, perfect))))[0]
    assert row['labels'] == ['x', 'y'] and row['true'] == ['x', 'y']
    assert row['probabilities']['x'] == pytest.approx(1 / (1 + np.exp(-2)))
    report = task.report(records, worse)
    lines = [line.split() for line in report.splitlines()]
    assert ['2', 'y', '1.0000', '0.5000', '0.6667', '2', '1'] in lines and 'correct: 0.8000' in report
    high_threshold = learned(tmp_path, threshold=0.9)
    assert next(iter(high_threshold.rows(records, perfect)))['labels'] == []
    assert task.huggingface()['problem_type'] == 'multi_label_classification'


def test_label_weights_are_balanced_given_or_refused(tmp_path: pathlib.Path, capsys):
    (tmp_path / 'train.csv').write_text(FILES['bars.csv'])
    learned(tmp_path, class_weights='balanced')  # 2 of 5 records lack x, 3 lack y, and 4 lack z.
    assert 'weights in the loss: x 0.6667, y 1.5, z 4' in capsys.readouterr().out
    task = learned(tmp_path, class_weights='{"z": 3}')
    assert task.objective is not MULTI_LABEL and 'x 1, y 1, z 3' in capsys.readouterr().out
    with pytest.raises(UserError, match="a weight of 'w', expected one of x, y, z"):
        learned(tmp_path, class_weights='w=2')


@pytest.mark.parametrize(
    ('name', 'text', 'options', 'message'),
    [
        ('t.csv', 'text,label\na,x|\nb,y\n', {}, "t.csv:2: found an empty label in 'x|'"),
        ('t.tsv', 'text\tlabel\na\t["x", 3]\n', {}, 't.tsv:2: found'),
        ('t.jsonl', '{"text": "a", "label": [["x"]]}\n', {}, 't.jsonl:1: found'),
        ('t.jsonl', '{"text": "a", "label": {"x": 1}}\n', {}, "t.jsonl:1, field 'label': found a JSON dict"),
        ('t.csv', 'text,x,y\na,1,2\n', {'label_columns': ('x', 'y')}, "t.csv:2: found '2' in the column y"),
        (
            't.jsonl',
            '{"text": "a", "label": null}\n',
            {},
            ":1: found no label, expected labels, or [] or '' for none",
        ),
        ('t.csv', 'text,x\na,1\n', {'label_columns': ('x', 'y')}, 't.csv:1: found the columns'),
        ('t.csv', 'text,label\na,\nb,\n', {}, 'found no labels'),
        ('t.csv', 'text,label\na,x|w\nb,y\n', {'labels': ('x', 'y')}, "t.csv:2: found the label 'w'"),
        ('t.csv', 'text,label\na,x|y\nb,y|nan\n', {}, "t.csv:3: found the label 'nan' of 1 records"),
        ('t.csv', 'text,label\na,x|1\nb,1\nc,x|1.0\n', {}, "t.csv:4: found the label '1.0' of 1 records"),
        ('t.csv', '', {'threshold': 1.0}, 'config.task.threshold'),
        ('t.csv', '', {'label_columns': ('x', 'x')}, 'config.task.label_columns'),
        ('t.csv', '', {'label_columns': ('x', 'y'), 'labels': ('y', 'x')}, 'config.task.labels'),
        ('t.csv', '', {'metric': 'accuracy'}, 'config.task.metric'),
        ('t.csv', '', {'class_weights': 'x=-1'}, 'config.task.class_weights'),
    ],
)
def test_invalid_labels_and_options_are_refused(
    name: str, text: str, options: dict, message: str, tmp_path: pathlib.Path
):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        learned(tmp_path / name, **options)
    assert message in str(error.value)


def test_the_order_of_labels_does_not_matter(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    (tmp_path / 'train.csv').write_text('text,label\na,x|y\na,y|x\na,x\nb,y\n')
    learned(tmp_path)
    line = f'2 records repeat the text of an earlier record; 1 with another label, the first at {tmp_path}/train.csv:4'
    assert line in capsys.readouterr().out


def test_there_may_be_more_labels_than_half_the_records(tmp_path: pathlib.Path):
    rows = [{'text': f't{i}', 'label': [f'l{(i + 7 * k) % 30}' for k in range(4)]} for i in range(40)]
    (tmp_path / 'train.jsonl').write_text('\n'.join(map(json.dumps, rows)))  # each label has five records or more
    task = learned(tmp_path)
    assert len(task.labels) == 30 and task._targets(task.records('train')).sum() == 160
    (tmp_path / 'train.jsonl').write_text('\n'.join(map(json.dumps, rows[:10])))
    with pytest.raises(UserError, match='30 different labels'):
        learned(tmp_path)


def test_odd_labels_are_reported(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    path = tmp_path / 'train.csv'
    path.write_text('text,label\na,x;none\nb,"x, y"\nc,X\n')
    learned(path)
    output = capsys.readouterr().out
    assert "warning: 'X' and 'x' are different labels" in output
    assert f"1 records have the label 'none', the first at {path}:2; is it a missing value?" in output
    assert "warning: labels contain ','; are these several labels? config.task.separator sets" in output
    learned(path, separator=';')
    assert 'several labels' not in capsys.readouterr().out
    path.write_text('text,label\na,x;z\nb,x\nc,z\n')
    learned(path)
    assert 'several labels' not in capsys.readouterr().out


def test_empty_cells_beside_zeros_are_reported(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    (tmp_path / 'train.csv').write_text('text,x,y,z\na,1,0,0\nb,,1,\nc,0,1, \n')
    learned(tmp_path, label_columns=('x', 'y', 'z'))
    line = f'warning: 3 empty cells in config.task.label_columns count as 0, the first at {tmp_path}/train.csv:3'
    assert line in capsys.readouterr().out


def test_a_test_file_with_only_some_label_columns_is_refused(tmp_path: pathlib.Path):
    (tmp_path / 'train.csv').write_text(FILES['columns.csv'])
    (tmp_path / 'test.csv').write_text('text,x,y,Z\na,1,0,0\n')
    task = learned(tmp_path, label_columns=('x', 'y', 'z'))
    for function in (task.splits, lambda: task.records('test')):
        with pytest.raises(UserError, match=r'test.csv:2: found no value in the column z, expected 0 or 1'):
            function()
    for text in ('text\na\n', 'text,x,y,z\na,,,\n'):
        (tmp_path / 'test.csv').write_text(text)
        task = learned(tmp_path, label_columns=('x', 'y', 'z'))
        assert list(task.splits()) == ['train'] and [record.label for record in task.records('test')] == [None]


def test_a_test_file_without_any_label_is_only_predicted(tmp_path: pathlib.Path):
    (tmp_path / 'train.csv').write_text(FILES['bars.csv'])
    (tmp_path / 'test.csv').write_text('text,label\na,\nb,\n')
    task = learned(tmp_path)
    assert list(task.splits()) == ['train'] and [record.label for record in task.records('test')] == [None, None]
    (tmp_path / 'test.csv').write_text('text,label\na,\nb,x\n')
    task = learned(tmp_path)
    assert list(task.splits()) == ['train', 'test']
    assert [record.label for record in task.records('test')] == [(), ('x',)]


def test_a_separator_that_training_did_not_need_is_set_for_a_test_file(tmp_path: pathlib.Path):
    (tmp_path / 'lists.jsonl').write_text(FILES['lists.jsonl'])
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data' / 'test.csv').write_text('text,label\na,x|y\n')
    state = learned(tmp_path / 'lists.jsonl').learned_state()
    task = MultiLabelTask(str(tmp_path / 'data'), 32)
    task.restore(state)
    with pytest.raises(UserError, match=r'config\.task\.separator: found nothing, without a training file'):
        task.records('test')
    task = MultiLabelTask(str(tmp_path / 'data'), 32, separator='|')
    task.restore(state)
    assert task.records('test')[0].label == ('x', 'y')
