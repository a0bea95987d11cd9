"""run=minimal_pairs on files, its mistakes, its parts after a kill; config.heldout_pairs of a pre-training."""

import gzip
import json
import math
import os
import pathlib

import numpy as np
import pyarrow.parquet
import pytest
from running import NO_SAVES, RUN, Program, assert_one_line, rows

import bertjax
from bertjax.errors import UserError
from bertjax.inference import score
from bertjax.tasks.minimal_pairs import read_pairs

RECIPE = {'recipe': 'configs/minimal_pairs.py', 'small': False}
WORDS = ('the', 'river', 'stone', 'bird', 'light', 'old', 'green', 'runs', 'sings', 'falls', 'under', 'over', 'near')


def write(path: pathlib.Path, records: list[dict]) -> pathlib.Path:
    text = ''.join(json.dumps(record) + '\n' for record in records).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == '.gz' else text)
    return path


def records(count: int) -> list[dict]:
    """Returns `count` + 2 pairs in three sets of unequal size, two of them of one phenomenon.

    In the last two pairs, both sentences are equal in lower case.
    """
    rng = np.random.default_rng(1)
    sentences = [' '.join(rng.choice(WORDS, 4 + i % 5)) for i in range(2 * count)]
    pairs = [
        {
            'UID': 'abbb'[i % 4] if i % 5 else 'c', 'linguistics_term': 'order' if i % 5 else 'rest', 'id': i,
            'sentence_good': sentences[2 * i], 'sentence_bad': sentences[2 * i + 1],
        }
        for i in range(count)
    ]  # fmt: skip
    return [*pairs, *({**pair, 'sentence_bad': pair['sentence_good'].title()} for pair in pairs[:2])]


