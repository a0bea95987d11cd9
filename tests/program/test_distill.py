"""run=distill on text and on tasks: runs resume with the same bits and are exported."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest
from browsing import NARROW, Browser
from golden_runs import COLORS, PLACES, rewind
from json_tokenizers import write_modernbert
from running import GLUE, ONE_LENGTH, SMALL, TUNE, Program, copy_workdir, results, rows
from safetensors.numpy import load_file
from test_tasks import write_columns, write_squad

from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import load_task_model, read_config
from bertjax.doctor import plan
from bertjax.tasks.registry import build_task
from bertjax.tasks.task import Task
from bertjax.text.tokenizer import load_tokenizer

# A student with one layer; its teacher `trained` has two. EVERY_PART turns on all distillation losses.
GENERAL = (
    *SMALL,
    '--config.model.num_layers=1',
    '--config.model.num_heads=2',
    '--config.epochs=0',
    '--config.steps=8',
    '--config.grad_accum_steps=1',
    '--config.checkpoint_every=4',
    '--config.checkpoint_keep=2',
    '--config.eval_every=8',
    '--config.learning_rate=1e-3',
)
EVERY_PART = (
    '--config.distill.hidden=1',
    '--config.distill.attention=1',
    '--config.distill.embeddings=1',
    '--config.distill.projection=true',
)
RANDOM = '--config.distill.student_init=random'
TEXT = {'recipe': 'configs/distilbert.py', 'small': False}
TASK = {'recipe': 'configs/distilbert.py:glue:rte', 'small': False}


def teacher(workdir: pathlib.Path) -> str:
    return f'--config.distill.teacher={workdir}'


@pytest.fixture(scope='module')
def general(program: Program, trained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp('distil') / 'general'
    flags = (f'--workdir={workdir}', f'--config.corpus={program.corpus}', *GENERAL, *EVERY_PART, teacher(trained))
    out = program.run(*flags, **TEXT).stdout
    assert 'starting from blocks 0 of' in out and 'learned projection; compared with blocks 1 of the teacher' in out
    return workdir


def again(workdir: pathlib.Path, program: Program, trained: pathlib.Path) -> tuple[str, ...]:
    return (f'--workdir={workdir}', f'--config.corpus={program.corpus}', *GENERAL, *EVERY_PART, teacher(trained))


@pytest.mark.slow
def test_distillation_on_text_resumes_with_the_same_bits(
    program: Program, trained: pathlib.Path, general: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(general, tmp_path / 'run')
    shutil.rmtree(workdir / 'checkpoints' / '8')
    shutil.rmtree(workdir / 'export')
    assert 'continuing at step 4 of 8' in program.run(*again(workdir, program, trained), **TEXT).stdout
    for name in ('ledger.jsonl', 'export/hf/model.safetensors', 'config.json', 'export/hf/README.md'):
        assert (workdir / name).read_bytes() == (general / name).read_bytes(), name
    assert rows(workdir / 'metrics.jsonl', 'heldout') == rows(general / 'metrics.jsonl', 'heldout')


def test_only_the_student_is_saved_and_exported(program: Program, trained: pathlib.Path, general: pathlib.Path):
    tensors, theirs = (load_file(path / 'export' / 'hf' / 'model.safetensors') for path in (general, trained))
    without = {name for name in theirs if '.layer.1.' not in name and 'pooler' not in name and 'seq_rel' not in name}
    assert tensors.keys() == without  # a BertForMaskedLM without the projection
    assert all(tensors[name].shape == theirs[name].shape for name in tensors)
    last = rows(general / 'metrics.jsonl', 'heldout')[-1]
    parts = {'soft': 5, 'cosine': 1, 'hidden': 1, 'attention': 1, 'embeddings': 1, 'mlm': 2}
    assert last['loss'] == pytest.approx(sum(factor * last[f'{part}_loss'] for part, factor in parts.items()))
    state = [path for path in (general / 'checkpoints' / '8' / 'state').rglob('*') if path.is_file()]
    student = sum(x.nbytes for x in tensors.values())
    assert sum(path.stat().st_size for path in state) < 3 * student + 100_000
    card = (general / 'export' / 'hf' / 'README.md').read_text(encoding='utf-8')
    assert 'distillation, soft' in card and str(trained) not in card
    out = program.run(f'--workdir={general}', *GENERAL, '--config.run=export', '--config.step=4', **TEXT).stdout
    assert 'step 4 exported' in out


def test_the_doctor_refuses_a_new_teacher_with_another_vocabulary(
    program: Program,
    trained: pathlib.Path,
    general: pathlib.Path,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(plan, 'on_this_machine', lambda *_: ())  # times no steps
    other, known = tmp_path / 'other', (trained / 'tokenizer' / 'vocab.txt').read_text(encoding='utf-8')
    shutil.copytree(trained / 'export' / 'hf', other)
    (other / 'tokenizer.json').unlink(missing_ok=True)
    pieces = known.splitlines()
    (other / 'vocab.txt').write_text('\n'.join([*pieces[:-1], 'another']) + '\n', encoding='utf-8')
    flags = (f'--workdir={general}', f'--config.corpus={program.corpus}', *GENERAL, '--config.steps=12')
    doctor = '--config.run=doctor'
    assert 'FAIL  resume' not in program.run(*flags, teacher(trained), doctor, status=None, **TEXT).stdout
    found = 'the tokenizer: found a tokenizer other than '
    assert f'FAIL  resume       {found}' in program.run(*flags, teacher(other), doctor, status=2, **TEXT).stdout
    assert found in program.error(*flags, teacher(other), **TEXT)


@pytest.mark.slow
def test_the_page_shows_the_distillation_losses(
    program: Program, browser: Browser, general: pathlib.Path, tmp_path: pathlib.Path
):
    """Like TinyBERT's, the student makes no predictions: no value is a dash, and its untrained MLM head is not used."""
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    workdir = copy_workdir(general, tmp_path / 'run')
    config = json.loads((workdir / 'config.json').read_text())
    config['distill'] |= {'soft': 0.0, 'hard': 0.0}
    (workdir / 'config.json').write_text(json.dumps(config))
    lines = [{k: x for k, x in row.items() if 'mlm' not in k} for row in rows(workdir / 'metrics.jsonl')]
    (workdir / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    program.run(f'--workdir={workdir}', *GENERAL, '--config.run=report', **TEXT)

    def look(page):
        assert page.title() == 'Distillation: run'
        charts = page.locator('#curves figcaption').all_inner_texts()
        assert {"The teacher's outputs", 'Hidden states', 'Attention scores', 'Training objective'} <= set(charts)
        assert page.locator('#curves .plot .main-svg').count() >= len(charts)
        tiles = page.locator('.tile').all_inner_texts()
        loss = next(row['loss'] for row in reversed(lines) if row['split'] == 'heldout')
        assert any('held-out loss' in tile.lower() and f'{loss:.3f}' in tile for tile in tiles), tiles
        assert not any(line.strip() == '-' for tile in tiles for line in tile.splitlines())
        assert 'the MLM head still has its initial weights' in page.locator('#fillings').inner_text()

    browser.visit(workdir / 'report.html', look, width=NARROW, dark=True)


@pytest.mark.slow
def test_the_page_shows_the_initial_student(program: Program, general: pathlib.Path, tmp_path: pathlib.Path):
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    workdir = copy_workdir(general, tmp_path / 'run')
    program.run(f'--workdir={workdir}', *GENERAL, '--config.run=report', **TEXT)
    assert 'with blocks of the teacher' in (workdir / 'report.html').read_text(encoding='utf-8')


@pytest.mark.slow
def test_a_student_learns_the_answers_of_its_teacher(
    program: Program, rte: pathlib.Path, tuned: pathlib.Path, tmp_path: pathlib.Path
):
    flags = (f'--workdir={tmp_path}', f'--config.data={rte}', *TUNE, teacher(tuned), '--config.distill.hard=0')
    flags += (ONE_LENGTH, '--config.eval_every=0', '--config.checkpoint_every=0', RANDOM)
    out = program.run(*flags, **TASK).stdout
    assert 'starting from random weights' in out and 'losses: 1 x soft; temperature 2' in out
    trained_on = rows(tmp_path / 'metrics.jsonl', 'train')
    assert trained_on[-1]['loss'] == trained_on[-1]['soft_loss'] < 0.5 * trained_on[0]['loss']
    student, full = (load_file(path / 'export' / 'hf' / 'model.safetensors') for path in (tmp_path, tuned))
    assert len(student) < len(full) and 'bert.encoder.layer.1.output.dense.bias' not in student
    splits = results(tmp_path)['splits']
    assert splits['dev']['accuracy'] > 0.8  # without any labels
    program.run(f'--workdir={tmp_path}', f'--config.data={rte}', '--config.run=evaluate', **GLUE)
    assert results(tmp_path)['splits'] == splits


@pytest.mark.slow
def test_a_student_starts_from_layers_of_a_modernbert(program: Program, tmp_path: pathlib.Path):
    """The student has the architecture and the embedding rows of the teacher; the user sets only the sizes."""
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    start, workdir = tmp_path / 'teacher', tmp_path / 'run'
    start.mkdir()
    theirs = write_modernbert('modern', program.corpus.read_text().split('\n'), start, size=400)
    sizes = {'num_layers': 2, 'width': 32, 'num_heads': 4, 'mlp_dim': 40, 'max_positions': 64}
    other_flags = [flag for flag in GENERAL if '.model.' not in flag and '.vocab.' not in flag]
    flags = (f'--workdir={workdir}', f'--config.corpus={program.corpus}', teacher(start), *other_flags)
    flags += tuple(f'--config.model.{name}={size}' for name, size in sizes.items())
    assert 'starting from blocks 0, 3 of' in program.run(*flags, '--config.steps=4', **TEXT).stdout
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(workdir / 'export/hf', output_loading_info=True)
    assert type(model) is type(theirs) and not any(info.values())
    same = ('vocab_size', 'local_attention', 'norm_bias', 'norm_eps', 'hidden_activation', 'max_position_embeddings')
    assert all(getattr(model.config, name) == getattr(theirs.config, name) for name in same)
    line = program.error(*flags[1:], f'--workdir={tmp_path / "2"}', '--config.model.rope_theta=5e4', **TEXT)
    assert 'config.model.rope_theta: found 50000.0, expected 160000.0, as in the teacher' in line


@pytest.mark.slow
def test_a_killed_run_with_augmented_rows_ends_in_the_same_bits(
    program: Program, rte: pathlib.Path, trained: pathlib.Path, tuned: pathlib.Path, tmp_path: pathlib.Path
):
    recipe = {'recipe': 'configs/tinybert.py:glue:rte', 'small': False}
    more = ('--config.epochs=1', '--config.checkpoint_every=3', '--config.distill.intermediate=50%')
    more += ('--config.distill.augment=2', f'--config.distill.augment_model={trained}', f'--config.init={trained}')
    more += ('--config.use_checkpoint=best', '--config.eval_every=3', '--config.log_every=3', ONE_LENGTH)
    more += ('--config.checkpoint_keep=9',)
    for name in ('whole', 'killed'):
        if name == 'killed':
            rewind(copy_workdir(tmp_path / 'whole', tmp_path / 'killed'), step=12)  # in the second stage
        flags = (f'--workdir={tmp_path / name}', f'--config.data={rte}', *TUNE, teacher(tuned), *more)
        out = program.run(*flags, **recipe).stdout
        assert (name == 'killed') == ('continuing at step 12 of 18' in out)
        assert '192 augmented rows in addition to 96' in out
        assert name == 'killed' or 'train: adding 2 augmented copies of each of 96 rows with' in out
        # The head is not trained before step 9, so an earlier checkpoint must not be chosen.
        best = re.search(r'the saved step with the best dev score is (\d+)', out)
        assert best is None or int(best[1]) > 9
        assert '9 steps at 5e-05 on the hidden losses, then 9 at 0.003 on the outputs' in out
    first, last = (rows(tmp_path / 'killed' / 'metrics.jsonl', 'train')[i] for i in (0, -1))
    assert first['phase'] == 0 and first['hidden_loss'] > 0 and 'soft_loss' not in first
    assert last['phase'] == 1 and last['loss'] == last['soft_loss'] and 'hidden_loss' not in last
    for file in ('export/hf/model.safetensors', 'ledger.jsonl', 'config.json', 'results.json'):
        assert (tmp_path / 'whole' / file).read_bytes() == (tmp_path / 'killed' / file).read_bytes(), file
    rewind(tmp_path / 'killed', step=12)  # of the steps 9 and 18, which this interval evaluates, 9 ends the first stage
    out = program.run(*flags, '--config.eval_every=9', **recipe).stdout
    assert 'can choose only the last step, the only one in the last stage that is saved and evaluated' in out


@pytest.mark.slow
def test_a_smaller_student_loads_in_transformers(general: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason='loads the export')
    path = general / 'export' / 'hf'
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(path, output_loading_info=True)
    assert not info['missing_keys'] and not info['unexpected_keys'], info
    assert model.config.num_hidden_layers == 1
    out = model(**transformers.AutoTokenizer.from_pretrained(path)('the bird sings', return_tensors='pt'))
    assert np.isfinite(out.logits.detach().numpy()).all()


def write_choices(data: pathlib.Path) -> None:
    for split, count in (('train', 16), ('dev', 5)):
        lines = [
            {
                'prompt': f'the {COLORS[i % 5]}',
                'endings': [PLACES[(i + j) % 5] for j in range(2 + i % 2)],
                'label': i % 2,
            }
            for i in range(count)
        ]
        (data / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, lines)) + '\n', encoding='utf-8')


