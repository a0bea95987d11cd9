"""run=benchmark, all tasks of GLUE in one command: what it refuses, what it writes, and how it continues."""

import json
import pathlib
import shutil
import signal
import zipfile
from unittest import mock

import pytest
from browsing import Browser
from ml_collections import ConfigDict
from running import Program, copy_workdir, results

import bertjax
from bertjax.commands.benchmark import _task_config
from bertjax.config.plain import to_plain
from bertjax.config.recipes import finetuning_config
from bertjax.errors import PreemptedError, UserError
from bertjax.finetune.benchmark import (
    averages,
    is_finished,
    order_tasks,
    parse_task_overrides,
    parse_tasks,
    recipe_of_task,
    record_request,
    record_result,
    write_submission,
    write_summary,
)
from bertjax.finetune.settings import finetuning_settings
from bertjax.finetune.trials import make_trials

ALL = {'recipe': 'configs/glue.py:all', 'small': False}
SHORT = ('--config.steps=1', '--config.seq_len=24', '--config.max_padded_lengths=1', '--config.eval_every=0')


@pytest.fixture(scope='module')
def glue(rte: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with RTE, WNLI with the same rows, and QNLI without training data."""
    folder = tmp_path_factory.mktemp('benchmark') / 'glue'
    for task in ('RTE', 'WNLI', 'QNLI'):
        (folder / task).mkdir(parents=True)
        for split in ('train', 'dev', 'test'):
            lines = (rte / f'{split}.tsv').read_text().replace('not_entailment', '0').replace('entailment', '1')
            text = (rte / f'{split}.tsv').read_text() if task != 'WNLI' else lines
            (folder / task / f'{split}.tsv').write_text(text)
    (folder / 'QNLI' / 'train.tsv').unlink()
    return folder


def test_a_recipe_with_a_teacher_is_refused(program: Program, tmp_path: pathlib.Path):
    distilbert = {'recipe': 'configs/distilbert.py:glue:all', 'small': False}
    error = program.error(f'--workdir={tmp_path}', '--config.run=benchmark', **distilbert)
    assert '--config.run=benchmark: found a recipe with config.distill' in error


@pytest.mark.slow
def test_two_tasks_are_tuned_and_tabulated(
    program: Program, trained: pathlib.Path, glue: pathlib.Path, tmp_path: pathlib.Path
):
    """RTE starts from the model of WNLI; a second call finds both finished."""
    arguments = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.data={glue}', *SHORT)
    arguments += ('--config.benchmark=rte:init=wnli,learning_rate=1e-3',)
    # A task whose export was interrupted is not finished.
    with mock.patch('bertjax.finetune.results.export_task', side_effect=PreemptedError('stopped')):
        program.run(*arguments, status=75, **ALL)
    # A signal after the last step of a task stops the benchmark at the end of the task.
    with mock.patch('bertjax.training.trainer.Recorder.check', lambda *_: signal.raise_signal(signal.SIGTERM)):
        stopped = program.run(*arguments, status=75, **ALL)
    assert 'stopped as asked after WNLI, 1 of 2; the same command continues there' in stopped.stderr
    assert is_finished(tmp_path / 'wnli') and not (tmp_path / 'rte').exists() and 'all 1 steps' in stopped.stdout
    out = program.run(*arguments, **ALL).stdout
    assert (tmp_path / 'wnli' / 'export' / 'hf').exists() and 'WNLI, 1 of 2: finished already' in out
    assert 'no data for 7 of 9 tasks' in out and f'QNLI (no train.tsv in {glue / "QNLI"})' in out
    assert out.index('WNLI, 1 of 2') < out.index('RTE, 2 of 2')
    summary = results(tmp_path)
    scores = [summary['tasks'][task]['splits']['dev']['accuracy'] for task in ('rte', 'wnli')]
    assert summary['averages']['glue'] == pytest.approx(sum(scores) / 2)
    assert summary['averages']['bert_paper'] == summary['averages']['glue_without_wnli'] == scores[0]
    assert summary['missing_data'].keys() == {'cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli'}
    rte = json.loads((tmp_path / 'rte' / 'config.json').read_text())
    assert (rte['learning_rate'], rte['init'], rte['run']) == (1e-3, str(tmp_path / 'wnli'), 'finetune')
    table = (tmp_path / 'table.md').read_text()
    assert f'| RTE | {100 * scores[0]:.1f} | accuracy |' in table and 'GLUE score, ONLY 2 of 9 tasks' in table
    assert '| CoLA | - | no data | - |' in table
    with zipfile.ZipFile(tmp_path / 'submission.zip') as archive:
        assert sorted(archive.namelist()) == ['RTE.tsv', 'WNLI.tsv']
        assert archive.read('RTE.tsv') == (tmp_path / 'rte' / 'predictions' / 'test' / 'RTE.tsv').read_bytes()
    assert 'submission.zip lacks AX.tsv, CoLA.tsv, MNLI-m.tsv, MNLI-mm.tsv, MRPC.tsv' in out

    (tmp_path / 'submission.zip').unlink()
    link = tmp_path.with_name(f'{tmp_path.name}-link')
    link.symlink_to(tmp_path)  # The workdir may have another name.
    again = program.run(f'--workdir={link}', *arguments[1:], **ALL).stdout
    assert again.count('finished already') == 2 and (tmp_path / 'submission.zip').exists() and 'compiled' not in again
    assert results(tmp_path) == summary
    line = program.error(*arguments, '--config.learning_rate=1e-4', **ALL)
    assert 'config.learning_rate: found 0.0001 for wnli, expected 2e-05, as when the task was finished' in line


def test_finished_tasks_are_recorded_with_their_results(tmp_path: pathlib.Path):
    """The result of a sweep is that of its best run; the evaluation of a single checkpoint does not count."""

    def write(name: str, **facts) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts))

    write('cola/results.json', splits={'dev': {'matthews': 0.5, 'accuracy': 0.8}})
    write('rte/sweep.json', best='lr=1', trials=['lr=1'])
    write('rte/trials/lr=1/results.json', splits={'dev': {'accuracy': 0.75}}, parts={'dev': '4 of 9 records'})
    write('wnli/results.json', splits={'dev': {'accuracy': 1.0}}, step=3)
    for split, name in (('test', 'RTE.tsv'), ('old', 'CoLA.tsv')):
        write(f'{name.lower()[:-4]}/predictions/{split}/{name}')
    config = {**to_plain(finetuning_config('glue')), 'steps': 5, 'data': 'glue'}
    configs = dict.fromkeys(('cola', 'rte', 'wnli'), config)
    assert record_request(tmp_path, configs) == {'cola', 'rte'}
    more = {**configs, 'rte': {**config, 'sweep': {**config['sweep'], 'seeds': [1]}, 'log_every': 2}}
    for _ in range(2):  # a kill between two calls changes nothing
        assert record_request(tmp_path, more) == {'cola'}  # the sweep must continue
    record_result(tmp_path, 'rte', more['rte'])
    assert record_request(tmp_path, more) == {'cola', 'rte'}
    with pytest.raises(UserError, match=r'config\.seed: found 1 for cola, expected 0, as when the task was finished'):
        record_request(tmp_path, {'cola': {**config, 'seed': 1}})
    with pytest.raises(UserError, match=r"config\.data: found 'other' for cola, expected 'glue'"):
        record_request(tmp_path, {'cola': {**config, 'data': 'other'}})
    assert record_request(tmp_path, {'cola': {**config, 'data': 'glue/'}}) == {'cola'}
    with pytest.raises(UserError, match=r'config\.steps: found 9 for cola, expected 5'):  # config.step may differ
        record_request(tmp_path, {'cola': {**config, 'step': 3, 'steps': 9}})
    summary, table = write_summary(tmp_path, {'qqp': 'no folder'})
    assert summary['averages']['glue'] == pytest.approx(0.625) and summary['averaged_tasks'] == 2
    assert ['RTE', '75.0', 'accuracy, 4 of 9 records, the best run of a sweep', '75.0'] in table
    assert ['WNLI', '-', 'not run', '-'] in table
    assert ('as in table 1 of the BERT paper, ONLY 2 of 9 columns', '62.5') in averages(summary)
    assert summary['tasks']['rte']['best_of_sweep'] == 'lr=1' and ['QQP', '-', 'no data', '-'] in table
    absent = write_submission(tmp_path, {'rte': ['test'], 'cola': ['test']})
    assert len(absent) == 10 and 'RTE.tsv' not in absent
    with zipfile.ZipFile(tmp_path / 'submission.zip') as archive:
        assert archive.namelist() == ['RTE.tsv']
    write('cola/predictions/test/CoLA.tsv')
    write('wnli/predictions/test/WNLI.tsv')
    write_submission(tmp_path, {'rte': ['test']})  # a call for RTE alone; WNLI is not finished
    with zipfile.ZipFile(tmp_path / 'submission.zip') as archive:
        assert archive.namelist() == ['CoLA.tsv', 'RTE.tsv']


def test_the_page_links_to_the_pages_of_the_tasks(program: Program, browser: Browser, tuned: pathlib.Path, tmp_path):
    """RTE is finished, CoLA is not."""
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    copy_workdir(tuned, tmp_path / 'rte')
    (tmp_path / 'cola').mkdir()
    (tmp_path / 'cola' / 'config.json').write_text('{')
    record_request(tmp_path, {'rte': json.loads((tuned / 'config.json').read_text())})
    line = program.error(f'--workdir={tmp_path}', '--config.run=plot', **ALL)
    assert 'found a benchmark, expected a single training run; use --config.run=report' in line
    printed = program.run(f'--workdir={tmp_path}', '--config.run=report', **ALL).stdout
    assert 'no page about CoLA' in printed and str(tmp_path / 'rte' / 'report.html') in printed
    score = f'{100 * results(tuned)["splits"]["dev"]["accuracy"]:.1f}'

    def look(page):
        assert page.title() == f'Benchmark: {tmp_path.name}'
        assert page.locator('#tasks tbody tr').count() == 9 and page.locator('#tasks a').count() == 1
        assert page.locator('#tasks tr', has_text='RTE').inner_text().split() == ['RTE', score, 'accuracy', score]
        assert '1' in page.locator('.tile').first.inner_text()
        page.click('#tasks a')
        page.wait_for_selector('html[data-ready]')
        return page.title()

    assert browser.visit(tmp_path / 'report.html', look, leaves=True) == 'Fine-tuning: rte'


def test_mistakes_are_reported_before_the_first_task(program: Program, glue: pathlib.Path, tmp_path: pathlib.Path):
    glue = copy_workdir(glue, tmp_path / 'glue')
    arguments = (f'--workdir={tmp_path / "out"}', '--config.init=nothing', f'--config.data={glue}')
    line = program.error(f'--workdir={tmp_path / "out"}', f'--config.data={tmp_path}', **ALL)
    assert "', which lacks the training or dev data of CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI," in line
    assert "'race', expected one of cola" in program.error(*arguments, '--config.task.task=rte,race', **ALL)
    line = program.error(*arguments, '--config.run=benchmark', recipe='configs/ner.py', small=False)
    assert "config.task.kind: found 'tagging', expected 'glue'" in line
    assert 'config.export' in program.error(
        *arguments, '--config.benchmark=rte:seeds=2', '--config.export=False', **ALL
    )
    assert "config.profile: found '8:10', expected ''" in program.error(*arguments, '--config.profile=8:10', **ALL)
    one_task = ('--config.task.task=rte', '--config.profile=8:10')
    assert 'config.profile' not in program.error(*arguments, *one_task, **ALL)
    onnx = ('--config.benchmark=rte:seeds=2', '--config.export_formats=onnx')
    assert 'config.export_formats: found onnx with a sweep' in program.error(*arguments, *onnx, **ALL)
    (glue / 'WNLI' / 'dev.tsv').open('a').write('x\ty\n')
    assert f'{glue / "WNLI" / "dev.tsv"}:35' in program.error(*arguments, **ALL)
    assert not (tmp_path / 'out').exists()


def test_a_changed_benchmark_is_checked_before_anything_is_removed(
    program: Program, trained: pathlib.Path, glue: pathlib.Path, tmp_path: pathlib.Path
):
    """The sweep over WNLI is extended; RTE was trained from its model."""

    def train(config: ConfigDict, workdir: str, recipe: str) -> None:
        """Writes the files of a finished run, or of a finished sweep in which the last run is the best."""
        trials = [trial.name for trial in make_trials(finetuning_settings(config))]
        files = {f'trials/{name}/results.json': '{}' for name in trials} or {'results.json': '{}'}
        if trials:
            files['sweep.json'] = json.dumps({'best': trials[-1], 'trials': trials})
            files['export/trial.txt'] = trials[-1]
        for name, text in {**files, 'predictions/test/WNLI.tsv': ''}.items():
            (pathlib.Path(workdir) / name).parent.mkdir(parents=True, exist_ok=True)
            (pathlib.Path(workdir) / name).write_text(text)

    arguments = (f'--workdir={tmp_path}', f'--config.init={trained}', f'--config.data={glue}', *SHORT)
    with (
        mock.patch('bertjax.commands.finetune.run', train),
        mock.patch('bertjax.commands.benchmark._predict'),
        mock.patch('bertjax.commands.benchmark._finish'),
    ):
        program.run(*arguments, '--config.benchmark=wnli:seeds=2;rte:init=wnli', **ALL)
        out = program.run(*arguments, '--config.benchmark=wnli:seeds=3;rte:init=wnli', **ALL).stdout
        assert f'rte was trained from an earlier model of wnli; move {tmp_path / "rte"} away to train it again' in out
        extended = (*arguments, '--config.benchmark=wnli:seeds=3;rte:init=wnli')
        out = program.run(*extended, **ALL).stdout
        assert out.count('finished already') == 2 and 'earlier model' not in out
        line = program.error(*arguments, '--config.benchmark=rte:init=wnli', **ALL)
        assert f'found {tmp_path / "wnli"}, which has a sweep, expected another folder for a fine-tuning' in line
        line = program.error(*extended, '--config.export_formats=hf', **ALL)
        assert "config.export_formats: found 'hf' for wnli, expected 'hf,orbax', as when the task was finished" in line
        assert (tmp_path / 'wnli' / 'predictions' / 'test' / 'WNLI.tsv').exists()
        (best,) = (tmp_path / 'wnli').glob('trials/*seed=2')
        shutil.rmtree(best)  # so that it is run again
        out = program.run(*extended, **ALL).stdout
        assert 'WNLI, 1 of 2\n' in out and out.count('finished already') == 1 and best.exists()
        single = (f'--workdir={tmp_path / "single"}', *arguments[1:], '--config.benchmark=rte:init=wnli')
        assert 'earlier model' not in program.run(*single, **ALL).stdout
        shutil.rmtree(tmp_path / 'single' / 'wnli')
        assert 'rte was trained from an earlier model of wnli' in program.run(*single, **ALL).stdout


def test_the_recipe_of_a_single_task(tmp_path: pathlib.Path):
    assert recipe_of_task('configs/glue.py:all', 'rte') == 'configs/glue.py:rte'
    (tmp_path / 'all.yaml').write_text('recipe: glue:all\n')
    assert recipe_of_task(str(tmp_path / 'all.yaml'), 'rte') == 'glue:rte'


def test_a_sweep_is_finished_if_each_of_its_trials_has_results(tmp_path: pathlib.Path):
    """Other results, such as those of an evaluation or of trials that the sweep no longer has, do not count."""
    (tmp_path / 'results.json').write_text('{"splits": {}}')
    assert is_finished(tmp_path)
    (tmp_path / 'trials').mkdir()
    assert not is_finished(tmp_path)
    (tmp_path / 'sweep.json').write_text(json.dumps({'best': 'seed=0', 'trials': ['seed=0', 'seed=1']}))
    for name, expected in (('seed=0', False), ('seed=2', False), ('seed=1', True)):
        (tmp_path / 'trials' / name).mkdir()
        (tmp_path / 'trials' / name / 'results.json').touch()
        assert is_finished(tmp_path) == expected


def test_a_value_for_a_task_replaces_the_values_of_a_sweep(tmp_path: pathlib.Path):
    config = bertjax.recipe('glue:all,grid').config
    rte = _task_config(config, 'rte', {'learning_rate': 1e-5, 'epochs': 10.0}, tmp_path)
    assert {trial.learning_rate for trial in make_trials(finetuning_settings(rte))} == {1e-5}
    assert {trial.epochs for trial in make_trials(finetuning_settings(rte))} == {10.0}


def test_the_tracker_runs_of_the_tasks_are_named_after_the_benchmark(tmp_path: pathlib.Path):
    for name, expected in (('', 'big/rte'), ('mine', 'mine/rte')):
        config = bertjax.recipe('glue:all', tracker='trackio', tracker_run=name).config
        assert _task_config(config, 'rte', {}, tmp_path / 'big').tracker_run == expected


def test_settings_for_single_tasks_are_parsed():
    tasks = parse_tasks('RTE,sts-b,mnli')
    assert tasks == ['stsb', 'mnli', 'rte'] and len(parse_tasks('all')) == 9
    overrides = parse_task_overrides(' rte: epochs=10, learning_rate=3e-5; stsb:seeds=3,init=out/x;', tasks)
    assert overrides == {'rte': {'epochs': 10.0, 'learning_rate': 3e-5}, 'stsb': {'seeds': 3, 'init': 'out/x'}}
    assert order_tasks({'stsb': {'init': 'mnli'}}, tasks) == ['mnli', 'stsb', 'rte']
    wrong = {
        'rte': 'TASK:KEY=VALUE',
        'all:epochs=1': 'TASK:KEY=VALUE',
        'rte:epoch=3': 'did you mean epochs',
        'rte:epochs': 'add the value',
        'rte:zzqq=3': 'leave it out',
        'rte:epochs=-1': '0 to',
        'rte:epochs=ten': '0 to',
        'cola:epochs=1': 'a task that is run',
        'rte:epochs=1;rte:epochs=2': 'each task once',
        'rte:epochs=1,epochs=2': 'each key once',
    }
    for text, expected in wrong.items():
        with pytest.raises(UserError, match=expected):
            parse_task_overrides(text, tasks)
    with pytest.raises(UserError, match='a task that is run before: mnli'):
        order_tasks({'stsb': {'init': 'rte'}, 'rte': {'init': 'stsb'}}, tasks)
