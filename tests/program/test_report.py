"""run=report: the page of any workdir in a browser; the page names missing data."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from browsing import NARROW, Browser
from running import GLUE, Program, copy_workdir, results, rows

from bertjax.pretrain.chance_baselines import read_chance_baselines
from bertjax.text.tokenizer import load_tokenizer

pytest.importorskip('plotly', reason="needs the extra 'report'")
HOSTILE = '</script><script>document.title="taken"</script><img src=x onerror="document.title=1">'


def report(program: Program, workdir: pathlib.Path, **options) -> pathlib.Path:
    path = workdir / 'report.html'
    assert str(path) in program.run(f'--workdir={workdir}', '--config.run=report', **options).stdout
    return path


def titles(page) -> list[str]:
    return page.locator('h2').all_inner_texts()


def test_the_page_of_a_pretraining_shows_its_results(
    program: Program, browser: Browser, trained: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(trained, tmp_path / 'run')
    before = {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()}
    path = report(program, workdir)
    assert {p: p.read_bytes() for p in before} == before
    last = rows(trained / 'metrics.jsonl', 'heldout')[-1]

    def look(page):
        expected = [
            'Overview',
            'Curves',
            'Held-out masks, before and after',
            'Pairs and masks',
            'Corpus',
            'Speed',
            'Config',
        ]
        assert titles(page) == expected and page.title() == 'Pre-training: run'
        tiles = page.locator('.tile').all_inner_texts()
        assert any(
            f'{last["mlm_loss"]:.3f}' in tile and f'{read_chance_baselines(trained).unigram:.3f}' in tile
            for tile in tiles
        )
        assert len(page.locator('.plot .main-svg').all()) > 5
        # The examples come from the store and show as many masked tokens as their labels say.
        assert page.locator('#examples .row').count() == 4
        for row in page.locator('#examples .row').all():
            count = int(re.search(r'(\d+) to predict', row.locator('.label').inner_text())[1])
            assert row.locator('.masked, .random, .unchanged').count() == count
            assert row.locator('.token').first.inner_text() == '[CLS]'
        filled = page.locator('#fillings .tokens small').first.text_content()
        pieces = load_tokenizer(str(trained / 'tokenizer')).pieces
        assert all(line.split()[1] in pieces for line in filled.split('\n'))
        assert 'batch_size' in page.locator('#config').inner_text() and 'Goodput' in page.locator('#speed').inner_text()

    browser.visit(path, look, width=NARROW)


def test_the_page_of_an_incomplete_workdir_names_missing_data(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path
):
    """Text, checkpoints or metrics are missing: the page says so and shows everything else."""
    for name in ('config.json', 'metrics.jsonl'):
        shutil.copy(trained / name, tmp_path / name)
    text = report(program, tmp_path).read_text(encoding='utf-8')
    assert 'The text and its examples are no longer available' in text
    assert 'id="curves"' in text and 'id="examples"' not in text
    assert 'Goodput is not known' in text
    for name in ('store', 'tokenizer'):
        (tmp_path / name).symlink_to(trained / name)
    (tmp_path / 'metrics.jsonl').unlink()
    text = report(program, tmp_path, recipe=GLUE['recipe'], small=False).read_text(encoding='utf-8')  # another recipe
    assert 'There are no rows of metrics' in text and 'id="examples"' in text and 'id="curves"' not in text
    assert 'Not shown: ' in text and 'no finished checkpoint' in text and 'it is for another kind of run' in text
    text = report(program, tmp_path, recipe='configs/extract.py', small=False).read_text(encoding='utf-8')
    assert 'it is for another kind of run' in text  # a recipe that trains nothing
    (tmp_path / 'config.json').write_text('{', encoding='utf-8')
    assert 'config.json: found no JSON' in program.error(f'--workdir={tmp_path}', '--config.run=report')
    assert 'no run and no corpus' in program.error(f'--workdir={tmp_path / "none"}', '--config.run=report')
    assert not (tmp_path / 'none').exists()
    (tmp_path / 'corpus' / 'store').mkdir(parents=True)
    for recipe in ('configs/extract.py', GLUE['recipe']):
        error = program.error(f'--workdir={tmp_path / "corpus"}', '--config.run=report', recipe=recipe, small=False)
        assert 'a recipe without a corpus' in error


@pytest.mark.slow
def test_the_page_of_a_corpus_escapes_html(program: Program, browser: Browser, tmp_path: pathlib.Path):
    folder = tmp_path / '<b>texts'
    folder.mkdir()
    lines = [f'The {word} of <script>document.title = "taken"</script> is & was.' for word in 'abcdefghijklmnop']
    (folder / 'a.txt').write_text('\n\n'.join(lines), encoding='utf-8')
    program.run(f'--workdir={tmp_path}', '--config.run=corpus', f'--config.corpus={folder}', '--config.vocab.size=150')
    path = report(program, tmp_path, recipe='configs/pretrain_tiny.py', small=True)

    def look(page):
        assert page.title() == f'Corpus: {tmp_path.name}'
        assert page.locator('main script:not([type])').count() == 0
        assert '16' in page.locator('#corpus table').first.inner_text()

    browser.visit(path, look)


def test_the_page_of_a_fine_tuning_shows_its_errors(
    program: Program, browser: Browser, tuned: pathlib.Path, rte, tmp_path: pathlib.Path
):
    workdir, data = copy_workdir(tuned, tmp_path / 'run'), copy_workdir(rte, tmp_path / 'data')
    config = json.loads((workdir / 'config.json').read_text())
    (workdir / 'config.json').write_text(json.dumps(config | {'data': str(data)}))
    predictions = rows(workdir / 'predictions' / 'dev.jsonl')
    right = next(i for i, row in enumerate(predictions) if row['true'] == row['label'])
    other = {'entailment': 'not_entailment', 'not_entailment': 'entailment'}[predictions[right]['true']]
    predictions[right] |= {'label': other, 'probabilities': {other: 0.99, predictions[right]['true']: 0.01}}
    text = ''.join(json.dumps(row) + '\n' for row in predictions)
    (workdir / 'predictions' / 'dev.jsonl').write_text(text)
    lines = (data / 'dev.tsv').read_text(encoding='utf-8').splitlines()
    cells = lines[right + 1].split('\t')
    lines[right + 1] = '\t'.join([cells[0], HOSTILE, *cells[2:]])
    (data / 'dev.tsv').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    path = report(program, workdir, **GLUE)

    def look(page):
        assert titles(page) == ['Overview', 'Figures', 'Curves', 'Errors on dev', 'Rows', 'Speed', 'Config']
        score = results(workdir)['splits']['dev']['accuracy']
        assert f'{score:.3f}' in page.locator('#figures tr.marked').inner_text()
        true, label = ([row[key] for row in predictions] for key in ('true', 'label'))
        names = page.locator('#errors .shaded tbody th').all_inner_texts()
        counted = [[sum(pair == (a, b) for pair in zip(true, label, strict=True)) for b in names] for a in names]
        cells = page.locator('#errors .shaded td').all_inner_texts()
        assert np.array(counted).ravel().tolist() == list(map(int, cells))
        worst = page.locator('#errors .error').first.inner_text()  # the error with the highest probability
        assert HOSTILE in worst and f'{other} (0.99)' in worst
        assert page.locator('#errors .error').count() == min(12, sum(a != b for a, b in zip(true, label, strict=True)))
        assert 'entailment' in page.locator('#examples .label').first.inner_text()
        assert 'learning_rate' in page.locator('#config table').first.inner_text()

    browser.visit(path, look, dark=True)
    (workdir / 'config.json').write_text(json.dumps(config | {'data': str(data), 'steps': 144}))  # an extended run
    text = report(program, workdir, **GLUE).read_text(encoding='utf-8')
    assert 'there are no results yet' in text and 'There are no results for dev yet' in text
    evaluated = results(workdir)
    other = evaluated | {'steps': 144, 'splits': {'test': evaluated['splits']['dev']}}  # as of run=evaluate
    (workdir / 'results.json').write_text(json.dumps(other))
    text = report(program, workdir, **GLUE).read_text(encoding='utf-8')
    assert 'there are no results yet' not in text and 'There are no results for dev yet' in text
    (workdir / 'results.json').write_text(json.dumps(evaluated))
    (workdir / 'config.json').write_text(json.dumps(config | {'data': str(data)}))
    shutil.rmtree(data)
    text = report(program, workdir, **GLUE).read_text(encoding='utf-8')
    assert 'Not shown: config.data: ' in text and str(data) in text and 'id="figures"' in text
    facts = json.loads((workdir / 'task.json').read_text()) | {'learned': {'labels': 5}}
    (workdir / 'task.json').write_text(json.dumps(facts))
    assert 'task.json: learned.labels: found 5' in report(program, workdir, **GLUE).read_text(encoding='utf-8')


@pytest.mark.slow
def test_the_page_of_a_sweep_shows_its_trials(
    program: Program, browser: Browser, swept: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(swept, tmp_path / 'run')
    path = report(program, workdir, **GLUE)
    best = json.loads((workdir / 'sweep.json').read_text())['best']

    def look(page):
        assert page.title() == 'Sweep: run' and titles(page)[:2] == ['Sweep', 'Errors on dev']
        assert best in page.locator('.tile').first.inner_text()
        assert page.locator('#sweep table').first.locator('tbody tr').count() == 2
        page.click('#sweep summary')
        assert page.locator('#sweep details tr.marked').inner_text().startswith(best)
        # The chart has four runs as points and two medians on a line; the axis shows the learning rates.
        assert page.locator('#sweep .plot').first.locator('.point').count() >= 4
        ticks = page.locator('#sweep .plot').first.locator('.xtick').all_text_contents()
        assert ticks == ['0.00001', '0.003'] or ticks == ['1e-5', '0.003']

    browser.visit(path, look)
    missing, *damaged = (workdir / 'trials').glob('*/results.json')
    missing.unlink()
    without_dev = json.dumps(json.loads(damaged[0].read_text(encoding='utf-8')) | {'splits': {}})
    for path, text in zip(damaged, ('{', '{}', without_dev), strict=True):
        path.write_text(text, encoding='utf-8')
    assert 'No run of the sweep is finished yet' in report(program, workdir, **GLUE).read_text(encoding='utf-8')


def test_a_trial_of_a_sweep_has_no_page(program: Program, tmp_path: pathlib.Path):
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    trial = tmp_path / 'trials' / 'lr=1'
    trial.mkdir(parents=True)
    assert f'no run and no corpus in {trial}' in program.error(f'--workdir={trial}', '--config.run=report', **GLUE)
    (tmp_path / 'config.json').write_text('{}')
    error = program.error(f'--workdir={trial}', '--config.run=report', **GLUE)
    assert 'a trial of a sweep, expected' in error and f'give --workdir={tmp_path}, or' in error


def test_a_missing_plotly_is_an_error(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'plotly', None)
    message = program.error(f'--workdir={tmp_path}', '--config.run=report')
    assert "pip install 'bertjax[report]'" in message
