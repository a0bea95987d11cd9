"""Tests GLUE: its official files, tensorflow-datasets, the files for its server, and errors."""

import dataclasses
import json
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
from glue_world import ROWS, label, text, write_glue
from marks import slow

from bertjax.errors import UserError
from bertjax.finetune.benchmark import read_benchmark_data
from bertjax.losses import CLASSIFICATION, REGRESSION
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.tasks.sentence.glue_table import TASKS

SERVER_SPLITS = [(name, 'test') for name in TASKS] + [('mnli', 'test_mismatched'), ('mnli', 'ax')]


@pytest.fixture(scope='module')
def glue(tmp_path_factory) -> pathlib.Path:
    """Returns the folder of all tasks, which tests do not change."""
    return write_glue(tmp_path_factory.mktemp('glue_data'))


@pytest.fixture
def glue_copy(glue, tmp_path) -> pathlib.Path:
    """Returns a copy of the folder, which tests may change."""
    return pathlib.Path(shutil.copytree(glue, tmp_path / 'glue'))


@pytest.fixture(scope='module')
def prepared(glue, tmp_path_factory) -> None:
    """Prepares all tasks from the same files with the builders of tensorflow-datasets, without network."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text

    folder = tmp_path_factory.mktemp('tfds')
    raw = folder / 'mrpc'
    raw.mkdir()
    # MRPC is not in GLUE's download. Its builder splits the original file.
    train, dev = ((glue / 'MRPC' / f'{name}.tsv').read_text().strip().split('\n') for name in ('train', 'dev'))
    dev = [line.replace('\t10', '\t30', 1) for line in dev[1:]]
    (raw / 'train').write_text('\n'.join(train + dev))
    (raw / 'ids').write_text('\n'.join(['#1 ID\t#2 ID', *('\t'.join(line.split('\t')[1:3]) for line in dev)]))
    mrpc = {'train': raw / 'train', 'dev_ids': raw / 'ids', 'test': glue / 'MRPC' / 'test.tsv'}
    manager = tfds.download.DownloadManager
    for name in (*TASKS, 'ax'):
        builder = tfds.builder(f'glue/{name}', data_dir=str(folder), file_format='array_record')
        files = mrpc if name == 'mrpc' else glue / 'diagnostic' / 'diagnostic.tsv'
        with (
            mock.patch.object(manager, 'download_and_extract', return_value=str(glue)),
            mock.patch.object(manager, 'download', return_value=files),
        ):
            builder.download_and_prepare()
    tfds.core.add_data_dir(str(folder))


def expected(name: str, split: str) -> list[tuple]:
    """Returns the (texts, label) that were written to the files of a split."""
    task = TASKS[name]
    labels = dict(zip(task.file_labels, task.labels, strict=True))
    kind, rows = split.partition('_')[0], []
    for i in range(ROWS):
        texts = tuple(text(kind, i, side) for side in range(1, len(task.texts) + 1))
        true = None if kind == 'test' else labels[label(name, i)] if task.labels else float(label(name, i))
        rows.append((texts, true))
    return rows


def texts_and_labels(records) -> list[tuple]:
    return [((r.first,) if r.second is None else (r.first, r.second), r.label) for r in records]


@pytest.mark.parametrize('name', TASKS)
@pytest.mark.parametrize('whole', [True, False], ids=['all tasks', 'task folder'])
def test_the_official_files_are_read(glue, name: str, whole: bool):
    task = GlueTask(str(glue if whole else glue / TASKS[name].title), 32, task=name)
    splits = ['train', 'dev', 'dev_mismatched'] if name == 'mnli' else ['train', 'dev']
    assert list(task.splits()) == splits
    for split in (*splits, 'test'):
        records = task.records(split)
        assert texts_and_labels(records) == expected(name, split)
    assert [record.index for record in task.records('test')] == [str(i) for i in range(ROWS)]
    assert task.objective is (CLASSIFICATION if TASKS[name].labels else REGRESSION)
    assert task.score == {'cola': 'matthews', 'mrpc': 'f1', 'qqp': 'f1', 'stsb': 'spearman'}.get(name, 'accuracy')


@pytest.mark.parametrize('name', TASKS)
def test_tensorflow_datasets_give_the_same_records(prepared, name: str):
    task = GlueTask('', 32, task=name)
    splits = ['train', 'dev', 'dev_mismatched'] if name == 'mnli' else ['train', 'dev']
    assert list(task.splits()) == splits
    for split in (*splits, 'test'):
        assert sorted(texts_and_labels(task.records(split)), key=str) == sorted(expected(name, split), key=str)


def test_labels_are_in_the_order_of_tensorflow_datasets():
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text

    for name, row in [*TASKS.items(), ('ax', TASKS['mnli'])]:
        feature = tfds.builder(f'glue/{name}').info.features['label']
        assert tuple(getattr(feature, 'names', ())) == row.labels


def test_the_diagnostic_set_belongs_to_mnli(glue, glue_copy, prepared):
    for data in (str(glue), str(glue / 'MNLI'), ''):
        task = GlueTask(data, 32, task='mnli')
        records = sorted(task.records('ax'), key=lambda record: int(record.index))
        assert [(r.first, r.label) for r in records] == [(text('test', i), None) for i in range(ROWS)]
        assert 'ax' not in task.splits()
    (glue_copy / 'diagnostic' / 'diagnostic.tsv').unlink()
    full = 'Logic\tPremise\tHypothesis\tLabel\n' + 'x\ta\tb\tneutral\n' * 2
    (glue_copy / 'diagnostic' / 'diagnostic-full.tsv').write_text(full)
    task = GlueTask(str(glue_copy), 32, task='mnli')
    assert 'ax' in task.splits() and [record.label for record in task.records('ax')] == ['neutral'] * 2
    with pytest.raises(UserError, match='train mnli'):
        GlueTask(str(glue), 32, task='ax')


def test_a_benchmark_does_not_need_the_diagnostic_set(prepared, monkeypatch):
    mnli = TASKS['mnli'].splits
    monkeypatch.setitem(mnli, 'ax', dataclasses.replace(mnli['ax'], tfds=('glue/ax_of_another_world', 'test')))
    server_splits, missing = read_benchmark_data({'mnli': GlueTask('', 32, task='mnli')}, '')
    assert server_splits == {'mnli': ['test', 'test_mismatched']} and not missing


@pytest.mark.parametrize(('name', 'split'), SERVER_SPLITS)
def test_files_for_the_server_are_written(glue, name: str, split: str):
    task = GlueTask(str(glue), 32, task=name)
    records = task.records(split)
    width = len(task.labels) or 1
    if task.labels:
        best = [(i + 1) % width for i in range(ROWS)]
        predictions = [np.eye(width)[i] for i in best]
        answers = [TASKS[name].file_labels[i] for i in best]
    else:
        predictions = [np.array([x]) for x in (-0.4, 0.0, 1.23456, 4.9996, 5.0, 7.1)]
        answers = ['0.000', '0.000', '1.235', '5.000', '5.000', '5.000']
    file = {'test_mismatched': 'MNLI-mm.tsv', 'ax': 'AX.tsv'}.get(split)
    file = file or ('MNLI-m.tsv' if name == 'mnli' else f'{TASKS[name].title}.tsv')
    lines = ''.join(f'{i}\t{answer}\n' for i, answer in enumerate(answers))
    # The order of the records does not matter.
    files = task.official_files(split, records[::-1], predictions[::-1])
    assert files == {file: f'index\tprediction\n{lines}'}
    assert task.official_files('dev', records, predictions) == {}


def test_files_may_have_a_header_or_not(glue_copy):
    for name in TASKS:
        task = GlueTask(str(glue_copy), 32, task=name)
        path = glue_copy / task.name / ('test_matched.tsv' if name == 'mnli' else 'test.tsv')
        path.write_text(path.read_text().split('\n', 1)[1])
        assert texts_and_labels(task.records('test')) == expected(name, 'test')
        if name not in ('cola', 'mnli'):
            path = glue_copy / task.name / 'train.tsv'
            path.write_text(path.read_text().split('\n', 1)[1])
            assert texts_and_labels(task.records('train')) == expected(name, 'train')
    path = glue_copy / 'CoLA' / 'train.tsv'
    path.write_text('source\tlabel\tstar\tsentence\n' + path.read_text())
    assert texts_and_labels(GlueTask(str(glue_copy), 32, task='cola').records('train')) == expected('cola', 'train')


def test_a_labeled_test_file_of_mrpc_is_evaluated(glue_copy):
    shutil.copy(glue_copy / 'MRPC' / 'dev.tsv', glue_copy / 'MRPC' / 'test.tsv')
    assert list(GlueTask(str(glue_copy), 32, task='mrpc').splits()) == ['train', 'dev', 'test']


@pytest.mark.parametrize('label', ['-1', '-1.0'])
def test_unpublished_labels_of_a_test_file_are_no_labels(glue_copy, label):
    path = glue_copy / 'RTE' / 'test.tsv'
    path.write_text(f'index\tsentence1\tsentence2\tlabel\n0\ta\tb\t{label}\n1\tc\td\t{label}\n')
    task = GlueTask(str(glue_copy), 32, task='rte')
    assert list(task.splits()) == ['train', 'dev']
    assert {record.label for record in task.records('test')} == {None}


def test_a_test_file_without_labels_is_not_read_for_training(glue_copy):
    path = glue_copy / 'WNLI' / 'test.tsv'
    path.write_text('index\tsentence1\tsentence2\n0\ta\tb\n0\tc\td\n')
    task = GlueTask(str(glue_copy), 32, task='wnli')
    assert list(task.splits()) == ['train', 'dev']
    with pytest.raises(UserError, match=r'test\.tsv:3: found the index 0 of '):
        task.records('test')
    path.write_text('index\tsentence1\tsentence2\n')
    with pytest.raises(UserError, match=r'test\.tsv: found no row'):
        task.splits()


@pytest.mark.parametrize('labels', [('1', '-1'), ('-1', '1')])
def test_a_partly_labeled_test_file_is_refused(glue_copy, labels):
    path, row = glue_copy / 'WNLI' / 'test.tsv', labels.index('-1')
    path.write_text('index\tsentence1\tsentence2\tlabel\n0\ta\tb\t{}\n1\tc\td\t{}\n'.format(*labels))
    task = GlueTask(str(glue_copy), 32, task='wnli')
    for read in (task.splits, lambda: task.records('test')):
        with pytest.raises(UserError, match=rf'test\.tsv:{row + 2}: found no label'):
            read()


def test_broken_rows_of_qqp_are_skipped(glue_copy, capsys):
    path = glue_copy / 'QQP' / 'train.tsv'
    path.write_text(path.read_text() + '9\t7\t8\thalf a question\n\n\t \t\t\t\t\nthe rest\tb\t0\n\n')
    assert len(GlueTask(str(glue_copy), 32, task='qqp').records('train')) == ROWS
    lines = f'{ROWS + 2}, {ROWS + 3}, {ROWS + 4}, {ROWS + 5}'
    assert f'skipped 4 rows with a wrong number of columns, in lines {lines}\n' in capsys.readouterr().out
    header, rows = path.read_text().split('\n', 1)
    for blank in ('', '\t\t\t\t\t'):
        path.write_text(f'{blank}\n{header}\n{rows}')
        with pytest.raises(UserError, match=r'train\.tsv:1: found a blank line, expected the column names; remove the'):
            GlueTask(str(glue_copy), 32, task='qqp').records('train')


@pytest.mark.parametrize(
    ('name', 'old', 'new', 'line', 'message'),
    [
        ('rte', '\tnot_entailment', '\tneutral', 3, "the label 'neutral'"),
        ('rte', '\tnot_entailment', '\t', 3, 'an empty label'),
        ('rte', '\tnot_entailment', '', 3, '3 columns'),
        ('rte', '\tnot_entailment', '\tx\tnot_entailment', 3, '5 columns'),
        ('rte', '\tsentence2', '\tsentence', 1, "the label 'label'"),
        ('rte', '\tsentence2\tlabel', '\tlabel', 1, 'the columns'),
        ('stsb', '\t0.800', '\t5.200', 3, 'the score 5.200'),
        ('stsb', '\t0.800', '\tnan', 3, "the score 'nan'"),
        ('stsb', '\t0.800', '\thigh', 3, "the score 'high'"),
        ('cola', 'gj04\t1', 'gj04\t2', 2, "the label '2'"),
        ('mnli', '\tneutral', '\t-', 3, "the label '-'"),
    ],
)
def test_malformed_rows_are_errors_with_their_line(glue_copy, name: str, old: str, new: str, line: int, message: str):
    path = glue_copy / TASKS[name].title / 'train.tsv'
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        GlueTask(str(glue_copy), 32, task=name).records('train')
    assert caught.value.where == f'{path}:{line}' and message in caught.value.found


def test_broken_rows_of_a_test_file_are_refused(glue_copy):
    path = glue_copy / 'QQP' / 'test.tsv'
    path.write_text(path.read_text() + '9\thalf a question\n')
    with pytest.raises(UserError, match='2 columns'):
        GlueTask(str(glue_copy), 32, task='qqp').records('test')


def test_errors_about_labels_use_the_labels_of_the_file(glue_copy):
    path = glue_copy / 'CoLA' / 'dev.tsv'
    path.write_text(path.read_text().replace('\t1\t', '\t2\t', 1))
    with pytest.raises(UserError, match="found the label '2', expected one of 0, 1"):
        GlueTask(str(glue_copy), 32, task='cola').records('dev')


def test_json_lines_of_the_hub_have_numbers_as_labels(tmp_path):
    rows = [{'sentence1': 'a', 'sentence2': 'b', 'label': i, 'idx': i} for i in (0, 1)]
    for name in ('train', 'validation'):
        (tmp_path / f'{name}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    task = GlueTask(str(tmp_path), 32, task='rte')
    assert [record.label for record in task.records('train')] == ['entailment', 'not_entailment'] == list(task.labels)
    (tmp_path / 'all').mkdir()
    shutil.copytree(tmp_path, tmp_path / 'all' / 'rte', ignore=shutil.ignore_patterns('all'))
    of_all = GlueTask(str(tmp_path / 'all'), 32, task='rte')  # as in a clone of the Hub's repository
    assert list(of_all.records('dev')) == list(task.records('dev')) and not of_all.describe_missing()
    for folder, name in (('mnli', 'test_matched'), ('ax', 'test')):
        (tmp_path / 'all' / folder).mkdir()
        row = {'premise': folder, 'hypothesis': 'b', 'label': -1, 'idx': 0}
        (tmp_path / 'all' / folder / f'{name}.jsonl').write_text(json.dumps(row))
    for data in (tmp_path / 'all', tmp_path / 'all' / 'mnli'):
        mnli = GlueTask(str(data), 32, task='mnli')
        assert [mnli.records(split)[0].first for split in mnli.server_splits()] == ['mnli', 'ax']
    (tmp_path / 'train.jsonl').write_text(json.dumps({**rows[0], 'label': 2}) + '\n')
    with pytest.raises(UserError, match="found the label '2', expected one of entailment, not_entailment"):
        task.records('train')


def test_invalid_indices_are_errors(glue_copy):
    path = glue_copy / 'RTE' / 'test.tsv'
    original = path.read_text()
    for new, message in (('\nx\t', "the index 'x'"), ('\n0\t', 'the index 0')):
        path.write_text(original.replace('\n3\t', new))
        with pytest.raises(UserError) as caught:
            GlueTask(str(glue_copy), 32, task='rte').records('test')
        assert caught.value.where == f'{path}:5' and message in caught.value.found


def test_missing_files_and_tasks_are_errors(glue_copy):
    (glue_copy / 'RTE' / 'dev.tsv').unlink()
    task = GlueTask(str(glue_copy), 32, task='RTE')
    assert task.splits() == ['train']
    for split, message in (('dev', 'no dev.tsv'), ('validation', "'validation'")):
        with pytest.raises(UserError) as caught:
            task.records(split)
        assert message in caught.value.found
    with pytest.raises(UserError, match='nowhere'):
        GlueTask(str(glue_copy / 'nowhere'), 32).splits()
    with pytest.raises(UserError, match='cola, sst2, mrpc'):
        GlueTask(str(glue_copy), 32, task='snli')
    assert GlueTask(str(glue_copy), 32, task='STS-B').name == 'STS-B'


def test_the_error_about_a_missing_dataset_says_how_to_prepare_it(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, 'DATA_DIR', str(tmp_path))
    monkeypatch.setattr('bertjax.tasks.sentence.glue.TASKS', {'rte': TASKS['rte']})
    split = TASKS['rte'].splits['train'].__class__(('train.tsv',), ('glue/wnli_of_another_world', 'train'), ())
    monkeypatch.setitem(TASKS['rte'].splits, 'train', split)
    with pytest.raises(UserError) as caught:
        GlueTask('', 32).records('train')
    assert 'cannot find' in caught.value.found and 'download_and_prepare' in caught.value.fix


SHARED = {
    'CoLA': (8551, 1043, 1063),
    'SST-2': (67349, 872, 1821),
    'STS-B': (5749, 1500, None),
    'RTE': (2490, 277, 3000),
    'WNLI': (635, 71, 146),
    'QNLI': (None, 5463, 5463),
    'MNLI': (9888, 9815, None),
}


@pytest.mark.parametrize('name', [*(name for name in SHARED if name != 'SST-2'), *slow('SST-2')])
def test_published_files_are_read(shared, name: str):
    task = GlueTask(str(shared / 'glue'), 128, task=name)
    for split, count in zip(('train', 'dev', 'test'), SHARED[name], strict=True):
        if count:
            records = task.records(split)
            assert len(records) == count
            assert {record.label for record in records} <= {None, *task.labels} or task.regression
    assert list(task.splits()) == [split for split, n in zip(('train', 'dev'), SHARED[name], strict=False) if n]
