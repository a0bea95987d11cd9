"""config.ensemble: several tuned models answer with the mean of their logits; which models may be members."""

import errno
import json
import math
import pathlib
import shutil
from unittest import mock

import pytest
from browsing import NARROW, Browser
from killing import watch
from running import GLUE, Program, copy_workdir, results, rows

from bertjax.config.plain import to_plain
from bertjax.config.recipes import finetuning_config
from bertjax.finetune.ensemble import member_folders


@pytest.fixture
def two(tuned: pathlib.Path, tmp_path: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Workdirs of the fine-tuned model and of the same model at an earlier checkpoint."""
    one, other = copy_workdir(tuned, tmp_path / 'runs' / 'a'), copy_workdir(tuned, tmp_path / 'runs' / 'b')
    shutil.rmtree(max((other / 'checkpoints').glob('[0-9]*'), key=lambda path: int(path.name)))
    return one, other


def shares(workdir: pathlib.Path) -> list[float]:
    """Returns the probability of entailment for each record of dev."""
    return [row['probabilities']['entailment'] for row in rows(workdir / 'predictions' / 'dev.jsonl')]


@pytest.mark.slow
def test_an_ensemble_answers_with_the_mean_of_the_logits(program: Program, two, tmp_path: pathlib.Path):
    program.run(f'--workdir={two[1]}', '--config.run=evaluate', **GLUE)
    single = [shares(one) for one in two]
    assert single[0] != single[1]
    arguments = (f'--workdir={tmp_path / "both"}', f'--config.ensemble={tmp_path}/runs/*')
    with watch(mock.Mock(side_effect=OSError(errno.EROFS, 'Read-only file system')), tmp_path / 'runs'):
        facts = program.run(*arguments, '--config.run=evaluate', **GLUE).stdout
    for a, b, both in zip(*single, shares(tmp_path / 'both'), strict=True):
        yes, no = math.sqrt(a * b), math.sqrt((1 - a) * (1 - b))
        assert both == pytest.approx(yes / (yes + no), abs=1e-6)
    found = results(tmp_path / 'both')
    assert found['ensemble'] == [str(one) for one in two] and 'init' not in found
    assert found['alone']['dev'] == {str(one): results(one)['splits']['dev']['accuracy'] for one in two}
    assert 'together' in facts and str(two[1]) in facts
    assert not any((one / 'predictions' / 'test').exists() for one in two)
    out = program.run(*arguments, '--config.run=doctor', status=None, **GLUE).stdout
    assert 'ok    data         an ensemble of 2 workdirs' in out and 'FAIL' not in out

    program.run(*arguments, '--config.run=predict', '--config.split=test', **GLUE)
    assert len((tmp_path / 'both' / 'predictions' / 'test' / 'RTE.tsv').read_text().splitlines()) == 21
    dev = json.loads((two[0] / 'config.json').read_text())['data']
    lines = (pathlib.Path(dev) / 'dev.tsv').read_text().splitlines()[1:]
    pairs = tmp_path / 'pairs.txt'
    pairs.write_text(''.join('\t'.join(line.split('\t')[1:3]) + '\n' for line in lines))
    program.run(*arguments, '--config.run=predict', f'--config.input={pairs}', **GLUE)
    input_rows = rows(tmp_path / 'both' / 'predictions' / 'input' / 'pairs.jsonl')
    assert [row['probabilities']['entailment'] for row in input_rows] == pytest.approx(shares(tmp_path / 'both'))


def test_the_page_of_an_ensemble_shows_its_members(program: Program, browser: Browser, two, tmp_path: pathlib.Path):
    """The page shows the results of run=evaluate, with or without a recipe of the task."""
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    both, member = tmp_path / 'both', results(two[0])
    shutil.copytree(two[0] / 'predictions', both / 'predictions')
    (two[0] / 'report.html').touch()
    facts = {'task': 'RTE', 'score': 'accuracy', 'splits': {'dev': member['splits']['dev']}}
    facts |= {'ensemble': list(map(str, two)), 'alone': {'dev': {str(two[0]): 0.75, str(two[1]): 0.5}}}
    (both / 'results.json').write_text(json.dumps(facts))
    program.run(f'--workdir={both}', '--config.run=report')

    def look(page):
        assert page.title() == 'Ensemble: both' and '2 models together' in page.locator('.about').first.inner_text()
        assert page.locator('h2').all_inner_texts() == ['Overview', 'Figures', 'Members', 'Errors on dev']
        lines = [line.split() for line in page.locator('#members tbody tr').all_inner_texts()]
        assert lines[0] == [str(two[0]), '0.750'] and lines[2][0] == 'together'
        assert page.locator('#members a').get_attribute('href') == '../runs/a/report.html'
        assert page.locator('#errors .shaded').count() == 1

    browser.visit(both / 'report.html', look, width=NARROW)
    for key in ('alone', 'ensemble'):
        (both / 'results.json').write_text(json.dumps(facts | {key: [1]}))
        assert f'results.json: {key}: found [1], expected' in program.error(f'--workdir={both}', '--config.run=report')
        del facts[key]
    (both / 'results.json').write_text(json.dumps(facts))
    line = program.error(f'--workdir={both}', '--config.run=report')
    assert 'a recipe without a task' in line and 'RTE' in line
    data = json.loads((two[0] / 'config.json').read_text())['data']
    program.run(f'--workdir={both}', '--config.run=report', f'--config.init={two[0]}', f'--config.data={data}', **GLUE)
    text = (both / 'report.html').read_text(encoding='utf-8')
    assert '<title>Evaluation: both' in text and 'Confusion' in text


def test_paths_of_members_may_start_with_a_tilde(two, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert member_folders('~/runs/*', tmp_path) == member_folders('~/runs/a,~/runs/b', tmp_path) == list(two)


def test_wrong_members_are_errors(program: Program, two, tmp_path: pathlib.Path):
    one, other = two
    arguments = (f'--workdir={tmp_path / "both"}', '--config.run=evaluate')

    def error(ensemble: str, *changes: str) -> str:
        return program.error(*arguments, f'--config.ensemble={ensemble}', *changes, **GLUE)

    assert 'where there is no folder' in error(f'{one},{tmp_path}/nobody*')
    assert "found ',', expected two or more different workdirs" in error(',')
    assert 'two or more different workdirs' in error(f'{one}') and 'different workdirs' in error(f'{one},{one}/')
    assert 'which has no run' in error(f'{one},{tmp_path}')
    assert 'which is one of config.ensemble' in error(f'{one},{other}', f'--workdir={one}')
    task = json.loads((other / 'task.json').read_text())
    task['learned']['labels'] = ['yes', 'no']
    (other / 'task.json').write_text(json.dumps(task))
    line = error(f'{one},{other}')
    assert f'{other} with the labels yes, no' in line and f'entailment, not_entailment, as in {one}' in line
    config = json.loads((other / 'config.json').read_text())
    (other / 'config.json').write_text(json.dumps({**config, 'task': {**config['task'], 'task': 'qnli'}}))
    assert "config.task.task: found 'rte', expected 'qnli', as in" in error(f'{one},{other}')
    line = program.error(*arguments, f'--config.ensemble={one},{other}', recipe='configs/glue.py', small=False)
    assert f"{other} with task.task='qnli', expected 'rte', as in {one}" in line
    line = program.error(f'--workdir={tmp_path / "run"}', f'--config.ensemble={one},{other}', **GLUE)
    assert 'config.ensemble' in line and 'set --config.run to evaluate or predict' in line


@pytest.mark.slow
def test_members_read_the_same_texts_and_a_dev_split_that_they_have_not_seen(
    program: Program, two, tmp_path: pathlib.Path
):
    (tmp_path / 'train.csv').write_text('text,answer,label\n' + 'a,b,entailment\nb,a,not_entailment\n' * 4)
    arguments = (f'--workdir={tmp_path / "both"}', '--config.run=evaluate', f'--config.ensemble={two[0]},{two[1]}')
    recipe = {'recipe': 'configs/classify.py', 'small': False}

    def set_options(workdir: pathlib.Path, **options) -> None:
        task = to_plain(finetuning_config('classification', **options).task)
        for name, changes in (('config.json', {'data': str(tmp_path), 'task': task}), ('task.json', {'task': task})):
            (workdir / name).write_text(json.dumps(json.loads((workdir / name).read_text()) | changes))

    set_options(two[0], text_b='answer', dev_fraction=0.5)
    set_options(two[1])
    line = program.error(*arguments, **recipe)
    assert f'found {two[1]}, a model for single texts, expected pairs, as in {two[0]}' in line
    set_options(two[1], text_b='answer')
    out = program.run(*arguments, **recipe).stdout
    assert f'warning: {two[1]} may have been trained on records of this dev split' in out
    set_options(two[1], text_b='answer', dev_fraction=0.5)
    assert 'may have been trained' not in program.run(*arguments, **recipe).stdout
