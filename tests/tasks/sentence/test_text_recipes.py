"""Tests the recipes for texts with data in the layouts that their docstrings describe."""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import pytest
from text_world import MAILS, learned

from bertjax.finetune.results import write_predictions
from bertjax.finetune.task_data import TaskSplit
from bertjax.tasks.reading.texts import Blank, number_lines
from bertjax.tasks.registry import build_task
from bertjax.text.tokenizer import load_tokenizer

SICK = """pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r
1\tA group of "kids is playing\tA group of boys\t4.5\tNEUTRAL\r
2\tNobody\tSomebody sings\t1\tCONTRADICTION\r
3\tA man, singing\tA man sings\t4.9\tENTAILMENT\r
"""


def recipe(repository: pathlib.Path, name: str, argument: str):
    spec = importlib.util.spec_from_file_location(name, repository / 'configs' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.get_config(argument)


def task_of(config, data):
    options = {name: value for name, value in config.task.items() if name != 'kind'}
    return build_task(config.task.kind, data=str(data), seq_len=config.seq_len, **options)


@pytest.mark.parametrize('part', ['e', 'r'])
def test_the_recipe_of_sick(tmp_path, repository, part: str, capsys):
    for name in ('train', 'trial', 'test_annotated'):
        (tmp_path / f'SICK_{name}.txt').write_bytes(SICK.encode())
    task = task_of(recipe(repository, 'sick', part), tmp_path)
    assert list(task.splits()) == ['train', 'dev', 'test']
    task.learn(task.records('train'))
    dev = [(r.first, r.second, r.label) for r in task.records('dev')]
    labels = ['NEUTRAL', 'CONTRADICTION', 'ENTAILMENT'] if part == 'e' else [4.5, 1.0, 4.9]
    assert [label for *_, label in dev] == labels
    assert dev[0][:2] == ('A group of "kids is playing', 'A group of boys')
    assert task.score == ('accuracy' if part == 'e' else 'pearson')
    # The format of SemEval's script, for the labeled file and for a file that is only predicted.
    unlabeled = list(task.parse(list(number_lines(SICK)), 'SICK_test.txt'))
    scores = [np.array([0.0, 1, 2]) if part == 'e' else np.array([x]) for x in (4.25, 0.5, 5.123456)]
    answers = {'e': 'CONTRADICTION\tNA', 'r': 'NA\t{}'}[part]
    rows = [f'{i + 1}\t{answers.format(f"{score[0]:.4f}")}\n' for i, score in enumerate(scores)]
    header = 'pair_ID\tentailment_judgment\trelatedness_score\n'
    for records in (task.records('test'), unlabeled):
        assert task.official_files('test', records, scores) == {'test.txt': header + ''.join(rows)}
    no_ids = [dataclasses.replace(record, fields={}) for record in unlabeled]
    assert task.official_files('test', no_ids, scores) == {}
    without_text = [*unlabeled, Blank('SICK_test.txt:5', 'an empty text', {'pair_ID': '4'})]
    capsys.readouterr()
    for records, items, count in ((unlabeled, None, 3), (unlabeled, without_text, 1), (no_ids, None, 1)):
        write_predictions(tmp_path / 'predictions', task, 'test', TaskSplit(records, None), scores, items)
        assert sum(path.is_file() for path in (tmp_path / 'predictions').rglob('*')) == count
    reason = "a benchmark's server or scorer needs a prediction for every record, and 1 have no text"
    written = f'no {tmp_path / "predictions" / "test"}/ and test.zip are written, and earlier ones are removed'
    assert capsys.readouterr().out == f'{written}: {reason}\n'


def test_the_recipes_of_glue_and_classify(repository, mails):
    config = recipe(repository, 'glue', 'stsb,grid,seq=64,seeds=3')
    task = task_of(config, mails)
    assert (task.name, task.score, task.seq_len) == ('STS-B', 'spearman', 64)
    assert config.sweep.learning_rate == (5e-5, 4e-5, 3e-5, 2e-5) and config.sweep.batch_size == (16, 32)
    assert config.epochs == 3.0 and config.sweep.seeds == (0, 1, 2)
    assert recipe(repository, 'glue', '').sweep.seeds == ()
    assert task_of(recipe(repository, 'classify', 'windows,seq=512'), mails).long == 'windows'
    assert task_of(recipe(repository, 'classify', 'regression'), mails).score == 'spearman'


def test_the_recipe_in_the_docstring_of_classify_works(repository, tmp_path):
    spec = importlib.util.spec_from_file_location('classify', repository / 'configs' / 'classify.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.__doc__.split('\n')
    start = next(i for i, line in enumerate(lines) if line.strip().startswith('from bertjax'))
    end = next(i for i, line in enumerate(lines) if line.strip() == 'return config')
    code = '\n'.join(line[4:] for line in lines[start : end + 1])
    assert len([line for line in code.split('\n') if line]) <= 10
    namespace: dict = {}
    exec(code, namespace)
    (tmp_path / 'mails.tsv').write_text(''.join(f'{y}\t{mail} {i}\n' for mail, y in MAILS for i in range(20)))
    config = namespace['get_config']()
    task = task_of(config, tmp_path / config.data)
    task.learn(task.records('train'))
    assert task.score == 'f1' and task.labels == ['ham', 'spam'] and task.records('dev')


def test_chemprot_and_pubmedqa_are_read(shared, capsys):
    task = learned(shared / 'domain' / 'chemprot')
    assert [len(task.records(split)) for split in task.splits()] == [4169, 2427, 3469]
    assert len(task.labels) == 13 and "only 4 of 4,169 records are 'AGONIST-INHIBITOR'" in capsys.readouterr().out
    path = shared / 'domain' / 'pubmedqa_ori_pqal.json'
    task = learned(path, text_a='QUESTION', text_b='CONTEXTS', label='final_decision', long='windows', seq_len=128)
    assert task.labels == ['maybe', 'no', 'yes']
    assert len(task.records('train')) + len(task.records('dev')) == 1000
    assert "['21645374']" in task.records('train')[0].where or "['21645374']" in task.records('dev')[0].where
    tokenizer = load_tokenizer(shared / 'vocab' / 'bert-base-uncased-vocab.txt')
    features = task.features(task.records('dev'), tokenizer, training=True)
    assert features.lengths.max() == 128 and len(features) > 2 * len(task.records('dev'))
    totals = np.bincount(features.record, features.row['weights'])
    np.testing.assert_allclose(totals, 1, rtol=1e-5)
