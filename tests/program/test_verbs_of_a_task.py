"""What becomes of a fine-tuned model: evaluated, predicted with, exported again."""

import itertools
import json
import pathlib
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator

import pytest
from running import GLUE, Program, copied, results, rows

from bertjax.errors import UserError
from bertjax.tasks.reading.stream import stream_batches
from bertjax.tasks.reading.texts import Blank


def test_evaluate_gives_the_figures_of_the_end(program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """From the workdir, and of the exported model from anywhere; in other batches."""
    ask = ('--config.run=evaluate', '--config.eval_batch_size=5')
    own = copied(tuned, tmp_path / 'own')
    (own / 'results.json').unlink()
    program.run(f'--workdir={own}', *ask, **GLUE)
    assert results(own)['splits'] == results(tuned)['splits']
    data = next(argument for argument in tune if '.data=' in argument)
    other = ('--config.seq_len=24', data, f'--config.init={tuned / "export" / "hf"}')
    program.run(f'--workdir={tmp_path / "other"}', *ask, *other, **GLUE)
    assert results(tmp_path / 'other')['splits'] == results(tuned)['splits']


def test_verbs_keep_what_was_trained(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    own = copied(tuned, tmp_path / 'own')
    ask = (f'--workdir={own}', '--config.run=evaluate')
    line = program.error(*ask, '--config.split=test', **GLUE)
    assert "found 'test', which has no labels, expected train, dev" in line and '--config.run=predict' in line
    line = program.error(*ask, '--config.seq_len=64', **GLUE)
    assert f'config.seq_len: found 64, expected 24, as in {own / "config.json"}' in line
    line = program.error(*ask, recipe='configs/glue.py:mrpc', small=False)
    assert "config.task.task: found 'mrpc', expected 'rte'" in line
    line = program.error(*ask, recipe='configs/ner.py', small=False)
    assert "config.task.kind: found 'tagging', expected 'glue'" in line
    foreign = (f'--workdir={tmp_path / "new"}', '--config.run=evaluate', f'--config.init={tuned / "export" / "hf"}')
    line = program.error(*foreign, recipe='configs/squad.py', small=False)
    assert "config.task.kind: found 'squad', expected 'glue'" in line and 'task.json' in line
    assert results(own) == results(tuned)


def test_predict_writes_what_the_server_takes(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    own = copied(tuned, tmp_path / 'own')
    program.run(f'--workdir={own}', '--config.run=predict', '--config.split=test', **GLUE)
    lines = (own / 'predictions' / 'test' / 'RTE.tsv').read_text(encoding='utf-8').splitlines()
    assert lines[0] == 'index\tprediction' and len(lines) == 21
    assert {line.split('\t')[1] for line in lines[1:]} == {'entailment', 'not_entailment'}
    with zipfile.ZipFile(own / 'predictions' / 'test.zip') as archive:
        assert archive.read('RTE.tsv').decode().splitlines() == lines
    assert len(rows(own / 'predictions' / 'test.jsonl')) == 20


def test_predict_reads_standard_input_and_files(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    own = copied(tuned, tmp_path / 'own')
    (tmp_path / 'dev.txt').write_text('river stone old bird\tthe light\n')
    ask = (f'--workdir={own}', '--config.run=predict')
    program.spawn(*ask, f'--config.input={tmp_path / "dev.txt"}', **GLUE)
    (row,) = rows(own / 'predictions' / 'input' / 'dev.jsonl')
    assert row['label'] == 'entailment'
    assert rows(own / 'predictions' / 'dev.jsonl') == rows(tuned / 'predictions' / 'dev.jsonl')
    # The answer to a line comes while the pipe stays open.
    process = program.start(*ask, '--config.input=-', stdin=subprocess.PIPE, **GLUE)
    process.stdin.write('river stone old bird\tthe light\n')
    process.stdin.flush()
    first = json.loads(process.stdout.readline())
    assert first['label'] == row['label']
    assert first['probabilities'] == pytest.approx(row['probabilities'], abs=1e-6)  # of another padded length
    out, err = process.communicate('falls house wind falls\tthe light\n\nno pair\n', timeout=300)
    assert process.returncode == 2 and 'error: standard input:4: found 0 tabs' in err
    assert len(list((own / 'features').iterdir())) == len(list((tuned / 'features').iterdir()))
    found = [first, *(json.loads(line) for line in out.splitlines())]
    assert [row.get('label') for row in found[:2]] == ['entailment', 'not_entailment']
    assert all(sum(row['probabilities'].values()) == pytest.approx(1) for row in found[:2])
    assert found[2:] == [{'skipped': 'a blank line', 'where': 'standard input:3'}]


def test_a_stream_is_read_a_few_batches_ahead():
    """Its memory is bounded; an error comes behind all that was before it, and blank lines never alone."""
    drawn: list[int] = []

    def endless() -> Iterator[int]:
        for i in itertools.count():
            drawn.append(i)
            yield i

    batches = stream_batches(endless(), 8)
    assert next(batches) == [*range(8)] and next(batches) == [*range(8, 16)]
    time.sleep(0.2)
    assert len(drawn) <= 16 + 4 * 8 + 1

    def broken() -> Iterator[object]:
        yield from [*[Blank('x:1')] * 9, 'a', 'b', Blank('x:11')]
        raise UserError('x:12', 'c', 'a or b', 'correct it')

    batches = stream_batches(broken(), 4)
    assert [next(batches), next(batches)] == [[*[Blank('x:1')] * 9, 'a'], ['b', Blank('x:11')]]
    with pytest.raises(UserError, match='x:12'):
        next(batches)


def test_a_stream_of_blank_lines_is_read_in_one_go():
    """Not looked at again for each of them, which takes a minute for so many."""
    begin = time.monotonic()
    (batch,) = stream_batches(iter([*[Blank('x:1')] * 50_000, 'a']), 64)
    assert len(batch) == 50_001 and time.monotonic() - begin < 10


@pytest.mark.slow
def test_predict_keeps_the_rows_of_its_input(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """The fields of a row stand beside its prediction; a blank line keeps its place among lines."""
    own = copied(tuned, tmp_path / 'own')
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
        program.run(f'--workdir={own}', '--config.run=predict', f'--config.input={tmp_path / name}', **GLUE)
    plain = rows(own / 'predictions' / 'input' / 'lines.jsonl')
    assert [row.get('skipped') for row in plain] == ['a blank line', None, 'a blank line', 'a blank line', None]
    assert plain[0]['where'] == f'{tmp_path}/lines.txt:1'
    echoed = rows(own / 'predictions' / 'input' / 'objects.jsonl')
    assert [(row['id'], row['sentence1'], row['input_label']) for row in echoed] == [
        (row['id'], row['sentence1'], 'mine') for row in objects
    ]
    predicted = [{key: row[key] for key in ('label', 'probabilities')} for row in echoed]
    assert predicted == [plain[1], plain[4]]
    assert rows(own / 'predictions' / 'input' / 'arrow.jsonl') == echoed


@pytest.mark.slow
def test_figures_of_a_part_say_so(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    own = copied(tuned, tmp_path / 'own')
    ask = (f'--workdir={own}', '--config.run=evaluate')
    out = program.run(*ask, '--config.max_eval_records=8', **GLUE).stdout
    assert 'dev: 8 of 33 records, a fixed random sample (config.max_eval_records)' in out
    assert results(own)['parts'] == {'dev': '8 of 33 records'} and '(8 of 33 records)' in out
    assert len(rows(own / 'predictions' / 'dev.jsonl')) == 8
    program.run(*ask, **GLUE)
    assert results(own) == results(tuned)
    assert 'config.max_eval_records' in program.error(*ask, '--config.max_eval_records=-1', **GLUE)


def test_export_anew(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    own = copied(tuned, tmp_path / 'own')
    shutil.rmtree(own / 'export')
    program.run(f'--workdir={own}', '--config.run=export', '--config.card.datasets=nyu-mll/glue', **GLUE)
    card = (own / 'export/hf/README.md').read_text()
    assert 'datasets:\n- nyu-mll/glue\n' in card and 'model-index:' in card and 'type: accuracy' in card
    for name in ('model.safetensors', 'config.json', 'task.json'):
        assert (own / 'export/hf' / name).read_bytes() == (tuned / 'export/hf' / name).read_bytes(), name


def test_verbs_of_a_model_that_is_not_there(program: Program, tune, tmp_path: pathlib.Path, trained: pathlib.Path):
    for verb in ('evaluate', 'predict'):
        assert 'no model' in program.error(f'--workdir={tmp_path}', f'--config.run={verb}', **GLUE)
    line = program.error(f'--workdir={tmp_path}', '--config.run=evaluate', *tune, **GLUE)
    assert 'head/' in line and 'tuned' in line  # a pre-trained model has no head for RTE


def test_baseline_stands_beside_the_model(
    program: Program, tuned: pathlib.Path, rte: pathlib.Path, tmp_path: pathlib.Path
):
    """Of the same records; without a run there is nothing but the data."""
    own = copied(tuned, tmp_path / 'own')
    told = program.run(f'--workdir={own}', '--config.run=baseline', **GLUE).stdout
    found = json.loads((own / 'baseline.json').read_text())
    assert (
        found['train_records'] == 96 and found['splits']['dev']['TF-IDF']['accuracy'] == 1
    )  # the answer is in the words
    assert f'this model          {results(tuned)["splits"]["dev"]["accuracy"]:.3f}' in ' '.join(told.split(' '))
    ask = ('--config.run=baseline', f'--config.data={rte}', '--config.max_train_records=10')
    told = program.run(f'--workdir={tmp_path / "new"}', *ask, **GLUE).stdout
    assert 'learned from 10 records' in told and 'this model' not in told
    line = program.error(f'--workdir={tmp_path / "new"}', *ask, recipe='configs/squad.py', small=False)
    assert 'a task that has simple methods, unlike SQuAD 1.1' in line
