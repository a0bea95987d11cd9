"""Tests which files belong to which split, and that other files are reported."""

import gzip
import pathlib

import pytest

from bertjax.errors import UserError
from bertjax.tasks.choice.task import MultipleChoiceTask
from bertjax.tasks.reading.splits import STEMS, TableFiles, split_files
from bertjax.tasks.sentence.classification import ClassificationTask
from bertjax.tasks.squad.task import SquadTask
from bertjax.tasks.tagging.columns import TagFormat
from bertjax.tasks.tagging.files import TaggedFiles
from bertjax.tasks.tagging.task import TaggingTask

TABLE = 'text,label\na,x\nb,y\n'
KINDS = {
    'classification': (lambda data: ClassificationTask(data, 32), '.csv', TABLE),
    'tagging': (lambda data: TaggingTask(data, 12), '.txt', 'a B-X\n'),
    'multiple choice': (
        lambda data: MultipleChoiceTask(data, 12, layout='jsonl'), '.jsonl',
        '{"prompt": "a", "endings": ["b", "c"], "label": 0}\n',
    ),
    'squad': (
        lambda data: SquadTask(data, 100), '.jsonl',
        '{"id": "q", "question": "a", "context": "b", "answers": {"text": ["b"], "answer_start": [0]}}\n',
    ),
}  # fmt: skip


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', ['dev', 'valid', 'validation', 'val', 'eval'])
def test_all_usual_names_of_the_dev_split_are_recognized(tmp_path: pathlib.Path, kind: str, name: str):
    make, suffix, text = KINDS[kind]
    for stem in ('train', name, 'more'):
        (tmp_path / f'{stem}{suffix}').write_text(text)
    task = make(str(tmp_path))
    assert 'dev' in task.splits() and task.records('dev') and task.records('train')
    sources = task.sources()
    assert f'train: train{suffix}' in sources and f'dev: {name}{suffix}' in sources
    assert f"not used: 'more{suffix}'" in sources
    other = 'val' if name != 'val' else 'dev'
    (tmp_path / f'{other}{suffix}').write_text(text)
    with pytest.raises(UserError, match=f'{min(name, other)}{suffix} and {max(name, other)}{suffix}'):
        task.records('dev')


def test_a_dev_split_that_is_taken_from_train_is_reported(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture):
    (tmp_path / 'train.csv').write_text('text,label\n' + ''.join(f'text {i},{i % 2}\n' for i in range(200)))
    task = ClassificationTask(str(tmp_path), 32)
    assert task.sources() == 'train: train.csv, dev: a share of 0.1 of train'
    records = task.records('train')
    task.learn(records)
    dev = len(task.records('dev'))
    line = f'dev is {dev} of the 200 records of train, selected by a hash of their text; config.task.dev_fraction=0.1'
    assert line in capsys.readouterr().out and dev + len(records) == 200
    (tmp_path / 'val.csv').write_text(TABLE)
    (tmp_path / 'train.csv.gz').write_bytes(gzip.compress((tmp_path / 'train.csv').read_bytes()))
    (tmp_path / 'train.csv').unlink()
    only_train = ClassificationTask(str(tmp_path / 'train.csv.gz'), 32)
    assert only_train.sources() == "train: train.csv.gz, dev: a share of 0.1 of train\nnot used: 'val.csv'"


def test_text_files_take_precedence_over_parquet_of_the_same_split(tmp_path: pathlib.Path):
    for name in ('train.csv', 'train.parquet', 'test.parquet', 'train-00000-of-00001.csv.gz'):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r'train-\*-of-00001.csv.gz and train.csv'):
        split_files(tmp_path, 'train')
    (tmp_path / 'train-00000-of-00001.csv.gz').unlink()
    shards = [tmp_path / f'dev-0000{i}-of-00002-{i}0123456789abcde.parquet' for i in (0, 1)]
    for shard in shards:
        shard.touch()
    assert split_files(tmp_path, 'dev') == tuple(shards)
    for shard in shards:
        shard.unlink()
    assert [split_files(tmp_path, split) for split in STEMS] == [
        (tmp_path / 'train.csv',), (), (tmp_path / 'test.parquet',),
    ]  # fmt: skip


def test_a_missing_split_names_the_files_that_could_be_renamed(tmp_path: pathlib.Path):
    for name in ('train.csv', 'more.csv', 'README.md', '.hidden.csv', 'dataset_info.json'):
        (tmp_path / name).write_text(TABLE)
    names = dict.fromkeys(STEMS, '')
    with pytest.raises(UserError, match=r"no file of the dev split among 'more\.csv', 'train\.csv', expected dev\.csv"):
        TableFiles(str(tmp_path), '', names).require('dev')
    for name in ('train.conllu', 'gold.iob2', 'eng.train', 'test'):
        (tmp_path / name).write_text(TABLE)
    among = r"among 'eng\.train', 'gold\.iob2', 'more\.csv', 'test', 'train\.conllu', "
    with pytest.raises(UserError, match=among + r'.*expected dev\.txt, dev\.conll …'):
        TaggedFiles(str(tmp_path), TagFormat()).require('dev')
    (tmp_path / 'dev.csv').write_text(TABLE)  # it is not read unless config.task.dev names it
    with pytest.raises(UserError, match=r'no file of the dev split, expected dev\.csv'):
        TableFiles(str(tmp_path / 'train.csv'), '', names).require('dev')
