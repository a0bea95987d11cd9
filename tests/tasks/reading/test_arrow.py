"""Tests reading Parquet, Arrow, and directories of `datasets`."""

import json
import pathlib
import sys

import pytest

from bertjax.errors import UserError
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.reading.records import read_records
from bertjax.tasks.reading.splits import split_files
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.sentence.glue import GlueTask
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.task import TaggingTask

pa = pytest.importorskip('pyarrow', reason='writes and reads its files')
pq = pytest.importorskip('pyarrow.parquet', reason='writes and reads its files')

LABEL = {'names': ['neg', 'pos'], '_type': 'ClassLabel'}


def table(rows: list[dict], features: dict | None = None, types: dict | None = None) -> 'pa.Table':
    """Returns a table with the metadata that `datasets` writes; `types` maps columns to other types."""
    result = pa.Table.from_pylist(rows)
    for name, kind in (types or {}).items():
        index = result.schema.get_field_index(name)
        result = result.set_column(index, name, result[name].cast(kind))
    metadata = {b'huggingface': json.dumps({'info': {'features': features}}).encode()} if features else {}
    return result.replace_schema_metadata(metadata)


def save_to_disk(folder: pathlib.Path, data: 'pa.Table', features: dict) -> None:
    """Writes `data` like datasets.Dataset.save_to_disk, in two files."""
    folder.mkdir(parents=True)
    files = []
    for i, start in enumerate(range(0, data.num_rows, 2)):
        files.append({'filename': f'data-{i:05}-of-00002.arrow'})
        part = data.slice(start, 2)
        with (
            pa.OSFile(str(folder / files[-1]['filename']), 'wb') as sink,
            pa.ipc.new_stream(sink, part.schema) as writer,
        ):
            writer.write_table(part)
    (folder / 'state.json').write_text(json.dumps({'_data_files': files, '_split': None}))
    (folder / 'dataset_info.json').write_text(json.dumps({'features': features}))


REVIEWS = [{'text': f'é {i}', 'label': i % 2, 'stars': i + 0.8} for i in range(4)]


def test_a_repository_of_the_hub_is_read(tmp_path: pathlib.Path):
    """Its data/ has shards of Parquet files, in which the label -1 means that there is no label."""
    (tmp_path / 'data').mkdir()
    reviews = table(REVIEWS, {'label': LABEL}, {'stars': pa.float32()})
    for i in range(2):
        pq.write_table(reviews.slice(2 * i, 2), tmp_path / 'data' / f'train-0000{i}-of-00002.parquet')
    pq.write_table(reviews, tmp_path / 'data' / 'validation-00000-of-00001.parquet')
    hidden = [{**row, 'label': -1} for row in REVIEWS]
    pq.write_table(table(hidden, {'label': LABEL}), tmp_path / 'data' / 'test-00000-of-00001.parquet')
    task = ClassificationTask(str(tmp_path), 32)
    records = task.records('train')
    task.learn(records)
    assert task.labels == ['neg', 'pos'] and [record.label for record in records] == ['neg', 'pos'] * 2
    assert records[3].where == f'{tmp_path}/data/train-00001-of-00002.parquet[1]' and records[3].first == 'é 3'
    assert list(task.splits()) == ['train', 'dev'] and task.records('test')[0].label is None
    assert task.sources() == (
        'train: 2 files, train-00000-of-00002.parquet to train-00001-of-00002.parquet, '
        'dev: validation-00000-of-00001.parquet, '
        'test: test-00000-of-00001.parquet (no labels; for prediction only)'
    )
    scores = ClassificationTask(str(tmp_path), 32, label='stars', regression=True)
    assert [record.label for record in scores.records('train')] == [0.8, 1.8, 2.8, 3.8]
    (tmp_path / 'data' / 'train-00000-of-00002.parquet').unlink()
    with pytest.raises(UserError, match=r'1 files train-\*-of-00002.parquet, expected 2'):
        task.records('train')


def test_a_directory_of_datasets_is_read(tmp_path: pathlib.Path):
    for split in ('train', 'validation'):
        save_to_disk(tmp_path / 'saved' / split, table(REVIEWS), {'label': LABEL})
    (tmp_path / 'saved' / 'dataset_dict.json').write_text('{"splits": ["train", "validation"]}')
    task = ClassificationTask(str(tmp_path / 'saved'), 32)
    assert [record.label for record in task.records('dev')] == ['neg', 'pos'] * 2
    assert task.sources() == 'train: train, dev: validation'
    only_train = ClassificationTask(str(tmp_path / 'saved' / 'train'), 32, dev_fraction=0.5)
    assert len(only_train.records('train')) + len(only_train.records('dev')) == 4
    assert only_train.sources() == 'train: train, dev: a share of 0.5 of train'
    (tmp_path / 'saved' / 'train' / 'data-00001-of-00002.arrow').unlink()
    with pytest.raises(UserError, match=r'data-00001-of-00002.arrow: found no such file'):
        task.records('train')


