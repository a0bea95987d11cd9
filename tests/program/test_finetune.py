"""run=finetune: training, resuming, exporting and mistakes."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from golden_runs import rewind
from running import GLUE, Program, copy_workdir, results, rows
from safetensors.numpy import load_file

import bertjax


def test_the_model_learns_and_the_run_reports_it(tuned: pathlib.Path):
    found = results(tuned)
    assert found['score'] == 'accuracy' and found['splits']['dev']['accuracy'] > 0.9 and not found['collapsed']
    out = (tuned / 'stdout.txt').read_text(encoding='utf-8')
    assert '96 training records' in out and '2 padded lengths: ' in out and 'newly initialized: head/bias' in out
    evaluated = rows(tuned / 'metrics.jsonl', 'dev')
    assert [row['step'] for row in evaluated] == [24, 48, 72]  # no evaluation at step 0 because the head was random
    assert evaluated[-1]['accuracy'] == found['splits']['dev']['accuracy']
    trained = rows(tuned / 'metrics.jsonl', 'train')
    assert [row['step'] for row in trained] == list(range(12, 73, 12)) and trained[-1]['loss'] < trained[0]['loss'] / 2
    used = [(line['first'], line['count']) for line in rows(tuned / 'ledger.jsonl')]
    assert used == [(16 * i, 16) for i in range(72)]
    # The suggested commands have the form of the command that started the run.
    command = f'    bertjax --config=configs/glue.py:rte --workdir={tuned} --config.run='
    for verb in ('baseline', 'report', 'plot'):
        assert f" (needs the extra '{verb}'):\n{command}{verb}\n" in out
    assert f'standard input):\n{command}predict --config.input=FILE\n' in out


@pytest.mark.slow
def test_a_head_from_the_checkpoint_is_evaluated_at_step_0(
    program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path
):
    flags = (f'--config.init={tuned}/export/hf', '--config.steps=1', '--config.use_checkpoint=best')
    out = program.run(f'--workdir={tmp_path}', *tune, *flags, **GLUE).stdout
    assert 'can choose only the last step, the only one that is saved and evaluated' in out
    first, last = rows(tmp_path / 'metrics.jsonl', 'dev')
    assert (first['step'], last['step']) == (0, 1)
    assert first['accuracy'] == results(tuned)['splits']['dev']['accuracy']


def test_transformers_gives_the_same_predictions(tuned: pathlib.Path, rte: pathlib.Path):
    """The export gives the names of the labels and the probabilities in predictions/dev.jsonl."""
    transformers = pytest.importorskip('transformers', reason='loads the export')
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    model, info = transformers.BertForSequenceClassification.from_pretrained(
        tuned / 'export' / 'hf', output_loading_info=True
    )
    assert not info['missing_keys'] and not info['unexpected_keys']
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned / 'export' / 'hf')
    table = [line.split('\t') for line in (rte / 'dev.tsv').read_text(encoding='utf-8').splitlines()[1:]]
    predictions = rows(tuned / 'predictions' / 'dev.jsonl')
    assert len(table) == len(predictions)
    inputs = tokenizer([r[1] for r in table], [r[2] for r in table], padding=True, return_tensors='pt')
    with torch.no_grad():
        probabilities = model.eval()(**inputs).logits.softmax(-1).numpy()
    for row, theirs in zip(predictions, probabilities, strict=True):
        assert row['label'] == model.config.id2label[int(theirs.argmax())]
        ours = [row['probabilities'][model.config.id2label[i]] for i in range(2)]
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_transformers_truncates_a_long_text_as_bertjax_does(tuned: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason='loads the export')
    folder, long = tuned / 'export' / 'hf', 'river stone old ' * 3 + 'sings falls house wind ' * 10
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(long, 'the light', truncation=True, return_tensors='pt')
    assert inputs['input_ids'].shape[1] == 24 < model.config.max_position_embeddings
    assert 'more than 24 tokens should be truncated' in (folder / 'README.md').read_text(encoding='utf-8')
    expected = model(**inputs).logits[0].log_softmax(-1).tolist()
    probabilities = bertjax.load(folder).classify(long, 'the light')['probabilities']
    ours = np.log([probabilities[name] for name in model.config.id2label.values()])
    np.testing.assert_allclose(ours, expected, atol=1e-4)
    assert bertjax.load(folder, max_length=64).classify(long, 'the light')['probabilities'] != probabilities


def _first_rows(rte: pathlib.Path, folder: pathlib.Path, count: int) -> pathlib.Path:
    folder.mkdir()
    for name in ('train.tsv', 'dev.tsv'):
        lines = (rte / name).read_text(encoding='utf-8').splitlines(keepends=True)
        (folder / name).write_text(''.join(lines[: 1 + count]), encoding='utf-8')
    return folder


@pytest.mark.slow
def test_torch_trains_to_the_same_weights(program: Program, tune, rte: pathlib.Path, tmp_path: pathlib.Path):
    """Optimizer, schedule, clipping and weight decay are those of the Trainer of transformers.

    Nothing is random: there is no dropout, and one batch contains all rows, so their order does not matter.
    """
    transformers = pytest.importorskip('transformers', reason='trains the model with transformers')
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    steps, rate, data = 20, 1e-3, _first_rows(rte, tmp_path / 'RTE', 16)
    same = (*tune, f'--config.data={data}', '--config.model.dropout=0.0', '--config.model.attention_dropout=0.0')
    same += (
        '--config.max_padded_lengths=1',
        '--config.log_every=1',
        '--config.eval_every=0',
        '--config.checkpoint_every=0',
    )
    # This learning rate changes no float, so the export has the initial parameters.
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
def test_a_killed_run_ends_in_the_same_bits(program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path):
    """The model in config.init need not exist any more."""
    workdir = copy_workdir(tuned, tmp_path / 'killed')
    rewind(workdir, step=48)
    gone, config = f'{tmp_path}/gone', workdir / 'config.json'
    assert 'gone, which does not exist' in program.error(f'--workdir={workdir}', *tune, f'--config.init={gone}', **GLUE)
    config.write_text(json.dumps(json.loads(config.read_text()) | {'init': gone}))
    out = program.run(f'--workdir={workdir}', *tune, f'--config.init={gone}', **GLUE).stdout
    assert 'continuing at step 48 of 72' in out
    assert_same_run(workdir, tuned)


@pytest.mark.slow
def test_a_finished_run_keeps_its_records_when_it_is_repeated(
    program: Program, tune, tuned: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    """The process may end before the evaluation. A moved model in config.init is not the origin of the weights."""
    workdir = copy_workdir(tuned, tmp_path / 'run')
    shutil.copytree(json.loads((workdir / 'config.json').read_text())['init'], tmp_path / 'moved')
    before = {name: (workdir / name).read_bytes() for name in ('task.json', 'config.json')}
    monkeypatch.setattr('bertjax.commands.finetune.finish_task', lambda *arguments: None)
    out = program.run(f'--workdir={workdir}', *tune, f'--config.init={tmp_path}/moved', **GLUE).stdout
    assert 'all 72 steps are done' in out and 'no effect: the weights are those of the checkpoint' in out
    assert before == {name: (workdir / name).read_bytes() for name in before}


@pytest.mark.slow
def test_steps_that_are_not_finite_stop_the_run(program: Program, tune, tmp_path: pathlib.Path, monkeypatch):
    monkeypatch.setattr(
        'bertjax.run_verb.check_ranges', lambda config: None
    )  # no allowed learning rate overflows reliably
    changes = ('--config.learning_rate=1e38', '--config.optimizer.clip_norm=0.0')
    result = program.run(f'--workdir={tmp_path}', *tune, *changes, status=3, **GLUE)
    assert 'learning rate' in result.stderr and 'Traceback' not in result.stderr


@pytest.mark.slow
def test_only_the_head_is_trained(program: Program, tune, trained: pathlib.Path, tmp_path: pathlib.Path):
    program.run(f'--workdir={tmp_path}', *tune, '--config.trainable=head', '--config.steps=6', **GLUE)
    before = load_file(trained / 'export/hf/model.safetensors')
    after = load_file(tmp_path / 'export/hf/model.safetensors')
    moved = {name for name in before if name in after and (before[name] != after[name]).any()}
    assert moved == {'bert.pooler.dense.weight', 'bert.pooler.dense.bias'}
    assert results(tmp_path)['epochs'] == 1  # 6 steps are one epoch, whatever the recipe says


MISTAKES = {
    'no init': (('--config.init=',), 'config.init'),
    'init is nothing': (('--config.init=nowhere',), 'nowhere'),
    'no data': (('--config.data=nowhere',), 'nowhere'),
    'train': (('--config.trainable=lats_2',), "'last_K'"),
    'too many blocks': (('--config.trainable=last_9',), 'from 1 to 2'),
    'too long': (('--config.seq_len=4096',), 'config.seq_len'),
    'rate': (('--config.learning_rate=0',), 'config.learning_rate'),
    'select': (('--config.use_checkpoint=bset',), 'one of last, best'),
    'parts': (('--config.grad_accum_steps=3',), 'a divisor of batch_size'),
    'sweep': (("--config.sweep.learning_rate=('a',)",), 'config.sweep.learning_rate'),
    'sweep of nothing': (('--config.sweep.epochs=(1.0,)', '--config.steps=4'), 'config.sweep.epochs'),
    'key': (('--config.lerning_rate=1',), 'config.learning_rate'),
    'seed': (('--config.seed=-1',), 'config.seed'),
    'sweep of an empty batch': (('--config.sweep.batch_size=(16,0)',), 'config.sweep.batch_size'),
    'sweep of a low rate': (('--config.sweep.learning_rate=(1e-3,0.0)',), 'config.sweep.learning_rate'),
    'sweep of too many blocks': (("--config.sweep.trainable=('head','last_9')",), 'from 1 to 2'),
    'together': (('--config.sweep.together=-1', '--config.sweep.seeds=(0,1)'), 'config.sweep.together'),
    'profile': (('--config.profile=80:82',), "config.profile: found '80:82', expected steps up to 72"),
    'layer decay': (('--config.layer_decay=2.0',), 'config.layer_decay'),
    'layer decay of the head': (('--config.layer_decay=0.9', '--config.trainable=head'), 'config.layer_decay'),
}


@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes_are_errors_before_training(program: Program, tune, tmp_path: pathlib.Path, name: str):
    changes, named = MISTAKES[name]
    assert named in program.error(f'--workdir={tmp_path}', *tune, *changes, **GLUE)
    assert not any((tmp_path / file).exists() for file in ('checkpoints', 'task.json'))


def test_a_wrong_task_and_wrong_rows_are_errors(program: Program, tune, rte: pathlib.Path, tmp_path: pathlib.Path):
    line = program.error(f'--workdir={tmp_path}', *tune, recipe='configs/glue.py:rtee', small=False)
    assert "'rtee'" in line and 'one of cola, ' in line
    (tmp_path / 'RTE').mkdir()
    for path in rte.iterdir():
        shutil.copy(path, tmp_path / 'RTE')
    with (tmp_path / 'RTE' / 'train.tsv').open('a', encoding='utf-8') as file:
        file.write('96\tthe red\tthe light\tmaybe\n')
    line = program.error(f'--workdir={tmp_path / "w"}', *tune, f'--config.data={tmp_path / "RTE"}', **GLUE)
    assert 'train.tsv:98' in line and 'maybe' in line