# {argument of the recipe: (the function that writes the data, the kind of the task and its options)}.
KINDS = {
    'squad:v1': (lambda data: write_squad(data, '1.1'), 'squad', {'max_query': 12}),
    'ner': (write_columns, 'tagging', {}),
    'swag:jsonl': (write_choices, 'multiple_choice', {'layout': 'jsonl'}),
}


def write_model(directory: pathlib.Path, source: pathlib.Path, task: Task) -> None:
    """Exports the encoder of a Hugging Face folder with a random head."""
    task.learn(task.records('train'))
    module = task.build_module(read_config(source))
    params = load_task_model(source, module, task.head).params
    labels = task.huggingface()
    content = ExportContent(module, params, load_tokenizer(source), head=task.head, task=labels)
    export_huggingface(content, directory)


@pytest.mark.slow
@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_of_head_can_be_distilled(
    program: Program, trained: pathlib.Path, tmp_path: pathlib.Path, kind: str
):
    """The teacher has two layers, the student one; the data has augmented rows."""
    write, task_kind, options = KINDS[kind]
    data = tmp_path / 'data'
    data.mkdir()
    write(data)
    write_model(
        tmp_path / 'teacher', trained / 'export' / 'hf', build_task(task_kind, data=str(data), seq_len=32, **options)
    )
    flags = (f'--workdir={tmp_path / "student"}', f'--config.data={data}', teacher(tmp_path / 'teacher'), *EVERY_PART)
    flags += ('--config.seq_len=32', '--config.max_padded_lengths=1', '--config.batch_size=8', '--config.steps=4')
    flags += ('--config.learning_rate=1e-3', '--config.log_every=1', '--config.distill.augment=1')
    flags += (f'--config.distill.augment_model={trained}',)
    flags += tuple(f'--config.task.{name}={value}' for name, value in options.items() if name != 'layout')
    program.run(*flags, recipe=f'configs/distilbert.py:{kind}', small=False)
    last = rows(tmp_path / 'student' / 'metrics.jsonl', 'train')[-1]
    assert all(last[f'{part}_loss'] is not None for part in ('soft', 'label', 'hidden', 'attention', 'embeddings'))
    # The student starts with the head of its teacher, so it is evaluated before the first step.
    assert rows(tmp_path / 'student' / 'metrics.jsonl', 'dev')[0]['step'] == 0
    assert (tmp_path / 'student' / 'export' / 'hf' / 'model.safetensors').exists()
