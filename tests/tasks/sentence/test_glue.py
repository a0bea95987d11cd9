"""GLUE: its files as they are, tensorflow-datasets, the server's files, and what is refused."""

import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest
from glue_world import ROWS, label, text, write_glue

from bertjax.errors import UserError
from bertjax.losses import CLASSIFICATION, REGRESSION
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.tasks.sentence.glue_table import TASKS
from bertjax.tasks.sentence.task import Scores

TRAINED = [name for name in TASKS if name != 'ax']
JUDGED = [(name, 'test') for name in TRAINED] + [('mnli', 'test_mismatched'), ('mnli', 'ax')]


@pytest.fixture(scope='module')
def glue(tmp_path_factory) -> pathlib.Path:
    """The folder of all tasks."""
    return write_glue(tmp_path_factory.mktemp('glue_data'))


@pytest.fixture
def own(glue, tmp_path) -> pathlib.Path:
    """A copy to spoil."""
    return pathlib.Path(shutil.copytree(glue, tmp_path / 'glue'))


@pytest.fixture(scope='module')
def prepared(glue, tmp_path_factory) -> None:
    """All tasks, prepared by the builders of tensorflow-datasets from the same files, without network."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text

    folder = tmp_path_factory.mktemp('tfds')
    raw = folder / 'mrpc'
    raw.mkdir()
    # MRPC is not in GLUE's download: its builder divides the original file.
    train, dev = ((glue / 'MRPC' / f'{name}.tsv').read_text().strip().split('\n') for name in ('train', 'dev'))
    dev = [line.replace('\t10', '\t30', 1) for line in dev[1:]]
    (raw / 'train').write_text('\n'.join(train + dev))
    (raw / 'ids').write_text('\n'.join(['#1 ID\t#2 ID', *('\t'.join(line.split('\t')[1:3]) for line in dev)]))
    mrpc = {'train': raw / 'train', 'dev_ids': raw / 'ids', 'test': glue / 'MRPC' / 'test.tsv'}
    manager = tfds.download.DownloadManager
    for name in TASKS:
        builder = tfds.builder(f'glue/{name}', data_dir=str(folder), file_format='array_record')
        files = mrpc if name == 'mrpc' else glue / 'diagnostic' / 'diagnostic.tsv'
        with (
            mock.patch.object(manager, 'download_and_extract', return_value=str(glue)),
            mock.patch.object(manager, 'download', return_value=files),
        ):
            builder.download_and_prepare()
    tfds.core.add_data_dir(str(folder))


def expected(name: str, split: str) -> list[tuple]:
    """(texts, label) as the files were written."""
    row = TASKS[name]
    words = dict(zip(row.file_labels, row.labels, strict=True))
    kind, rows = split.partition('_')[0], []
    for i in range(ROWS):
        texts = tuple(text(kind, i, side) for side in range(1, len(row.texts) + 1))
        found = None if kind == 'test' else words[label(name, i)] if row.labels else float(label(name, i))
        rows.append((texts, found))
    return rows


def told(records) -> list[tuple]:
    return [((r.first,) if r.second is None else (r.first, r.second), r.label) for r in records]


@pytest.mark.parametrize('name', TRAINED)
@pytest.mark.parametrize('whole', [True, False], ids=['all tasks', 'own folder'])
def test_reads_the_official_files(glue, name: str, whole: bool):
    task = GlueTask(str(glue if whole else glue / TASKS[name].title), 32, task=name)
    splits = ['train', 'dev', 'dev_mismatched'] if name == 'mnli' else ['train', 'dev']
    assert list(task.splits()) == splits
    for split in (*splits, 'test'):
        records = task.records(split)
        assert told(records) == expected(name, split)
    assert [record.index for record in task.records('test')] == [str(i) for i in range(ROWS)]
    assert task.objective is (CLASSIFICATION if TASKS[name].labels else REGRESSION)
    assert task.score == {'cola': 'matthews', 'mrpc': 'f1', 'qqp': 'f1', 'stsb': 'spearman'}.get(name, 'accuracy')


@pytest.mark.parametrize('name', TRAINED)
def test_tensorflow_datasets_say_the_same(prepared, name: str):
    task = GlueTask('', 32, task=name)
    splits = ['train', 'dev', 'dev_mismatched'] if name == 'mnli' else ['train', 'dev']
    assert list(task.splits()) == splits
    for split in (*splits, 'test'):
        assert sorted(told(task.records(split)), key=str) == sorted(expected(name, split), key=str)


def test_labels_are_in_the_order_of_tensorflow_datasets():
    import tensorflow_datasets as tfds
    import tensorflow_datasets.text

    for name, row in TASKS.items():
        feature = tfds.builder(f'glue/{name}').info.features['label']
        assert tuple(getattr(feature, 'names', ())) == row.labels


def test_the_diagnostic_set_belongs_to_mnli(glue, own, prepared):
    for data in (str(glue), str(glue / 'MNLI'), ''):
        task = GlueTask(data, 32, task='mnli')
        records = sorted(task.records('ax'), key=lambda record: int(record.index))
        assert [(r.first, r.label) for r in records] == [(text('test', i), None) for i in range(ROWS)]
        assert 'ax' not in task.splits()
    (own / 'diagnostic' / 'diagnostic.tsv').unlink()
    full = 'Logic\tPremise\tHypothesis\tLabel\n' + 'x\ta\tb\tneutral\n' * 2
    (own / 'diagnostic' / 'diagnostic-full.tsv').write_text(full)
    task = GlueTask(str(own), 32, task='mnli')
    assert 'ax' in task.splits() and [record.label for record in task.records('ax')] == ['neutral'] * 2
    with pytest.raises(UserError, match='train mnli'):
        GlueTask(str(glue), 32, task='ax')


@pytest.mark.parametrize(('name', 'split'), JUDGED)
def test_the_files_of_the_server(glue, name: str, split: str):
    task = GlueTask(str(glue), 32, task=name)
    records = task.records(split)
    width = len(task.labels) or 1
    if task.labels:
        best = [(i + 1) % width for i in range(ROWS)]
        predictions = [Scores(np.eye(width)[i]) for i in best]
        answers = [TASKS[name].file_labels[i] for i in best]
    else:
        predictions = [Scores(np.array([x])) for x in (-0.4, 0.0, 1.23456, 4.9996, 5.0, 7.1)]
        answers = ['0.000', '0.000', '1.235', '5.000', '5.000', '5.000']
    server = {'test_mismatched': 'MNLI-mm.tsv', 'ax': 'AX.tsv'}.get(split)
    server = server or ('MNLI-m.tsv' if name == 'mnli' else f'{TASKS[name].title}.tsv')
    lines = ''.join(f'{i}\t{answer}\n' for i, answer in enumerate(answers))
    # In whatever order the records come.
    files = task.official_files(split, records[::-1], predictions[::-1])
    assert files == {server: f'index\tprediction\n{lines}'}
    assert task.official_files('dev', records, predictions) == {}


def test_test_files_without_header_and_files_with_one(own):
    for name in TRAINED:
        task = GlueTask(str(own), 32, task=name)
        path = own / task.name / ('test_matched.tsv' if name == 'mnli' else 'test.tsv')
        path.write_text(path.read_text().split('\n', 1)[1])
        assert told(task.records('test')) == expected(name, 'test')
        if name not in ('cola', 'mnli'):
            path = own / task.name / 'train.tsv'
            path.write_text(path.read_text().split('\n', 1)[1])
            assert told(task.records('train')) == expected(name, 'train')
    path = own / 'CoLA' / 'train.tsv'
    path.write_text('source\tlabel\tstar\tsentence\n' + path.read_text())
    assert told(GlueTask(str(own), 32, task='cola').records('train')) == expected('cola', 'train')


def test_a_labelled_test_file_of_mrpc_is_evaluated(own):
    shutil.copy(own / 'MRPC' / 'dev.tsv', own / 'MRPC' / 'test.tsv')
    assert list(GlueTask(str(own), 32, task='mrpc').splits()) == ['train', 'dev', 'test']


def test_broken_rows_of_qqp_are_counted(own, capsys):
    path = own / 'QQP' / 'train.tsv'
    path.write_text(path.read_text() + '9\t7\t8\thalf a question\nthe rest\tb\t0\n')
    assert len(GlueTask(str(own), 32, task='qqp').records('train')) == ROWS
    assert f'skipped 2 rows with a wrong number of columns, in lines {ROWS + 2}, {ROWS + 3}' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('name', 'old', 'new', 'line', 'said'),
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
def test_malformed_rows_are_errors_with_their_line(own, name: str, old: str, new: str, line: int, said: str):
    path = own / TASKS[name].title / 'train.tsv'
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError) as caught:
        GlueTask(str(own), 32, task=name).records('train')
    assert caught.value.where == f'{path}:{line}' and said in caught.value.found


def test_every_row_of_a_test_file_is_answered(own):
    path = own / 'QQP' / 'test.tsv'
    path.write_text(path.read_text() + '9\thalf a question\n')
    with pytest.raises(UserError, match='2 columns'):
        GlueTask(str(own), 32, task='qqp').records('test')


def test_labels_are_named_as_the_file_writes_them(own):
    path = own / 'CoLA' / 'dev.tsv'
    path.write_text(path.read_text().replace('\t1\t', '\t2\t', 1))
    with pytest.raises(UserError, match="found the label '2', expected one of 0, 1"):
        GlueTask(str(own), 32, task='cola').records('dev')


def test_wrong_indexes_are_errors(own):
    path = own / 'RTE' / 'test.tsv'
    original = path.read_text()
    for new, said in (('\nx\t', "the index 'x'"), ('\n0\t', 'the index 0')):
        path.write_text(original.replace('\n3\t', new))
        with pytest.raises(UserError) as caught:
            GlueTask(str(own), 32, task='rte').records('test')
        assert caught.value.where == f'{path}:5' and said in caught.value.found


def test_what_is_not_there_is_named(own):
    (own / 'RTE' / 'dev.tsv').unlink()
    task = GlueTask(str(own), 32, task='RTE')
    assert task.splits() == ['train']
    for split, said in (('dev', 'no dev.tsv'), ('validation', "'validation'")):
        with pytest.raises(UserError) as caught:
            task.records(split)
        assert said in caught.value.found
    with pytest.raises(UserError, match='nowhere'):
        GlueTask(str(own / 'nowhere'), 32).splits()
    with pytest.raises(UserError, match='cola, sst2, mrpc'):
        GlueTask(str(own), 32, task='snli')
    assert GlueTask(str(own), 32, task='STS-B').name == 'STS-B'


def test_a_dataset_that_is_not_prepared_says_how(tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    monkeypatch.setattr(tfds.core.constants, 'DATA_DIR', str(tmp_path))
    monkeypatch.setattr('bertjax.tasks.sentence.glue.TASKS', {'rte': TASKS['rte']})
    split = TASKS['rte'].splits['train'].__class__(('train.tsv',), ('glue/wnli_of_another_world', 'train'))
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


@pytest.mark.parametrize('name', SHARED)
def test_reads_the_real_files(shared, name: str):
    task = GlueTask(str(shared / 'glue'), 128, task=name)
    for split, count in zip(('train', 'dev', 'test'), SHARED[name], strict=True):
        if count:
            records = task.records(split)
            assert len(records) == count
            assert {record.label for record in records} <= {None, *task.labels} or task.regression
    assert list(task.splits()) == [split for split, n in zip(('train', 'dev'), SHARED[name], strict=False) if n]
