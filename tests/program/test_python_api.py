"""`bertjax.train` and `bertjax.run` do the same in Python as the program does on the command line."""

import ast
import contextlib
import csv
import datetime
import json
import os
import pathlib
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import jax
import numpy as np
import pytest
from running import GLUE, NO_SAVES, ONE_LENGTH, PRETRAIN, RUN12, SMALL, SWEEP, TUNE, rows

import bertjax
from bertjax.config.recipes import phase
from bertjax.program import FinishedRun, _QuietOutput, _with_output
from bertjax.training.caller import CALLER, Caller
from bertjax.training.health.interrupt import Interrupt
from bertjax.workdir.rows import write_rows

# The keys of a row with measured times or memory.
MACHINE = re.compile('per_s|second|wait|memory|bytes|mfu')
SHORT = (*TUNE, ONE_LENGTH, '--config.epochs=2', '--config.eval_every=6')


def keys(*flags: str) -> dict:
    """Converts flags of the command line to arguments in Python."""
    pairs = [flag.removeprefix('--config.').split('=', 1) for flag in flags]
    return {key: _value(text) for key, text in pairs}


def _value(text: str):
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


@pytest.fixture
def program_environment(repository: pathlib.Path) -> Iterator[None]:
    """The environment of `program.run`: one device, and the repository as the working directory."""
    with contextlib.chdir(repository), mock.patch.object(jax, 'devices', lambda: jax.local_devices()[:1]):
        yield


def small(corpus: pathlib.Path, *flags: str) -> bertjax.Recipe:
    return bertjax.recipe(PRETRAIN, corpus=corpus, **keys(*SMALL, *RUN12, NO_SAVES, *flags))


def assert_same_run(one: pathlib.Path, other: pathlib.Path, split: str | None = None):
    for name in ('ledger.jsonl', 'export/hf/model.safetensors', 'export/hf/config.json'):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    first, second = (
        [{key: x for key, x in row.items() if not MACHINE.search(key)} for row in rows(path / 'metrics.jsonl', split)]
        for path in (one, other)
    )
    assert first == second


@pytest.mark.slow
def test_a_pretraining_equals_that_of_the_command_line(
    short_run, corpus, tmp_path, program_environment, capsys, monkeypatch
):
    seen: list[dict] = []

    def show(row: dict) -> None:
        seen.append(row)
        print(row['step'])

    with monkeypatch.context() as patch:  # on a terminal, there are no bars
        patch.setattr(sys.stdout, 'isatty', lambda: True, raising=False)
        run = bertjax.train(small(corpus), tmp_path / 'run', on_row=show, quiet=True)
    assert_same_run(short_run, run.workdir)
    assert (short_run / 'config.json').read_bytes() == (tmp_path / 'run' / 'config.json').read_bytes()
    assert capsys.readouterr().out.split() == [str(row['step']) for row in seen]
    assert seen == run.metrics() == rows(tmp_path / 'run' / 'metrics.jsonl')
    assert [row['step'] for row in run.metrics('heldout')] == [0, 8, 12]
    assert run.summary == json.loads((tmp_path / 'run' / 'summary.json').read_text())
    assert run.model.encode('the river runs').shape == (32,) and run.model is run.model


@pytest.mark.slow
def test_ctrl_c_saves_and_the_same_call_continues_in_a_thread(short_run, corpus, tmp_path, program_environment):
    """Python allows signal handlers only in the main thread; other threads train without one."""

    def press(row: dict) -> None:
        if row['step'] == 8 and row['split'] == 'heldout':
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(bertjax.PreemptedError, match='the same call continues'):
        bertjax.train(small(corpus), tmp_path, on_row=press, quiet=True)
    assert signal.getsignal(signal.SIGINT) is before
    done: list[bertjax.FinishedRun] = []
    seen: list[dict] = []

    def fail(row: dict) -> None:
        seen.append(row)
        raise ValueError(row)

    thread = threading.Thread(
        target=lambda: done.append(bertjax.train(small(corpus), tmp_path, quiet=True, on_row=fail))
    )
    thread.start()
    thread.join()
    assert len(seen) == 1  # a failing function is not called again, and training continues
    # The training rows differ because their means start again after a resume.
    assert_same_run(short_run, done[0].workdir, 'heldout')
    first, second = [row for row in rows(tmp_path / 'time.jsonl', None) if 'began' in row]
    assert second['began'] > first['began']  # the time starts with the call, not with the process