def test_every_kind_of_task_reads_parquet(tmp_path: pathlib.Path):
    names = ['O', 'B-X', 'I-X']
    tags = {'ner_tags': {'feature': {'names': names, '_type': 'ClassLabel'}, '_type': 'List'}}
    pq.write_table(table([{'tokens': ['a', 'b', 'c'], 'ner_tags': [1, 2, 0]}], tags), tmp_path / 'train.parquet')
    assert TaggingTask(str(tmp_path), 12).records('train')[0].tags == ('B-X', 'I-X', 'O')

    answers = {'text': ['red'], 'answer_start': [4]}
    squad = [{'id': 'q', 'title': '', 'context': 'the red', 'question': 'what', 'answers': answers}]
    pq.write_table(table(squad), tmp_path / 'train.parquet')
    (question,) = SquadTask(str(tmp_path), 100).records('train')
    assert (question.id, question.answers, question.starts) == ('q', ('red',), (4,))

    swag = [{'sent1': 'It rains.', 'sent2': 'We', **{f'ending{i}': f'e{i}' for i in range(4)}, 'label': 2}]
    labels = {'label': {'names': ['0', '1', '2', '3'], '_type': 'ClassLabel'}}
    pq.write_table(table(swag, labels), tmp_path / 'train.parquet')
    (question,) = MultipleChoiceTask(str(tmp_path), 16).records('train')
    assert (question.label, question.endings, question.group) == (2, ('e0', 'e1', 'e2', 'e3'), '')

    rte = [{'sentence1': 'a', 'sentence2': 'b', 'label': 1, 'idx': 5}]
    labels = {'label': {'names': ['entailment', 'not_entailment'], '_type': 'ClassLabel'}}
    for split in ('train', 'validation'):
        pq.write_table(table(rte, labels), tmp_path / f'{split}-00000-of-00001.parquet')
    (tmp_path / 'train.parquet').unlink()
    pq.write_table(table([{**rte[0], 'label': -1}], labels), tmp_path / 'test-00000-of-00001.parquet')
    task = GlueTask(str(tmp_path), 16, task='rte')
    assert list(task.splits()) == ['train', 'dev'] and task.records('dev')[0].label == 'not_entailment'
    assert (task.records('test')[0].label, task.records('test')[0].index) == (None, '5')


@pytest.mark.parametrize('number', [2, -2, 2**62])
def test_a_class_number_without_a_name_is_refused(tmp_path: pathlib.Path, number: int):
    rows = [{'text': 'a', 'label': 1}, {'text': 'b', 'label': number}]
    pq.write_table(table(rows, {'label': LABEL}), tmp_path / 'a.parquet')
    with pytest.raises(
        UserError, match=rf'a\.parquet\[1\]: found the class {number}, expected 0 to 1, or -1 for no label'
    ):
        list(read_records([tmp_path / 'a.parquet']))


def test_metadata_of_datasets_may_lack_features_but_not_be_damaged(tmp_path: pathlib.Path):
    save_to_disk(tmp_path / 'x', table(REVIEWS), {'label': LABEL})
    (tmp_path / 'x' / 'dataset_info.json').write_text('{"features": ')
    with pytest.raises(UserError, match=r'dataset_info\.json: found no JSON .*; save the dataset again'):
        list(read_records([tmp_path / 'x']))
    (tmp_path / 'x' / 'dataset_info.json').write_text('{}')  # Without features, the numbers have no names.
    assert [record.fields['label'] for record in read_records([tmp_path / 'x'])] == [0, 1, 0, 1]


def test_a_folder_of_tables_may_have_the_state_of_another_program(tmp_path: pathlib.Path):
    (tmp_path / 'state.json').write_text('{"step": 3}')
    (tmp_path / 'train.csv').write_text('text,label\na,x\n')
    assert ClassificationTask(str(tmp_path), 32).records('train')[0].first == 'a'
    (tmp_path / 'dataset_info.json').write_text('{}')
    with pytest.raises(UserError, match=r'state\.json: found no list of Arrow files'):
        ClassificationTask(str(tmp_path), 32).records('train')


def test_dates_are_text_and_bytes_are_missing_values(tmp_path: pathlib.Path):
    import datetime

    row = {'text': 'a', 'when': datetime.date(2026, 11, 22), 'raw': b'\xff', 'none': None}
    path = tmp_path / 'a.feather'
    with pa.OSFile(str(path), 'wb') as sink, pa.ipc.new_file(sink, table([row]).schema) as writer:
        writer.write_table(table([row]))
    (record,) = read_records([path])
    assert record.fields == {'text': 'a', 'when': '2026-11-22', 'raw': None, 'none': None}


def test_the_suffix_of_a_parquet_file_may_name_the_compression_of_its_pages(tmp_path: pathlib.Path):
    pq.write_table(table(REVIEWS), tmp_path / 'a.parquet.gz', compression='gzip')
    assert len(list(read_records([tmp_path / 'a.parquet.gz']))) == 4
    (tmp_path / 'train').mkdir()
    (tmp_path / 'a.parquet.gz').rename(tmp_path / 'train' / 'a.parquet.gz')
    assert split_files(tmp_path, 'train') == (tmp_path / 'train' / 'a.parquet.gz',)


def test_values_that_python_cannot_represent_are_errors(tmp_path: pathlib.Path):
    latin = pa.array([b'caf\xe9'], pa.binary()).view(pa.string())
    for values in (latin, pa.array([10**15], pa.timestamp('ms'))):
        pq.write_table(pa.table({'text': ['a'], 'other': values}), tmp_path / 'a.parquet')
        with pytest.raises(UserError, match=r'a\.parquet: found an unreadable value .*, expected UTF-8 texts'):
            list(read_records([tmp_path / 'a.parquet']))


def test_damage_and_a_missing_package_are_errors(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / 'a.parquet'
    pq.write_table(pa.table({'text': ['a text that is long']}), path, compression='none', write_page_checksum=True)
    path.write_bytes(path.read_bytes().replace(b'long', b'lomg'))
    with pytest.raises(UserError, match=r'a.parquet: found an error after .*CRC checksum'):
        list(read_records([path]))
    pq.write_table(table(REVIEWS), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r'a.parquet: found an error after 0 rows'):
        list(read_records([path]))
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    with pytest.raises(UserError, match=r"pip install 'bertjax\[arrow\]'"):
        list(read_records([path]))