@pytest.fixture(scope='module')
def pairs(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write(tmp_path_factory.mktemp('pairs') / 'few.jsonl.gz', records(40))


def results(folder: pathlib.Path, name: str = 'few') -> tuple[dict, list[dict]]:
    folder = folder / 'minimal_pairs'
    lines = (folder / f'{name}.jsonl').read_text(encoding='utf-8').splitlines()
    return json.loads((folder / f'{name}.json').read_text(encoding='utf-8')), [json.loads(line) for line in lines]


def test_accuracies_follow_from_the_scores(program: Program, trained, pairs, tmp_path):
    out = program.run(f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={pairs}', **RECIPE).stdout
    facts, scored = results(tmp_path)
    in_file = records(40)
    bert = bertjax.load(trained)
    for side in ('good', 'bad'):
        expected = [score['log_likelihood'] for score in bert.score([pair[f'sentence_{side}'] for pair in in_file])]
        np.testing.assert_allclose([row[f'{side}_score'] for row in scored], expected, atol=1e-4)
    correct = np.array([row['good_score'] > row['bad_score'] for row in scored])
    assert [row['correct'] for row in scored] == correct.tolist() and not correct[-2:].any()
    assert all(row.items() >= pair.items() for row, pair in zip(scored, in_file, strict=True))
    assert '2 of 42 pairs have equal scores' in out
    assert facts['ties'] == 2 and facts['pairs'] == 42 and facts['share'] == correct.mean()
    by_set = {name: correct[[pair['UID'] == name for pair in in_file]] for name in 'abc'}
    for name, hits in by_set.items():
        error = math.sqrt(hits.mean() * (1 - hits.mean()) / len(hits))
        expected = {'pairs': len(hits), 'accuracy': hits.mean(), 'standard_error': error}
        assert facts['sets'][name] == pytest.approx(expected)
    means = {name: (hits.mean(), hits.var() / len(hits)) for name, hits in by_set.items()}
    for row, names in ((facts, 'abc'), (facts['phenomena']['order'], 'ab'), (facts['phenomena']['rest'], 'c')):
        assert row['accuracy'] == pytest.approx(np.mean([means[name][0] for name in names]))
        error = math.sqrt(sum(means[name][1] for name in names)) / len(names)
        assert row['standard_error'] == pytest.approx(error)
    for name, row in (('order', facts['phenomena']['order']), ('mean over the sets', facts)):
        assert f'{row["accuracy"]:.3f}' in next(line for line in out.splitlines() if line.startswith(name))


def test_parts_are_computed_once_and_other_results_are_not_replaced(
    program: Program, trained, pairs, tmp_path, monkeypatch
):
    monkeypatch.setattr(score, '_PART', 16)
    command = (f'--config.init={trained}', f'--config.input={pairs}')
    program.run(f'--workdir={tmp_path}/whole', *command, **RECIPE)
    compute, calls = score.score_minimal_pairs, []

    def interrupt_third(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return compute(*arguments)

    monkeypatch.setattr(score, 'score_minimal_pairs', interrupt_third)
    command = (f'--workdir={tmp_path}/killed', *command)
    program.run(*command, status=None, **RECIPE)
    assert len(list((tmp_path / 'killed' / 'minimal_pairs').rglob('*.npy'))) == 2
    program.run(*command, **RECIPE)
    assert len(calls) == 4  # The third and last part is computed again.
    for name in ('few.json', 'few.jsonl'):
        whole, killed = ((tmp_path / run / 'minimal_pairs' / name).read_bytes() for run in ('whole', 'killed'))
        assert whole == killed
    assert 'exists already' in program.run(*command, **RECIPE).stdout and len(calls) == 4
    assert not list((tmp_path / 'killed').rglob('*.parts'))
    other = write(tmp_path / 'few.jsonl', records(3))
    line = program.error(*command, f'--config.input={other}', **RECIPE)
    assert f'results of {pairs}' in line


def test_pairs_may_have_other_fields_and_no_sets(program: Program, trained, tmp_path):
    own = [{'right': 'the river runs', 'wrong': 'the runs river'}, {'right': 'old stone', 'wrong': 'stone old'}]
    path = write(tmp_path / 'own.jsonl', own)
    fields = ('--config.minimal_pairs.good=right', '--config.minimal_pairs.bad=wrong')
    command = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={path}', *fields)
    program.run(*command, **RECIPE)
    facts, scored = results(tmp_path, 'own')
    assert facts['accuracy'] == facts['share'] == np.mean([row['correct'] for row in scored])
    line = program.error(*command, '--config.minimal_pairs.set=kind', **RECIPE)
    assert 'own.jsonl:1' in line and 'config.minimal_pairs.set' in line
    short = [{'good': pair['right'], 'bad': pair['wrong']} for pair in own]
    paths = [tmp_path / f'short.{suffix}' for suffix in ('jsonl', 'txt', 'json', 'csv', 'tsv', 'parquet')]
    for path in paths[:3]:
        write(path, short)
    for path, comma in zip(paths[3:5], ',\t', strict=True):
        path.write_text(''.join(comma.join(row) + '\n' for row in [short[0], *(pair.values() for pair in short)]))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(short), paths[5])
    read = [[(pair.good, pair.bad) for pair in read_pairs(str(path), 'config.input')] for path in paths]
    assert read == [[tuple(pair.values()) for pair in short]] * 6
    (tmp_path / 'short.xlsx').write_bytes(b'PK\0')
    with pytest.raises(UserError, match=r"found the suffix '\.xlsx', .*; save it as CSV UTF-8"):
        read_pairs(str(tmp_path / 'short.xlsx'), 'config.input')


@pytest.mark.parametrize('field', ['UID', 'linguistics_term'])
@pytest.mark.parametrize('number', [0, 1])
def test_only_some_names_are_a_mistake(tmp_path, field, number):
    for change in ({field: None}, {field: ' '}, {}):
        wrong = records(3)
        del wrong[number][field]
        wrong[number] |= change
        path = write(tmp_path / 'some.jsonl', wrong)
        with pytest.raises(UserError, match=rf"jsonl:{number + 1}: found no name in '{field}', .* or in none"):
            read_pairs(str(path), 'config.input')


def test_a_set_of_two_phenomena_is_a_mistake(tmp_path):
    path = write(tmp_path / 'two.jsonl', [pair | {'UID': 'a'} for pair in records(3)])
    with pytest.raises(UserError, match=rf"jsonl:2: found 'order' for the set 'a', expected 'rest', as in {path}:1"):
        read_pairs(str(path), 'config.input')
    without_sets = [{name: pair[name] for name in pair if name != 'UID'} for pair in records(3)]
    blank_sets = [pair | {'UID': ' '} for pair in without_sets]
    spaces = [pair | {'linguistics_term': pair['linguistics_term'] + ' ' * i} for i, pair in enumerate(records(3))]
    for pairs in (without_sets, blank_sets, spaces):
        read = read_pairs(str(write(path, pairs)), 'config.input')
        assert [pair.phenomenon for pair in read] == ['rest', 'order', 'order', 'rest', 'order']


LONG = ' '.join(['bird'] * 600)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'sentence_bad': None}, "an empty text in 'sentence_bad'"),
        ({'sentence_good': ' ', 'sentence_bad': ' '}, "an empty text in 'sentence_good'"),
        ({'sentence_good': LONG}, 'a sentence of 602 tokens'),
        ({'sentence_good': '\u200b'}, 'a sentence without tokens'),
        ('sentence_bad', 'sentence_bad'),
        ('UID', 'UID'),
    ],
)
def test_mistakes_in_a_file_name_its_line(program: Program, trained, tmp_path, change, message):
    wrong = records(3)
    if isinstance(change, str):
        del wrong[1][change]
    else:
        wrong[1] |= change
    path = write(tmp_path / 'wrong.jsonl', wrong)
    command = (f'--workdir={tmp_path}/out', f'--config.init={trained}', f'--config.input={path}')
    line = program.error(*command, **RECIPE)
    assert f'{path}:2: found' in line and message in line
    assert not list((tmp_path / 'out').rglob('*.jsonl'))