def test_output_returns_after_the_last_of_several_quiet_calls(capsys):
    first, second = _QuietOutput(), _QuietOutput()
    first.__enter__()
    second.__enter__()
    first.__exit__()
    print('hidden')
    _with_output(lambda row: print(row['step']))({'step': 7})
    second.__exit__()
    print('visible')
    assert capsys.readouterr().out == '7\nvisible\n'


def test_a_corpus_may_be_a_list_of_texts(corpus, tmp_path, program_environment):
    """Texts give the same store as JSON lines; the same texts are written only once."""
    texts = [' '.join(text.split('\n')) for text in corpus.read_text(encoding='utf-8').split('\n\n')]
    path = tmp_path / 'texts.jsonl'
    path.write_text(''.join(json.dumps({'text': text}) + '\n' for text in texts))
    request = small(corpus)
    bertjax.run('corpus', request, tmp_path / 'files', corpus=path)
    run = bertjax.run('corpus', request, tmp_path / 'rows', corpus=iter(texts))
    bertjax.run('corpus', request, tmp_path / 'rows', corpus=texts)
    stores = [(tmp_path / name / 'store' / 'train-00000.tokens').read_bytes() for name in ('files', 'rows')]
    assert stores[0] == stores[1] and len(list((run.workdir / 'rows').iterdir())) == 1
    bertjax.run('corpus', request, tmp_path / 'rows', corpus=texts[1:])
    assert len(list((run.workdir / 'rows').iterdir())) == 2


def table(rte: pathlib.Path, split: str) -> list[dict]:
    with (rte / f'{split}.tsv').open(encoding='utf-8') as file:
        return list(csv.DictReader(file, delimiter='\t', quoting=csv.QUOTE_NONE))


@pytest.mark.slow
def test_a_task_on_rows_equals_the_same_task_on_files(program, trained, rte, tmp_path, program_environment):
    command_line_run = tmp_path / 'typed'
    flags = (*SHORT, f'--config.init={trained}')
    program.run(f'--workdir={command_line_run}', *flags, f'--config.data={rte}', **GLUE)
    request = bertjax.recipe('glue:rte', **keys(*flags))
    data = {split: table(rte, split) for split in ('train', 'dev', 'test')}
    run = bertjax.train(request, tmp_path / 'rows', data=data, quiet=True)
    assert_same_run(command_line_run, run.workdir)
    results = json.loads((command_line_run / 'results.json').read_text())
    assert run.summary['splits'] == results['splits'] and [row['step'] for row in run.metrics('dev')][-1] == 12
    assert run.model.task.labels == ['entailment', 'not_entailment']
    # Other verbs find the rows through the recorded config.
    evaluated = bertjax.run('evaluate', request, run.workdir, quiet=True, use_checkpoint='last')
    assert evaluated.summary['splits'] == results['splits']
    bertjax.run('predict', request, run.workdir, quiet=True, split='test')
    assert len(rows(run.workdir / 'predictions' / 'test.jsonl', None)) == len(data['test'])
    with pytest.raises(bertjax.UserError, match=r'fingerprint|data'):  # as if a file had changed
        bertjax.train(request, run.workdir, data={**data, 'train': data['train'][:-1]}, quiet=True)


@pytest.mark.slow
def test_rows_of_a_sweep_name_their_trial(tune, tmp_path, program_environment):
    request = bertjax.recipe('glue:rte', **keys(*tune, *SWEEP, '--config.epochs=1', '--config.eval_every=0'))
    seen: list[dict] = []
    run = bertjax.train(request, tmp_path, on_row=seen.append, quiet=True)
    trials = sorted(path.name for path in (tmp_path / 'trials').iterdir())
    assert len(trials) == 4 and {row['trial'] for row in seen} == {*trials}
    assert sorted(map(str, run.metrics())) == sorted(map(str, seen))
    assert run.summary['best'] in trials and run.model.task is not None


RECORDS = [{'text': 'a', 'label': 'no', 'x': 0.1}, {'text': None, 'label': 'yes', 'x': 2.5}]


def write_training_rows(folder: pathlib.Path, data: object) -> bytes:
    recipe = write_rows(bertjax.recipe('classify', data=data), folder)
    assert not recipe.rows and recipe.config.data.startswith(str(folder / 'rows'))
    return (pathlib.Path(recipe.config.data) / 'train.jsonl').read_bytes()


