"""run=finetune, evaluate and predict, as a user starts them."""

import itertools
import json
import pathlib
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Iterator

import numpy as np
import pytest
from running import GLUE, Program, rows, wait_for_step

from bertjax.errors import UserError
from bertjax.runs.predict import as_they_come
from bertjax.tasks.reading.texts import Blank


def results(workdir: pathlib.Path) -> dict:
    return json.loads((workdir / 'results.json').read_text(encoding='utf-8'))


def copied(workdir: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
    shutil.copytree(workdir, target, dirs_exist_ok=True)
    return target


def test_it_learns_and_says_what_it_did(tuned: pathlib.Path):
    found = results(tuned)
    assert found['score'] == 'accuracy' and found['splits']['dev']['accuracy'] > 0.9 and not found['collapsed']
    out = (tuned / 'stdout.txt').read_text(encoding='utf-8')
    assert '96 training records' in out and '2 padded lengths: ' in out and 'freshly drawn: head/bias' in out
    evaluated = rows(tuned / 'metrics.jsonl', 'dev')
    assert [row['step'] for row in evaluated] == [0, 24, 48, 72]
    assert evaluated[-1]['accuracy'] == found['splits']['dev']['accuracy']
    trained = rows(tuned / 'metrics.jsonl', 'train')
    assert [row['step'] for row in trained] == list(range(12, 73, 12)) and trained[-1]['loss'] < trained[0]['loss'] / 2
    used = [(line['first'], line['count']) for line in rows(tuned / 'ledger.jsonl')]
    assert used == [(16 * i, 16) for i in range(72)]


def test_transformers_gives_the_same_answers(tuned: pathlib.Path, rte: pathlib.Path):
    """From the export alone: the labels by name, and the probabilities that predictions/dev.jsonl has."""
    transformers = pytest.importorskip('transformers', reason='loads what we export')
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    model, info = transformers.BertForSequenceClassification.from_pretrained(
        tuned / 'export' / 'hf', output_loading_info=True
    )
    assert not info['missing_keys'] and not info['unexpected_keys']
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned / 'export' / 'hf')
    table = [line.split('\t') for line in (rte / 'dev.tsv').read_text(encoding='utf-8').splitlines()[1:]]
    said = rows(tuned / 'predictions' / 'dev.jsonl')
    assert len(table) == len(said)
    inputs = tokenizer([r[1] for r in table], [r[2] for r in table], padding=True, return_tensors='pt')
    with torch.no_grad():
        shares = model.eval()(**inputs).logits.softmax(-1).numpy()
    for row, theirs in zip(said, shares, strict=True):
        assert row['label'] == model.config.id2label[int(theirs.argmax())]
        ours = [row['probabilities'][model.config.id2label[i]] for i in range(2)]
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def _first_rows(rte: pathlib.Path, folder: pathlib.Path, count: int) -> pathlib.Path:
    folder.mkdir()
    for name in ('train.tsv', 'dev.tsv'):
        lines = (rte / name).read_text(encoding='utf-8').splitlines(keepends=True)
        (folder / name).write_text(''.join(lines[: 1 + count]), encoding='utf-8')
    return folder