def test_other_mistakes_are_errors(program: Program, trained, tuned, pairs, tmp_path):
    command = (f'--workdir={tmp_path}/out', f'--config.input={pairs}')
    assert 'no head for masked words' in program.error(*command, f'--config.init={tuned}', **RECIPE)
    os.mkfifo(pipe := tmp_path / 'pipe')
    missing = {'': 'nothing', '/nowhere.jsonl': "'/nowhere.jsonl'", '-': '-, standard input', pipe: f'{pipe}, a pipe'}
    for path, found in missing.items():
        line = program.error(f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.input={path}', **RECIPE)
        assert f'config.input: found {found}, expected a file' in line and ('standard input' in line) == (path == '-')


@pytest.mark.slow
def test_measuring_pairs_does_not_change_a_training(program: Program, trained, pairs, tmp_path):
    workdir = tmp_path / 'run'
    out = program.run(f'--workdir={workdir}', *RUN, NO_SAVES, f'--config.heldout_pairs={pairs}').stdout
    name = 'export/hf/model.safetensors'
    assert (workdir / name).read_bytes() == (trained / name).read_bytes()
    for split in ('train', 'heldout'):
        measured, plain = (
            [row['mlm_loss'] for row in rows(folder / 'metrics.jsonl', split)] for folder in (workdir, trained)
        )
        assert measured == plain
    measured = rows(workdir / 'metrics.jsonl', 'heldout_pairs')
    assert [row['step'] for row in measured] == [0, 8, 16, 24]
    assert json.loads((workdir / 'summary.json').read_text())['heldout_pairs'] == [measured[0], measured[-1]]
    assert 'also evaluated on 32 minimal pairs' in out  # as many as config.eval_examples
    assert f'heldout_pairs at step 24: accuracy {measured[-1]["accuracy"]:.3f}' in out
    other = write(tmp_path / 'other.jsonl', records(3))
    line = program.error(f'--workdir={workdir}', *RUN, NO_SAVES, f'--config.heldout_pairs={other}')
    assert f"config.heldout_pairs: found '{other}', expected '{pairs}', as in {workdir}" in line

    evaluated = write(tmp_path / 'even.jsonl', [records(40)[i * 42 // 32] for i in range(32)])
    program.run(f'--workdir={workdir}', f'--config.input={evaluated}', **RECIPE)
    facts, _ = results(workdir, 'even')
    assert {name: measured[-1][name] for name in ('accuracy', 'standard_error')} == pytest.approx(
        {name: facts[name] for name in ('accuracy', 'standard_error')}
    )


def test_pairs_of_a_training_are_checked_at_the_start(program: Program, tmp_path):
    wrong = records(3)
    del wrong[2]['sentence_good']
    path = write(tmp_path / 'field.jsonl', wrong)
    line = program.error(f'--workdir={tmp_path / "run"}', f'--config.heldout_pairs={path}')
    assert 'field.jsonl:3' in line and line.endswith('expected sentence_good or good; correct the record')
    wrong = records(3)
    wrong[1]['sentence_bad'] = ''
    path = write(tmp_path / 'wrong.jsonl', wrong)
    for source, message in ((path, f'{path}:2'), ('/nowhere.jsonl', 'config.heldout_pairs')):
        command = (f'--workdir={tmp_path}/run', f'--config.heldout_pairs={source}')
        assert message in program.error(*command)
        assert message in assert_one_line(program.run(*command, '--config.run=pretrain', status=2))
    assert not list((tmp_path / 'run').rglob('*.tokens'))
    wrong[1]['sentence_bad'] = LONG
    write(path, wrong)
    assert f'{path}:2' in program.error(f'--workdir={tmp_path}/run', f'--config.heldout_pairs={path}')