def test_a_sweep_in_a_bucket_has_the_rows_of_its_trials(bucket):
    bucket.put({f'out/trials/{name}/metrics.jsonl': b'{"split": "dev", "step": 1}\n' for name in ('a', 'b')})
    run = FinishedRun(bertjax.recipe('glue:rte'), 's3://bucket/out')
    assert run.metrics('dev') == [{'split': 'dev', 'step': 1, 'trial': name} for name in ('a', 'b')]
    assert FinishedRun(run.recipe, 's3://bucket/other').metrics() == []


def test_rows_become_a_file(tmp_path):
    written = write_training_rows(tmp_path / 'list', RECORDS)
    assert [json.loads(line) for line in written.splitlines()] == RECORDS
    assert write_training_rows(tmp_path / 'generator', {'train': (row for row in RECORDS)}) == written


@pytest.mark.slow  # needs packages that the default suite lacks
def test_rows_of_pandas_and_datasets_give_the_same_file(tmp_path):
    """Missing values become null, and class labels become their names."""
    written = write_training_rows(tmp_path / 'list', RECORDS)
    pd = pytest.importorskip('pandas', reason="needs pandas of the extra 'test-all'")
    frame = pd.DataFrame(RECORDS).astype({'x': 'float32'})
    assert write_training_rows(tmp_path / 'frame', frame) == written
    arrow = frame.assign(x=frame.x.astype('float[pyarrow]'))
    assert write_training_rows(tmp_path / 'frame', arrow) == written
    columns = {'n': pd.array([3, None], 'Int64'), 'm': pd.array([7, None], 'int64[pyarrow]'), 'p': [[1, 2], None]}
    columns['d'] = pd.array([datetime.timedelta(seconds=5), None], 'duration[us][pyarrow]')
    numbers = write_training_rows(tmp_path / 'numbers', frame.assign(**columns))
    assert '"n": 3, "m": 7, "p": [1, 2], "d": "0:00:05"}' in str(numbers)
    assert '"n": null, "m": null, "p": null, "d": null}' in str(numbers)
    with pytest.raises(bertjax.UserError, match="train: found two columns 'text'"):
        write_training_rows(tmp_path / 'columns', frame.rename(columns={'x': 'text'}))
    datasets = pytest.importorskip('datasets', reason='needs the package datasets, which is large')
    features = {'text': datasets.Value('string'), 'label': datasets.ClassLabel(names=['no', 'yes'])}
    features |= {'x': datasets.Value('float32')}
    dataset = datasets.Dataset.from_list(
        [{**row, 'label': ('no', 'yes').index(row['label'])} for row in (RECORDS[1], RECORDS[0])],
        features=datasets.Features(features),
    )
    assert write_training_rows(tmp_path / 'dataset', datasets.DatasetDict(train=dataset.select([1, 0]))) == written