@pytest.mark.slow
def test_torch_trains_to_the_same_weights(program: Program, tune, rte: pathlib.Path, tmp_path: pathlib.Path):
    """Optimiser, schedule, clipping and what decays are those of transformers' Trainer.

    Without dropout, and with all rows in one batch, whose order then does not matter, nothing is left to chance.
    """
    transformers = pytest.importorskip('transformers', reason='has the models and the schedule')
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    steps, rate, data = 20, 1e-3, _first_rows(rte, tmp_path / 'RTE', 16)
    same = (*tune, f'--config.data={data}', '--config.model.dropout=0.0', '--config.model.attention_dropout=0.0')
    same += ('--config.shapes=1', '--config.log_every=1', '--config.eval_every=0', '--config.checkpoint_every=0')
    # Too short a step to change a float: what training starts from.
    runs = {'start': ('--config.steps=1', '--config.learning_rate=1e-30')}
    runs['end'] = (f'--config.steps={steps}', f'--config.learning_rate={rate}')
    for name, changes in runs.items():
        program.run(f'--workdir={tmp_path / name}', *same, *changes, **GLUE)
    start, end = (
        transformers.BertForSequenceClassification.from_pretrained(tmp_path / name / 'export' / 'hf') for name in runs
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'end' / 'export' / 'hf')
    table = [line.split('\t') for line in (data / 'train.tsv').read_text(encoding='utf-8').splitlines()[1:]]
    inputs = tokenizer([r[1] for r in table], [r[2] for r in table], padding=True, return_tensors='pt')
    inputs['labels'] = torch.tensor([start.config.label2id[r[3]] for r in table])
    decayed = transformers.Trainer.get_decay_parameter_names(None, start)
    optimizer = torch.optim.AdamW(
        [
            {'params': [p for n, p in start.named_parameters() if n in decayed], 'weight_decay': 0.01},
            {'params': [p for n, p in start.named_parameters() if n not in decayed], 'weight_decay': 0.0},
        ],
        lr=rate,
        eps=1e-6,
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    losses = []
    for _ in range(steps):
        loss = start.train()(**inputs).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(start.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    ours = [row['loss'] for row in rows(tmp_path / 'end' / 'metrics.jsonl', 'train')]
    np.testing.assert_allclose(ours, losses, rtol=1e-5)
    for (name, theirs), mine in zip(start.named_parameters(), end.parameters(), strict=True):
        np.testing.assert_allclose(mine.detach(), theirs.detach(), rtol=1e-5, atol=1e-6, err_msg=name)


def assert_same_run(a: pathlib.Path, b: pathlib.Path) -> None:
    for name in ('ledger.jsonl', 'export/hf/model.safetensors', 'config.json', 'results.json', 'predictions/dev.jsonl'):
        assert (a / name).read_bytes() == (b / name).read_bytes(), name
    assert rows(a / 'metrics.jsonl', 'dev') == rows(b / 'metrics.jsonl', 'dev')


@pytest.mark.slow
def test_killed_it_continues_to_the_same_bits(program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path):
    for step in (5, 40):
        process = program.start(f'--workdir={tmp_path}', *tune, **GLUE)
        wait_for_step(process, tmp_path, step)
        process.kill()
        process.communicate()
    program.spawn(f'--workdir={tmp_path}', *tune, **GLUE)
    assert_same_run(tmp_path, tuned)


@pytest.mark.slow
def test_asked_to_stop_it_saves(program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path):
    process = program.start(f'--workdir={tmp_path}', *tune, **GLUE)
    wait_for_step(process, tmp_path, 1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75 and 'Traceback' not in err
    assert 'continuing at step' in program.spawn(f'--workdir={tmp_path}', *tune, **GLUE).stdout
    assert_same_run(tmp_path, tuned)


@pytest.mark.slow
def test_steps_that_are_not_finite_stop_it(program: Program, tune, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr('bertjax.main.check_ranges', lambda config: None)  # nothing that is allowed explodes for sure
    changes = ('--config.learning_rate=1e38', '--config.optimizer.clip_norm=0.0')
    result = program.run(f'--workdir={tmp_path}', *tune, *changes, status=3, **GLUE)
    assert 'learning rate' in result.stderr and 'Traceback' not in result.stderr


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

    batches = as_they_come(endless(), 8)
    assert next(batches) == [*range(8)] and next(batches) == [*range(8, 16)]
    time.sleep(0.2)
    assert len(drawn) <= 16 + 4 * 8 + 1

    def broken() -> Iterator[object]:
        yield from [*[Blank('x:1')] * 9, 'a', 'b', Blank('x:11')]
        raise UserError('x:12', 'c', 'a or b', 'correct it')

    batches = as_they_come(broken(), 4)
    assert [next(batches), next(batches)] == [[*[Blank('x:1')] * 9, 'a'], ['b', Blank('x:11')]]
    with pytest.raises(UserError, match='x:12'):
        next(batches)


def test_predict_keeps_the_rows_of_its_input(program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """The fields of a row stand beside its prediction; a blank line keeps its place among lines."""
    own = copied(tuned, tmp_path / 'own')
    lines = ['', 'river stone old bird\tthe light', '', '', 'falls house wind falls\tthe light', '']
    (tmp_path / 'lines.txt').write_text('\n'.join(lines))
    pairs = [line.split('\t') for line in lines if line]
    objects = [{'id': i, 'sentence1': a, 'sentence2': b, 'label': 'mine'} for i, (a, b) in enumerate(pairs)]
    (tmp_path / 'objects.jsonl').write_text('\n\n'.join(map(json.dumps, objects)) + '\n')
    pyarrow = pytest.importorskip('pyarrow', reason='writes a Parquet file')
    pytest.importorskip('pyarrow.parquet').write_table(pyarrow.Table.from_pylist(objects), tmp_path / 'arrow.parquet')
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
    recorded = json.loads((own / 'config.json').read_text())
    del recorded['card']  # as of a version that had none
    (own / 'config.json').write_text(json.dumps(recorded))
    program.run(f'--workdir={own}', '--config.run=export', '--config.card.datasets=nyu-mll/glue', **GLUE)
    card = (own / 'export/hf/README.md').read_text()
    assert 'datasets:\n- nyu-mll/glue\n' in card and 'model-index:' in card and 'type: accuracy' in card
    for name in ('model.safetensors', 'config.json', 'task.json'):
        assert (own / 'export/hf' / name).read_bytes() == (tuned / 'export/hf' / name).read_bytes(), name


def test_only_the_head_is_trained(program: Program, tune, trained: pathlib.Path, tmp_path: pathlib.Path):
    safetensors = pytest.importorskip('safetensors.numpy', reason='reads what we export')
    program.run(f'--workdir={tmp_path}', *tune, '--config.train=head', '--config.steps=6', **GLUE)
    before = safetensors.load_file(trained / 'export/hf/model.safetensors')
    after = safetensors.load_file(tmp_path / 'export/hf/model.safetensors')
    moved = {name for name in before if name in after and (before[name] != after[name]).any()}
    assert moved == {'bert.pooler.dense.weight', 'bert.pooler.dense.bias'}
    assert results(tmp_path)['epochs'] == 1  # 6 steps; not what the recipe says beside them


MISTAKES = {
    'no init': (('--config.init=',), 'config.init'),
    'init is nothing': (('--config.init=nowhere',), 'nowhere'),
    'no data': (('--config.data=nowhere',), 'nowhere'),
    'train': (('--config.train=lats_2',), "'last_K'"),
    'too many blocks': (('--config.train=last_9',), 'from 1 to 2'),
    'too long': (('--config.seq_len=4096',), 'config.seq_len'),
    'rate': (('--config.learning_rate=0',), 'config.learning_rate'),
    'select': (('--config.select=bset',), 'one of last, best'),
    'parts': (('--config.accumulate=3',), 'a divisor of batch_size'),
    'sweep': (("--config.sweep.learning_rate=('a',)",), 'config.sweep.learning_rate'),
    'sweep of nothing': (('--config.sweep.epochs=(1.0,)', '--config.steps=4'), 'config.sweep.epochs'),
    'key': (('--config.lerning_rate=1',), 'config.learning_rate'),
    'seed': (('--config.seed=-1',), 'config.seed'),
    'sweep of an empty batch': (('--config.sweep.batch_size=(16,0)',), 'config.sweep.batch_size'),
    'sweep of a low rate': (('--config.sweep.learning_rate=(1e-3,0.0)',), 'config.sweep.learning_rate'),
    'sweep of too many blocks': (("--config.sweep.train=('head','last_9')",), 'from 1 to 2'),
    'together': (('--config.sweep.together=-1', '--config.sweep.seeds=(0,1)'), 'config.sweep.together'),
    'layer decay': (('--config.layer_decay=2.0',), 'config.layer_decay'),
}


@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes_cost_no_compute(program: Program, tune, tmp_path: pathlib.Path, name: str):
    changes, named = MISTAKES[name]
    assert named in program.error(f'--workdir={tmp_path}', *tune, *changes, **GLUE)
    assert not (tmp_path / 'checkpoints').exists()


def test_wrong_task_and_wrong_rows(program: Program, tune, rte: pathlib.Path, tmp_path: pathlib.Path):
    line = program.error(f'--workdir={tmp_path}', *tune, recipe='configs/glue.py:rtee', small=False)
    assert "'rtee'" in line and 'one of cola, ' in line
    (tmp_path / 'RTE').mkdir()
    for path in rte.iterdir():
        shutil.copy(path, tmp_path / 'RTE')
    with (tmp_path / 'RTE' / 'train.tsv').open('a', encoding='utf-8') as file:
        file.write('96\tthe red\tthe light\tmaybe\n')
    line = program.error(f'--workdir={tmp_path / "w"}', *tune, f'--config.data={tmp_path / "RTE"}', **GLUE)
    assert 'train.tsv:98' in line and 'maybe' in line


def test_verbs_of_a_model_that_is_not_there(program: Program, tune, tmp_path: pathlib.Path, trained: pathlib.Path):
    for verb in ('evaluate', 'predict'):
        assert 'no model' in program.error(f'--workdir={tmp_path}', f'--config.run={verb}', **GLUE)
    line = program.error(f'--workdir={tmp_path}', '--config.run=evaluate', *tune, **GLUE)
    assert 'head/' in line and 'tuned' in line  # a pre-trained model has no head for RTE
