"""A fine-tuned model is evaluated, makes predictions, is exported again and is compared with baselines."""

import itertools
import json
import pathlib
import shutil
import subprocess
import time
import tracemalloc
import types
import zipfile
from collections.abc import Iterator

import pytest
from running import GLUE, RUN, Program, copy_workdir, results, rows

from bertjax.errors import UserError
from bertjax.finetune.results import merge_answers, write_predictions
from bertjax.finetune.task_data import TaskSplit
from bertjax.tasks.reading.stream import stream_batches
from bertjax.tasks.reading.texts import Blank


def test_evaluate_repeats_the_final_metrics(program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """The workdir and the export in another workdir have the same metrics, with another batch size."""
    arguments = ('--config.run=evaluate', '--config.eval_batch_size=5')
    workdir = copy_workdir(tuned, tmp_path / 'own')
    # The results are from before the run was extended.
    (workdir / 'results.json').write_text(json.dumps(results(tuned) | {'steps': 1, 'stopped_at': 1}))
    program.run(f'--workdir={workdir}', *arguments, **GLUE)
    own = results(workdir)
    assert own['splits'] == results(tuned)['splits'] and not own.keys() & {'steps', 'stopped_at'}
    data = next(argument for argument in tune if '.data=' in argument)
    other = ('--config.seq_len=24', data, f'--config.init={tuned / "export" / "hf"}')
    program.run(f'--workdir={tmp_path / "other"}', *arguments, *other, **GLUE)
    assert results(tmp_path / 'other')['splits'] == results(tuned)['splits']
    # The figures and predictions for other data are kept apart from those of the run.
    predicted = rows(workdir / 'predictions' / 'dev.jsonl')
    more = pathlib.Path(shutil.copytree(data.partition('=')[2], tmp_path / 'more'))
    (more / 'dev.tsv').write_text(''.join((more / 'dev.tsv').read_text().splitlines(keepends=True)[:3]))
    program.run(f'--workdir={workdir}', *arguments, f'--config.data={more}', **GLUE)
    there = results(workdir)
    other_dev = there.pop('other_data')[str(more.resolve())]['splits']['dev']
    assert list(other_dev) == list(own['splits']['dev']) and there == own
    others = workdir / 'predictions' / 'other_data' / 'dev.jsonl'
    assert rows(workdir / 'predictions' / 'dev.jsonl') == predicted and len(rows(others)) == 2 < len(predicted)
    others.unlink()
    program.run(f'--workdir={workdir}', '--config.run=predict', '--config.split=dev', f'--config.data={more}', **GLUE)
    assert rows(workdir / 'predictions' / 'dev.jsonl') == predicted and len(rows(others)) == 2


def test_verbs_refuse_settings_of_another_run(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(tuned, tmp_path / 'own')
    arguments = (f'--workdir={workdir}', '--config.run=evaluate')
    line = program.error(*arguments, '--config.split=test', **GLUE)
    assert "found 'test', which has no labels, expected train, dev" in line and '--config.run=predict' in line
    line = program.error(*arguments, '--config.seq_len=64', **GLUE)
    assert f'config.seq_len: found 64, expected 24, as in {workdir / "config.json"}' in line
    line = program.error(*arguments, recipe='configs/glue.py:mrpc', small=False)
    assert "config.task.task: found 'mrpc', expected 'rte'" in line
    line = program.error(*arguments, recipe='configs/ner.py', small=False)
    assert "config.task.kind: found 'tagging', expected 'glue'" in line
    foreign = (f'--workdir={tmp_path / "new"}', '--config.run=evaluate', f'--config.init={tuned / "export" / "hf"}')
    line = program.error(*foreign, recipe='configs/squad.py', small=False)
    assert "config.task.kind: found 'squad', expected 'glue'" in line and 'task.json' in line
    assert 'a recipe without a task' in program.error(f'--workdir={workdir}', '--config.run=export')
    assert results(workdir) == results(tuned)


def test_predict_writes_files_for_the_glue_server(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(tuned, tmp_path / 'own')
    program.run(f'--workdir={workdir}', '--config.run=predict', '--config.split=test', **GLUE)
    lines = (workdir / 'predictions' / 'test' / 'RTE.tsv').read_text(encoding='utf-8').splitlines()
    assert lines[0] == 'index\tprediction' and len(lines) == 21
    assert {line.split('\t')[1] for line in lines[1:]} == {'entailment', 'not_entailment'}
    with zipfile.ZipFile(workdir / 'predictions' / 'test.zip') as archive:
        assert archive.read('RTE.tsv').decode().splitlines() == lines
    assert len(rows(workdir / 'predictions' / 'test.jsonl')) == 20


def test_predict_reads_standard_input_and_files(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(tuned, tmp_path / 'own')
    (tmp_path / 'dev.txt').write_text('river stone old bird\tthe light\n')
    arguments = (f'--workdir={workdir}', '--config.run=predict')
    program.run(*arguments, f'--config.input={tmp_path / "dev.txt"}', **GLUE)
    (row,) = rows(workdir / 'predictions' / 'input' / 'dev.jsonl')
    assert row['label'] == 'entailment'
    assert rows(workdir / 'predictions' / 'dev.jsonl') == rows(tuned / 'predictions' / 'dev.jsonl')
    (tmp_path / 'dev.tsv').write_text('sentence1\tsentence2\na\tb\n')
    line = program.error(*arguments, f'--config.input={tmp_path / "dev.tsv"}', **GLUE)
    assert f'dev.json: found results of {tmp_path / "dev.txt"}, expected no results, or results of' in line
    # The answer to a line arrives while the pipe is open.
    process = program.start(*arguments, '--config.input=-', stdin=subprocess.PIPE, **GLUE)
    process.stdin.write('river stone old bird\tthe light\n')
    process.stdin.flush()
    first = json.loads(process.stdout.readline())
    assert first['label'] == row['label']
    assert first['probabilities'] == pytest.approx(row['probabilities'], abs=1e-6)  # another padded length
    out, err = process.communicate('falls house wind falls\tthe light\n\nno pair\n', timeout=300)
    assert process.returncode == 2 and 'error: standard input:4: found 0 tabs' in err
    assert len(list((workdir / 'features').iterdir())) == len(list((tuned / 'features').iterdir()))
    baseline = [first, *(json.loads(line) for line in out.splitlines())]
    assert [row.get('label') for row in baseline[:2]] == ['entailment', 'not_entailment']
    assert all(sum(row['probabilities'].values()) == pytest.approx(1) for row in baseline[:2])
    assert baseline[2:] == [{'skipped': 'a blank line', 'where': 'standard input:3'}]


def test_a_stream_is_read_a_few_batches_ahead():
    """Memory is bounded; an error comes after all earlier batches; only the last batch may be all blank."""
    read: list[int] = []

    def endless() -> Iterator[int]:
        for i in itertools.count():
            read.append(i)
            yield i

    batches = stream_batches(endless(), 8)
    assert next(batches) == [*range(8)] and next(batches) == [*range(8, 16)]
    time.sleep(0.2)
    assert len(read) <= 16 + 4 * 8 + 1

    def broken() -> Iterator[object]:
        yield from [*[Blank('x:1')] * 9, 'a', 'b', Blank('x:11')]
        raise UserError('x:12', 'c', 'a or b', 'correct it')

    batches = stream_batches(broken(), 4)
    assert [next(batches), next(batches)] == [[*[Blank('x:1')] * 9, 'a'], ['b', Blank('x:11')]]
    with pytest.raises(UserError, match='x:12'):
        next(batches)
    assert [*stream_batches(iter(['a', *[Blank('x:2')] * 2]), 1)] == [['a'], [Blank('x:2')] * 2]


def test_many_blank_lines_take_linear_time():
    """Quadratic time would be a minute for this stream."""
    start = time.monotonic()
    (batch,) = stream_batches(iter([*[Blank('x:1')] * 50_000, 'a']), 64)
    assert len(batch) == 50_001 and time.monotonic() - start < 10


def test_the_rows_of_predictions_are_not_all_in_memory(tmp_path: pathlib.Path):
    rows = lambda records, _: ({'label': str(record) * 1000} for record in records)  # noqa: E731
    task = types.SimpleNamespace(rows=rows)
    tracemalloc.start()
    (path,) = write_predictions(tmp_path, task, 'dev', TaskSplit([7] * 3000, None, population=9000), ())
    assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 4
    tracemalloc.stop()


@pytest.mark.slow
def test_predict_keeps_the_rows_of_its_input(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """A prediction has the fields of its row, and a blank line keeps its place."""
    workdir = copy_workdir(tuned, tmp_path / 'own')
    lines = ['', 'river stone old bird\tthe light', '', '', 'falls house wind falls\tthe light', '']
    (tmp_path / 'lines.txt').write_text('\n'.join(lines))
    pairs = [line.split('\t') for line in lines if line]
    objects = [{'id': i, 'sentence1': a, 'sentence2': b, 'label': 'mine'} for i, (a, b) in enumerate(pairs)]
    (tmp_path / 'objects.jsonl').write_text('\n\n'.join(map(json.dumps, objects)) + '\n')
    pyarrow = pytest.importorskip('pyarrow', reason='writes a Parquet file')
    pytest.importorskip('pyarrow.parquet', reason='writes a Parquet file').write_table(
        pyarrow.Table.from_pylist(objects), tmp_path / 'arrow.parquet'
    )
    for name in ('lines.txt', 'objects.jsonl', 'arrow.parquet'):
        program.run(f'--workdir={workdir}', '--config.run=predict', f'--config.input={tmp_path / name}', **GLUE)
    plain = rows(workdir / 'predictions' / 'input' / 'lines.jsonl')
    assert [row.get('skipped') for row in plain] == ['a blank line', None, 'a blank line', 'a blank line', None]
    assert plain[0]['where'] == f'{tmp_path}/lines.txt:1'
    echoed = rows(workdir / 'predictions' / 'input' / 'objects.jsonl')
    assert [(row['id'], row['sentence1'], row['input_label']) for row in echoed] == [
        (row['id'], row['sentence1'], 'mine') for row in objects
    ]
    predicted = [{key: row[key] for key in ('label', 'probabilities')} for row in echoed]
    assert predicted == [plain[1], plain[4]]
    # Whether a given label is right has no effect on the keys of a row; an echoed field occurs once.
    given = types.SimpleNamespace(fields={'words': ['a'], 'tags': ['X']})
    assert [*merge_answers([given], [given.fields])] == [{'input_tags': ['X'], 'words': ['a'], 'tags': ['X']}]
    assert rows(workdir / 'predictions' / 'input' / 'arrow.jsonl') == echoed


@pytest.mark.slow
def test_metrics_of_a_sample_are_marked(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(tuned, tmp_path / 'own')
    arguments = (f'--workdir={workdir}', '--config.run=evaluate')
    out = program.run(*arguments, '--config.max_eval_records=8', **GLUE).stdout
    assert 'dev: 8 of 33 records, a fixed random sample (config.max_eval_records)' in out
    assert results(workdir)['parts'] == {'dev': '8 of 33 records'} and '(8 of 33 records)' in out
    assert len(rows(workdir / 'predictions' / 'dev.jsonl')) == 8
    program.run(*arguments, **GLUE)
    assert results(workdir) == results(tuned)
    assert 'config.max_eval_records' in program.error(*arguments, '--config.max_eval_records=-1', **GLUE)


def test_export_repeats_the_files(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    workdir = copy_workdir(tuned, tmp_path / 'own')
    shutil.rmtree(workdir / 'export')
    program.run(f'--workdir={workdir}', '--config.run=export', '--config.card.datasets=nyu-mll/glue', **GLUE)
    card = (workdir / 'export/hf/README.md').read_text()
    assert 'datasets:\n- nyu-mll/glue\n' in card and 'model-index:' in card and 'type: accuracy' in card
    for name in ('model.safetensors', 'config.json', 'task.json'):
        assert (workdir / 'export/hf' / name).read_bytes() == (tuned / 'export/hf' / name).read_bytes(), name


def test_verbs_without_a_model_are_errors(program: Program, tune, tmp_path: pathlib.Path, trained: pathlib.Path):
    for verb in ('evaluate', 'predict'):
        assert 'no model' in program.error(f'--workdir={tmp_path}', f'--config.run={verb}', **GLUE)
    line = program.error(f'--workdir={tmp_path}', '--config.run=evaluate', *tune, **GLUE)
    assert 'head/' in line and 'tuned' in line  # a pre-trained model has no head for RTE


def test_a_workdir_with_a_run_of_another_kind_is_refused(
    program: Program, tune, tuned, trained, tmp_path: pathlib.Path
):
    """It is refused before any file of the workdir is written."""
    workdir = copy_workdir(trained, tmp_path / 'run')
    assert 'which has a pre-training' in program.error(*tune, f'--workdir={workdir}', **GLUE)
    assert (workdir / 'config.json').read_bytes() == (trained / 'config.json').read_bytes()
    assert not (workdir / 'features').exists()
    workdir = copy_workdir(tuned, tmp_path / 'tuned')
    before = {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()}
    tokenizer = f'--config.tokenizer={workdir / "tokenizer"}'
    for command in ((), (tokenizer,)):
        assert 'which has a fine-tuning' in program.error(f'--workdir={workdir}', *RUN, *command)
    benchmark = '--config.run=benchmark'
    assert 'another folder for a benchmark' in program.error(*tune, f'--workdir={workdir}', benchmark, **GLUE)
    distil = {'recipe': 'configs/distilbert.py', 'small': False}
    distilled = program.error(f'--workdir={workdir}', f'--config.distill.teacher={trained}', **distil)
    assert 'which has a fine-tuning, expected another folder for a pre-training' in distilled
    assert before == {path: path.read_bytes() for path in workdir.rglob('*') if path.is_file()}
    (workdir / 'config.json').unlink()  # the checkpoint has a copy
    assert 'which has a fine-tuning' in program.error(f'--workdir={workdir}', *RUN, tokenizer)
    (tmp_path / 'benchmark').mkdir()
    (tmp_path / 'benchmark' / 'benchmark.json').write_text('{}')
    line = program.error(*tune, f'--workdir={tmp_path / "benchmark"}', **GLUE)
    assert 'which has a benchmark, expected another folder for a fine-tuning' in line


def test_baselines_are_compared_with_the_model(
    program: Program, tuned: pathlib.Path, rte: pathlib.Path, tmp_path: pathlib.Path
):
    """Both use the same records; without a run, only the baselines are shown."""
    workdir = copy_workdir(tuned, tmp_path / 'own')
    out = program.run(f'--workdir={workdir}', '--config.run=baseline', **GLUE).stdout
    baseline = json.loads((workdir / 'baseline.json').read_text())
    # The label follows from the words.
    assert baseline['train_records'] == 96 and baseline['splits']['dev']['TF-IDF']['accuracy'] == 1
    assert f'this model          {results(tuned)["splits"]["dev"]["accuracy"]:.3f}' in ' '.join(out.split(' '))
    other = shutil.copytree(rte, tmp_path / 'other')  # the model was not evaluated on these data
    out = program.run(f'--workdir={workdir}', '--config.run=baseline', f'--config.data={other}', **GLUE).stdout
    assert 'TF-IDF' in out and 'this model' not in out
    arguments = ('--config.run=baseline', f'--config.data={rte}', '--config.max_train_records=10')
    out = program.run(f'--workdir={tmp_path / "new"}', *arguments, **GLUE).stdout
    assert 'learned from 10 records' in out and 'this model' not in out
    line = program.error(f'--workdir={tmp_path / "new"}', *arguments, recipe='configs/squad.py', small=False)
    assert 'a task that has simple methods, unlike SQuAD 1.1; choose a task of classification' in line


@pytest.mark.slow
def test_a_model_of_transformers_is_used_without_its_training_data(program: Program, tuned, tmp_path: pathlib.Path):
    """Such a model has no task.json. Its labels are in config.json; the labels of the data may be too few."""
    model, workdir = copy_workdir(tuned / 'export' / 'hf', tmp_path / 'model'), tmp_path / 'run'
    (model / 'task.json').unlink()
    (tmp_path / 'input.txt').write_text('river stone old bird\tthe light\n')
    recipe = {'recipe': 'configs/classify.py', 'small': False}
    arguments = (f'--workdir={workdir}', f'--config.init={model}', '--config.seq_len=24')
    pairs = ('--config.task.text_a=sentence1', '--config.task.text_b=sentence2')
    program.run(*arguments, *pairs, '--config.run=predict', f'--config.input={tmp_path}/input.txt', **recipe)
    (row,) = rows(workdir / 'predictions' / 'input' / 'input.jsonl')
    assert row['label'] == 'entailment' and list(row['probabilities']) == ['entailment', 'not_entailment']
    (tmp_path / 'dev.csv').write_text('text,label\na,0\nb,1\nc,2\n')
    evaluate = (*arguments, '--config.run=evaluate', f'--config.data={tmp_path}/dev.csv', '--config.task.dev=dev.csv')
    fix = 'list the labels of all its outputs in config.task.labels, in their order'
    line = program.error(*evaluate, **recipe)
    assert 'the outputs of its head are entailment, not_entailment, not 0, 1, 2' in line and fix in line
    config = json.loads((model / 'config.json').read_text())
    config['id2label'] = {'0': 'LABEL_0', '1': 'LABEL_1'}
    (model / 'config.json').write_text(json.dumps(config | {'label2id': {'LABEL_0': 0, 'LABEL_1': 1}}))
    line = program.error(*evaluate, **recipe)
    assert 'its head has 2 outputs, not 3' in line and fix in line