def test_keys_work_as_on_the_command_line(tmp_path, capsys):
    recipe = bertjax.recipe('glue:rte', learning_rate=1, **{'optimizer.b2': 0.98, 'sweep.seeds': [1, 2]})
    assert recipe.config.task.task == 'rte' and recipe.config.optimizer.b2 == 0.98
    assert recipe.config.learning_rate == 1.0 and recipe.config.sweep.seeds == (1, 2)
    assert recipe.flag_keys == {'learning_rate', 'optimizer.b2', 'sweep.seeds'}
    assert recipe.command_line_keys == {*recipe.flag_keys, 'task.task'}
    assert "'glue:rte', learning_rate=1.0, optimizer.b2=0.98" in repr(recipe)
    recipe.config.batch_size = 7  # also counts as set
    assert bertjax.run('show', recipe, quiet=True).recipe.flag_keys >= {'batch_size', 'learning_rate'}
    assert capsys.readouterr().out == ''
    bertjax.run('show', bertjax.recipe('pretrain_large', **{'phases[1].steps': '20%'}))
    assert 'phases[1].steps' in capsys.readouterr().out
    recipe = bertjax.recipe(
        'pretrain_tiny', phases=[{'steps': '90%', 'batch_size': np.int64(8)}, phase(steps='10%', seq_len=32)]
    )
    assert [(entry.steps, entry.seq_len) for entry in recipe.config.phases] == [('90%', 0), ('10%', 32)]


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda _: bertjax.recipe('glu:rte'), 'did you mean glue'),
        (lambda _: bertjax.recipe('glue:rte', learningrate=1), 'did you mean --config.learning_rate'),
        (lambda _: bertjax.recipe('glue:rte', optimizer={'b2': 0.9}), 'a group of keys'),
        (lambda _: bertjax.recipe('glue:rte', learning_rate='fast'), "config.learning_rate: found 'fast'"),
        (lambda _: bertjax.recipe('glue:rte', **{'optimizer.b2': 2}), 'config.optimizer.b2: found 2'),
        (lambda _: bertjax.recipe('pretrain_tiny', phases=[3]), r'config.phases: found \(3,\)'),
        (lambda _: bertjax.recipe('pretrain_tiny', phases=[{'stepps': 3}]), r'config.phases\[0\].stepps'),
        (lambda _: bertjax.recipe('pretrain_tiny', phases=[{1: 3}]), 'config.phases: found'),
        (lambda _: bertjax.train('pretrain_tiny', '.', step=3), "config.step: found 3 with config.run='pretrain'"),
        (lambda _: bertjax.recipe(3), 'the name or the path of a recipe'),
        (lambda _: bertjax.run('trian', 'glue:rte', '.'), 'config.run'),
        (lambda _: bertjax.run('pretrain', 'glue:rte', '.'), 'a recipe without config.corpus'),
        (lambda _: bertjax.train('extract', '.'), 'trains nothing'),
        (lambda _: bertjax.train('pretrain_tiny', None), '--workdir: found nothing'),
        (lambda _: bertjax.train('pretrain_tiny', 3), 'workdir: found 3'),
        (lambda _: bertjax.train('pretrain_tiny', __file__), 'which is a file'),
        (lambda _: bertjax.train('pretrain_tiny', '.', on_row=3), 'on_row: found 3'),
        (lambda workdir: bertjax.train('pretrain_tiny', workdir, corpus=['a', 3]), r'corpus\[1\]: found 3'),
        (lambda workdir: bertjax.train('pretrain_tiny', workdir, corpus=[]), 'no row'),
        (lambda workdir: bertjax.train('pretrain_tiny', workdir, corpus=[__file__]), 'the path of a file'),
        (lambda workdir: bertjax.train('pretrain_tiny', workdir, data=['a']), 'config.data: found rows'),
        (lambda workdir: bertjax.train('classify', workdir, data=[{'text': {1}}]), r'found \{1\}, a set'),
        (lambda workdir: bertjax.train('classify', workdir, data=[{'text': float('inf')}]), 'found inf'),
        (lambda workdir: bertjax.train('classify', workdir, data={'train': 'a.csv'}), "train: found 'a.csv', a str"),
        (lambda workdir: bertjax.train('classify', workdir, data={'a/b': []}), 'the name of a split'),
        (lambda workdir: bertjax.train('classify', workdir, data={'dev.jsonl': []}), 'the name of a split'),
        (lambda workdir: bertjax.train('classify', workdir, data={}), 'found no split'),
        (
            lambda workdir: bertjax.train('classify', workdir, data={'trian': []}),
            "found the key 'trian', expected the name",
        ),
        (lambda _: bertjax.run('show', 'glue:rte').summary, 'give a workdir in the call'),
    ],
)
def test_mistakes_are_one_line_errors(call: Callable, message: str, tmp_path):
    with pytest.raises(bertjax.UserError, match=message) as raised:
        call(tmp_path)
    assert '\n' not in str(raised.value) and '.unfinished' not in os.listdir(tmp_path)


def test_a_call_in_one_of_several_processes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv('SLURM_PROCID', '0')
    monkeypatch.setenv('SLURM_STEP_NUM_TASKS', '2')
    with pytest.raises(bertjax.UserError, match='start pretrain from the command line in each process'):
        bertjax.train('pretrain_tiny', tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_third_signal_interrupts_the_call():
    token = CALLER.set(Caller('call', ends_process=False))
    try:
        with pytest.raises(KeyboardInterrupt), Interrupt() as interrupt:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                assert interrupt.requested()
    finally:
        CALLER.reset(token)


def test_every_public_name_can_be_used():
    assert {'train', 'run', 'recipe', *bertjax.__all__} <= {*dir(bertjax)}
    assert all(getattr(bertjax, name) for name in bertjax.__all__)
