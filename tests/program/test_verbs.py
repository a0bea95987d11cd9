"""Verbs other than pretrain, and the ways to give a vocabulary, a store and a duration."""

import collections
import contextlib
import errno
import json
import math
import os
import pathlib
import re
import time
from unittest import mock

import numpy as np
import pytest
from running import GLUE, Program, rows

from bertjax.commands import finetune
from bertjax.corpus.store import open_store
from bertjax.pretrain import chance_baselines
from bertjax.workdir.lock import lock_workdir


@pytest.fixture(scope='module')
def built(program: Program, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A workdir with a vocabulary and a store, made with run=corpus."""
    workdir = tmp_path_factory.mktemp('built')
    result = program.run(f'--workdir={workdir}', '--config.run=corpus')
    assert 'Documents' in result.stdout and 'documents held out' not in result.stderr
    assert f'--config.data={workdir / "store"}' in result.stdout
    return workdir


@pytest.mark.slow
def test_an_existing_store_and_vocabulary_are_used(program: Program, built: pathlib.Path, tmp_path: pathlib.Path):
    """The duration is a quarter of an epoch: the steps are that share of a pass, divided by the batch size."""
    before = {path: path.read_bytes() for path in (built / 'store').rglob('*') if path.is_file()}
    result = program.run(
        f'--workdir={tmp_path}',
        f'--config.data={built / "store"}',
        f'--config.tokenizer={built / "tokenizer"}',
        '--config.epochs=0.25',
        '--config.eval_every=0',
        '--config.checkpoint_every=0',
    )
    assert 'training a wordpiece' not in result.stdout
    assert not (tmp_path / 'store' / 'manifest.json').exists()
    assert {path: path.read_bytes() for path in (built / 'store').rglob('*') if path.is_file()} == before
    steps = json.loads((tmp_path / 'config.json').read_text())['steps']
    assert [row['step'] for row in rows(tmp_path / 'metrics.jsonl', 'heldout')] == [0, steps]
    per_pass = float(result.stdout.split('examples (nsp): ')[1].split(' per pass')[0].replace(',', ''))
    assert steps == pytest.approx(0.25 * per_pass / 8, abs=1)


def test_another_tokenizer_than_the_stores_is_refused(program: Program, built: pathlib.Path, tmp_path: pathlib.Path):
    program.run(f'--workdir={tmp_path}', '--config.run=vocab', '--config.vocab.size=60')
    error = program.error(
        f'--workdir={tmp_path / "run"}', f'--config.data={built / "store"}', f'--config.tokenizer={tmp_path}/tokenizer'
    )
    assert 'ids of the tokenizer' in error


@pytest.mark.slow
def test_a_sentencepiece_vocabulary_loads_in_transformers(program: Program, tmp_path: pathlib.Path):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    program.run(
        f'--workdir={tmp_path}',
        '--config.vocab.family=sentencepiece',
        '--config.vocab.model_type=bpe',
        '--config.vocab.size=120',
        '--config.vocab.unused=3',
        '--config.steps=1',
    )
    peer = transformers.AutoTokenizer.from_pretrained(tmp_path / 'export' / 'hf')
    from bertjax.text.tokenizer import load_tokenizer

    tokenizer, text = load_tokenizer(str(tmp_path / 'tokenizer')), 'the old river sings under a green stone.'
    assert tokenizer.family == 'sentencepiece' and tokenizer.pieces[1:4] == ['[unused0]', '[unused1]', '[unused2]']
    assert peer(text, add_special_tokens=False)['input_ids'] == tokenizer.encode([text])[0].tolist()


@pytest.fixture
def plot(program: Program, monkeypatch: pytest.MonkeyPatch):
    """plot(workdir) -> the axes of the picture that run=plot makes in the workdir."""
    figures = pytest.importorskip('matplotlib.figure', reason="needs the extra 'plot'")
    saved, save = [], figures.Figure.savefig

    def keep(figure, *arguments, **options):
        saved.append(figure)
        return save(figure, *arguments, **options)

    def draw(workdir: pathlib.Path, **options) -> list:
        (workdir / 'learning_curve.png').unlink(missing_ok=True)
        monkeypatch.setattr(figures.Figure, 'savefig', keep)
        program.run(f'--workdir={workdir}', '--config.run=plot', **options)
        picture = (workdir / 'learning_curve.png').read_bytes()
        assert picture.startswith(b'\x89PNG') and len(picture) > 10_000
        return saved[-1].axes

    return draw


def _baselines(axis) -> list[str]:
    """Returns the entries of the legend that are not curves of the run."""
    names = [text.get_text() for text in axis.get_legend().get_texts()]
    return [name for name in names if name not in ('training', 'held out')]


def test_plot_draws_the_curve(plot, trained: pathlib.Path, tmp_path: pathlib.Path):
    """The baselines of a model that has learned nothing are drawn only if the text of the run exists."""
    for name in ('metrics.jsonl', 'config.json', 'store', 'tokenizer'):
        (tmp_path / name).symlink_to(trained / name)
    left, right = plot(tmp_path)
    held_out = rows(trained / 'metrics.jsonl', 'heldout')
    curve, baseline = right.lines[1], right.lines[2]
    assert list(curve.get_ydata()) == [row['nsp_accuracy'] for row in held_out]
    share = _majority(trained)
    assert list(baseline.get_ydata()) == [share, share] and _baselines(right) == [
        f'always the same answer, {share:.2f}'
    ]
    assert _baselines(left)[0].startswith('unigram entropy, ')
    (tmp_path / 'store').unlink()
    assert not any(map(_baselines, plot(tmp_path)))


def test_the_unigram_entropy_is_that_of_the_held_out_pieces(trained: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    """Pieces are counted in small batches of documents, and a picture does not verify the whole store."""
    heldout, opened = open_store(trained / 'store').split('heldout'), mock.Mock(wraps=open_store)
    pieces = [int(piece) for i in range(heldout.num_documents) for ids in heldout.document(i) for piece in ids]
    shares = [count / len(pieces) for count in collections.Counter(pieces).values()]
    monkeypatch.setattr(chance_baselines, '_BATCH_SIZE', 2)
    monkeypatch.setattr('bertjax.pretrain.text_data.open_store', opened)
    baselines = chance_baselines.read_chance_baselines(trained)
    assert baselines.unigram == pytest.approx(-sum(share * math.log(share) for share in shares))
    assert [call.kwargs['verify'] for call in opened.call_args_list] == [False]


def _majority(workdir: pathlib.Path) -> float:
    """Returns the accuracy of always giving the same answer on the evaluated pairs."""
    from bertjax.data.masking import MaskOptions
    from bertjax.data.pairs import PairOptions
    from bertjax.data.pretraining import PretrainingExamples
    from bertjax.pretrain.examples import HELDOUT_SEED
    from bertjax.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(str(workdir / 'tokenizer'))
    examples = PretrainingExamples(
        open_store(workdir / 'store', tokenizer_fingerprint=tokenizer.fingerprint).split('heldout'), tokenizer,
        seq_len=32, max_predictions=5, pairs=PairOptions(plans=2), masking=MaskOptions(), seed=HELDOUT_SEED, phase=0,
        cache_dir=None,
    )  # fmt: skip
    labels = examples.batch(np.arange(min(32, examples.cycle_length)))['nsp_labels']
    return max(labels.mean(), 1 - labels.mean())


def test_plot_draws_a_fine_tuning(plot, program: Program, tuned: pathlib.Path, tmp_path: pathlib.Path):
    (tmp_path / 'metrics.jsonl').write_bytes((tuned / 'metrics.jsonl').read_bytes())
    assert [axis.get_title() for axis in plot(tmp_path, **GLUE)] == ['Training objective', 'Metrics on dev']
    trained = [row for row in rows(tuned / 'metrics.jsonl') if row['split'] == 'train']  # as in a task without dev
    trained[0]['loss'] = None  # as for a skipped step
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in trained), encoding='utf-8')
    assert [axis.get_title() for axis in plot(tmp_path, **GLUE)] == ['Training objective']
    diverged = [row | {'loss': None} for row in trained]
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in diverged), encoding='utf-8')
    assert 'no finite value' in program.error(f'--workdir={tmp_path}', '--config.run=plot', **GLUE)


def test_plot_draws_other_texts_and_distillation_losses(plot, tmp_path: pathlib.Path):
    common = {'phase': 0, 'examples': 8}
    lines = [{'step': step, 'split': 'train', 'loss': 5.0, 'hidden_loss': 4.0, 'cosine_loss': 0.1} for step in (1, 2)]
    for step in (0, 2):
        texts = ('heldout', 'heldout:bio', 'heldout:wiki')
        lines += [{'step': step, 'split': split, 'loss': 6.0 - step, 'hidden_loss': 4.0} for split in texts]
    (tmp_path / 'metrics.jsonl').write_text(''.join(json.dumps(line | common) + '\n' for line in lines))
    axes = {axis.get_title(): axis for axis in plot(tmp_path)}
    losses = ['Hidden states', 'Direction of the last hidden states']
    assert list(axes) == ['Training objective', 'Held-out texts', *losses]
    assert _baselines(axes['Held-out texts']) == ['bio', 'wiki', 'held out of the corpus']
    assert list(axes['Held-out texts'].lines[1].get_ydata()) == [6.0, 4.0]
    assert [list(axes[name].lines[0].get_ydata()) for name in losses] == [[4.0, 4.0], [0.1, 0.1]]


def test_plot_draws_the_kind_of_run_in_the_workdir(
    plot, trained: pathlib.Path, tuned: pathlib.Path, tmp_path: pathlib.Path
):
    """The recipe may be of another kind."""
    for workdir, recipe, title in ((trained, GLUE, 'Masked language model'), (tuned, {}, 'Training objective')):
        (tmp_path / 'metrics.jsonl').write_bytes((workdir / 'metrics.jsonl').read_bytes())
        assert plot(tmp_path, **recipe)[0].get_title() == title


def test_a_failed_plot_keeps_the_old_picture(plot, program: Program, tuned, tmp_path: pathlib.Path, monkeypatch):
    (tmp_path / 'metrics.jsonl').write_bytes((tuned / 'metrics.jsonl').read_bytes())
    plot(tmp_path, **GLUE)
    path = tmp_path / 'learning_curve.png'
    before = path.read_bytes()

    def fill_disk(figure, target, **options) -> None:
        with open(target, 'wb') if isinstance(target, os.PathLike) else contextlib.nullcontext(target) as file:
            file.write(b'half')
            raise OSError(errno.ENOSPC, 'no room')

    monkeypatch.setattr('matplotlib.figure.Figure.savefig', fill_disk)
    program.run(f'--workdir={tmp_path}', '--config.run=plot', status=2, **GLUE)
    assert path.read_bytes() == before


@pytest.mark.slow
def test_sentence_order_is_called_sop(program: Program, plot, tmp_path: pathlib.Path):
    """The name is used in rows, printed text, the picture and the model card."""
    sop = (f'--workdir={tmp_path}', '--config.pairs.mode=sop', '--config.steps=2', '--config.eval_every=0')
    result = program.run(*sop)
    assert '  sop loss ' in result.stdout and 'sop accuracy' in result.stdout and 'an SOP accuracy of' in result.stdout
    assert not re.search('nsp (loss|accuracy)', result.stdout.lower())
    written = rows(tmp_path / 'metrics.jsonl')
    assert all({'sop_loss', 'sop_accuracy'} < set(row) and 'nsp_loss' not in row for row in written)
    assert 'sop_accuracy' in (tmp_path / 'export/hf/README.md').read_text(encoding='utf-8')

    right = plot(tmp_path)[1]
    assert right.get_title() == 'Order of two segments'
    assert list(right.lines[1].get_ydata()) == [row['sop_accuracy'] for row in written if row['split'] == 'heldout']
    (tmp_path / 'export/hf/README.md').unlink()
    program.run(*sop, '--config.run=export')
    assert 'sop_accuracy' in (tmp_path / 'export/hf/README.md').read_text(encoding='utf-8')


def test_a_verb_with_the_wrong_kind_of_recipe_is_an_error(program: Program, tmp_path: pathlib.Path):
    assert 'config.task' in program.error(f'--workdir={tmp_path}', '--config.run=finetune')
    assert 'config.corpus' in program.error(f'--workdir={tmp_path}', '--config.run=corpus', **GLUE)


@pytest.mark.parametrize('flag', ['--config=', '-config=', '--config', '-config'])
def test_a_verb_gets_the_name_of_the_recipe(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, flag: str
):
    recipes = []
    monkeypatch.setattr(finetune, 'run', lambda config, workdir, recipe: recipes.append(recipe))
    flags = [f'{flag}glue:rte'] if flag.endswith('=') else [flag, 'glue:rte']
    program.run(*flags, f'--workdir={tmp_path}', recipe='', small=False)
    assert recipes == ['glue:rte']


@pytest.mark.parametrize('verb', ['finetune', 'evaluate', 'predict'])
def test_every_verb_locks_its_workdir(program: Program, tmp_path: pathlib.Path, verb: str):
    """Even a process that does not train, such as run=predict on a stream, may use a workdir for a long time."""
    with lock_workdir(tmp_path):
        error = program.error(f'--workdir={tmp_path}', f'--config.run={verb}', **GLUE)
    assert f'{tmp_path}: found another process that works in this workdir' in error


@pytest.mark.slow
def test_one_workdir_has_one_process(program: Program, tmp_path: pathlib.Path):
    first = program.start(f'--workdir={tmp_path}', '--config.steps=400')
    try:
        while first.poll() is None and not (tmp_path / 'metrics.jsonl').exists():
            time.sleep(0.05)
        assert 'another process' in program.error(f'--workdir={tmp_path}', '--config.steps=400')
    finally:
        first.kill()
        first.communicate()
