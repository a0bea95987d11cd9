"""Continuing a checkpoint on other text: its architecture, added words, several held-out texts, languages."""

import json
import pathlib
import re
import shutil

import numpy as np
import pytest
import safetensors.numpy
from browsing import Browser
from json_tokenizers import write_modernbert
from running import SMALL, Program, copy_workdir, rows

import bertjax
from bertjax.convert.load import read_config
from bertjax.errors import UserError
from bertjax.files import paths
from bertjax.pretrain.settings import pretraining_settings
from bertjax.pretrain.warm_start import embedding_rows, initial_params, with_architecture
from bertjax.text.added_words import insert_words
from bertjax.text.tokenizer import load_tokenizer
from bertjax.writers.console import format_value

ADAPT = {'recipe': 'configs/adapt.py', 'small': False}
QUICK = tuple(flag for flag in SMALL if '.model.' not in flag and 'vocab' not in flag)
QUICK = (*QUICK, '--config.steps=2', '--config.eval_every=0', '--config.pair_plans=1')

NEW = 43  # added words, more than the padding of the embedding table has rows


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory, corpus: pathlib.Path, trained: pathlib.Path) -> pathlib.Path:
    """A folder with two texts, a file of words and the checkpoint, which a test can move away."""
    folder = tmp_path_factory.mktemp('adapt')
    documents = corpus.read_text(encoding='utf-8').split('\n\n')
    (folder / 'new.txt').write_text('\n\n'.join(documents[:40]).replace('stone', 'oldstone'), encoding='utf-8')
    (folder / 'other.txt').write_text('\n\n'.join(documents[40:60]), encoding='utf-8')
    words = ['oldstone', 'the', *(a + b for a in 'aeiouy' for b in 'bdfghjk')]
    (folder / 'words.txt').write_text('\n'.join(words) + '\n', encoding='utf-8')
    shutil.copytree(trained / 'export' / 'hf', folder / 'init')
    return folder


def arguments(folder: pathlib.Path, workdir: pathlib.Path) -> tuple[str, ...]:
    return (
        f'--workdir={workdir}', f'--config.init={folder}/init', f'--config.corpus={folder}/new.txt',
        f'--config.vocab.add={folder}/words.txt', f'--config.heldout_texts=other={folder}/other.txt', *QUICK,
    )  # fmt: skip


@pytest.fixture(scope='module')
def adapted(program: Program, folder: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    workdir = tmp_path_factory.mktemp('adapted') / 'run'
    out = program.run(*arguments(folder, workdir), **ADAPT).stdout
    assert f'{NEW} words of' in out and f'{NEW} after the last piece; 1 are pieces already' in out
    assert (
        f'{NEW} words are initialized with the mean embedding of their pieces' in out and 'other held-out texts' in out
    )
    return workdir


def test_a_checkpoint_is_adapted(adapted: pathlib.Path, folder: pathlib.Path):
    workdir = adapted
    config = json.loads((workdir / 'config.json').read_text())
    assert config['model']['width'] == 32 and config['model']['num_layers'] == 2
    other = rows(workdir / 'metrics.jsonl', 'heldout:other')
    assert [row['step'] for row in other] == [0, 2] and other[0]['mlm_loss'] > 0
    heldout = rows(workdir / 'metrics.jsonl', 'heldout')
    assert set(other[0]) == set(heldout[0])
    summary = json.loads((workdir / 'summary.json').read_text())
    assert summary['heldout_texts']['other'] == other
    before = safetensors.numpy.load_file(folder / 'init' / 'model.safetensors')[
        'bert.embeddings.word_embeddings.weight'
    ]
    after = safetensors.numpy.load_file(workdir / 'export/hf/model.safetensors')
    table = after['bert.embeddings.word_embeddings.weight']
    assert len(table) == len(before) + NEW == config['model']['vocab_size']
    np.testing.assert_allclose(table[:-NEW], before, atol=1e-3)  # two steps at a low rate
    assert np.abs(table[-NEW]).max() > 1e-3


def test_rotary_positions_can_be_extended(corpus: pathlib.Path, tmp_path: pathlib.Path):
    folder, flags = tmp_path / 'init', {'model.max_positions', 'model.rope_theta'}
    folder.mkdir()
    write_modernbert('modern', corpus.read_text().split('\n'), folder, size=400)
    config = bertjax.recipe('adapt').with_keys({'init': str(folder)}).config
    for name in ('max_positions', 'rope_theta'):
        config.model[name] = 2 * getattr(read_config(folder), name)
    settings = with_architecture(pretraining_settings(config), tmp_path / 'run', flags)
    assert settings.model.max_positions == 2 * read_config(folder).max_positions
    tokenizer = load_tokenizer(folder)
    rows = embedding_rows(settings, tmp_path / 'run', tokenizer)
    params, text = initial_params(settings, settings.model_config(rows), tokenizer)
    assert params and 'config.model.rope_theta is ' in text
    with pytest.raises(UserError, match=r'config\.model\.max_positions: '):
        with_architecture(pretraining_settings(config), tmp_path / 'run')


def test_words_in_the_given_tokenizer_are_initialized(folder: pathlib.Path, tmp_path: pathlib.Path):
    """run=corpus with config.vocab.add writes such a tokenizer. The first word takes an [unused] slot."""
    init = tmp_path / 'init'
    shutil.copytree(folder / 'init', init, ignore=shutil.ignore_patterns('tokenizer.json'))
    *pieces, _ = (init / 'vocab.txt').read_text(encoding='utf-8').splitlines()
    (init / 'vocab.txt').write_text('\n'.join([*pieces, '[unused0]']), encoding='utf-8')
    tokenizer, _ = insert_words(load_tokenizer(init), [(1, 'oldstone'), (2, 'newstone')], 'words.txt')
    tokenizer.save(tmp_path / 'tokenizer')
    keys = {'init': str(init), 'tokenizer': str(tmp_path / 'tokenizer')}
    config = bertjax.recipe('adapt').with_keys(keys).config
    settings = with_architecture(pretraining_settings(config), tmp_path / 'run')
    rows = embedding_rows(settings, tmp_path / 'run', tokenizer)
    params, text = initial_params(settings, settings.model_config(rows), tokenizer)
    assert rows == len(pieces) + 2 and '2 words are initialized with the mean embedding' in text
    table = params['encoder']['embeddings']['token']['embedding']
    old_ids = load_tokenizer(init).encode(['oldstone'])[0]
    np.testing.assert_array_equal(table[len(pieces)], table[old_ids].mean(0))


@pytest.mark.slow
def test_the_report_shows_the_initial_checkpoint_and_the_other_text(
    program: Program, browser: Browser, adapted: pathlib.Path, tmp_path: pathlib.Path
):
    pytest.importorskip('plotly', reason="needs the extra 'report'")
    workdir = copy_workdir(adapted, tmp_path / 'run')
    program.run(f'--workdir={workdir}', '--config.run=report', **ADAPT)
    first, last = rows(workdir / 'metrics.jsonl', 'heldout:other')

    def look(page):
        text = page.locator('#fillings').inner_text().lower()
        assert 'filled rightly' in text and 'with the weights of config.init' in text
        tiles = page.locator('.tile').all_inner_texts()
        (mine,) = [tile for tile in tiles if 'on other' in tile.lower()]
        assert f'{last["mlm_loss"]:.3f}' in mine and f'{first["mlm_loss"]:.3f} at step 0' in mine
        chart = page.locator('figure.chart', has_text='Held-out texts')
        assert chart.locator('.legendtext').all_text_contents() == ['other', 'held out of the corpus']

    browser.visit(workdir / 'report.html', look)


@pytest.mark.slow
def test_a_run_resumes_after_a_change_of_its_words(
    program: Program, adapted: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch
):
    workdir, words = copy_workdir(adapted, tmp_path / 'run'), tmp_path / 'words.txt'
    words.write_text((folder / 'words.txt').read_text() + 'newstone\n')
    flags = (*arguments(folder, workdir), f'--config.vocab.add={words}', '--config.steps=3')
    # The workdir may be the mirror of a bucket.
    for address, verb in (('gs://bucket/run', 'corpus'), (str(workdir), 'pretrain')):
        monkeypatch.setitem(paths._names, str(workdir), address)
        fix = f'--config.tokenizer={address}/tokenizer'
        assert f'set {fix} to continue' in program.error(*flags, **ADAPT)
        out = program.run(*flags, fix, f'--config.run={verb}', **ADAPT).stdout
        assert f'the run keeps {address}/tokenizer: config.vocab.add adds no words' in out
    assert 'continuing at step 2 of 3' in out


@pytest.mark.slow
def test_a_run_resumes_without_its_initial_checkpoint(
    program: Program, adapted: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(adapted, tmp_path / 'run')
    away = folder.with_name('away')
    folder.rename(away)
    try:
        folder.mkdir()
        for name in ('new.txt', 'other.txt'):
            shutil.copyfile(away / name, folder / name)
        out = program.run(*arguments(folder, workdir), '--config.steps=3', **ADAPT).stdout
        assert 'continuing at step 2 of 3' in out
    finally:
        shutil.rmtree(folder)
        away.rename(folder)


@pytest.fixture(scope='module')
def modernbert(trained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small ModernBertForMaskedLM of transformers, with the tokenizer of `trained`."""
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / 'export' / 'hf')
    config = transformers.ModernBertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40,
        local_attention=8, max_position_embeddings=64, pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2,
        sep_token_id=3,
    )  # fmt: skip
    directory = tmp_path_factory.mktemp('modernbert')
    transformers.ModernBertForMaskedLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.slow
def test_a_modernbert_is_continued(
    program: Program, folder: pathlib.Path, modernbert: pathlib.Path, tmp_path: pathlib.Path
):
    """ModernBERT has no segment ids, so there are no pairs. Other arrays are refused, and other thetas are reported."""
    workdir = tmp_path / 'run'
    flags = (f'--config.init={modernbert}', f'--config.corpus={folder}/new.txt', *QUICK)
    out = program.run(f'--workdir={workdir}', *flags, **ADAPT).stdout
    assert 'of its ModernBertForMaskedLM loaded; newly initialized: nothing' in out
    config = json.loads((workdir / 'config.json').read_text())
    assert config['pairs']['mode'] == 'doc_sentences'
    assert f'config.pairs.mode is set to doc_sentences, because the model in {modernbert} has no segment ids' in out
    unchanged = {
        'dropout': 0.0, 'attention_dropout': 0.0, 'attention_window': 8, 'mlp': 'geglu', 'rope_theta': 160_000.0,
        'pooler': 'transform', 'width': 32,
    }  # fmt: skip
    assert {name: config['model'][name] for name in unchanged} == unchanged
    exported = json.loads((workdir / 'export' / 'hf' / 'config.json').read_text())
    assert exported['architectures'] == ['ModernBertForMaskedLM'] and exported['local_attention'] == 8
    line = program.error(f'--workdir={workdir}', *flags, '--config.steps=3', '--config.pairs.mode=nsp', **ADAPT)
    assert line.endswith('or use config.pairs.mode=doc_sentences')
    ettin = {'recipe': 'configs/ettin.py', 'small': False}
    sizes = [f'--config.model.{name}={config["model"][name]}' for name in (
        'width', 'num_layers', 'num_heads', 'mlp_dim', 'max_positions', 'attention_window'
    )]  # fmt: skip
    single_phase = ('--config.phases=()', '--config.packing=False', '--config.grad_accum_steps=1', *sizes)
    line = program.error(f'--workdir={tmp_path}/2', *flags, *single_phase, '--config.model.norm_bias=True', **ettin)
    assert f'config.model.norm_bias: found True, expected False, as in {modernbert}' in line
    theta = '--config.model.rope_local_theta=5e4'
    out = program.run(f'--workdir={tmp_path}/2', *flags, *single_phase, theta, '--config.export=False', **ettin).stdout
    assert 'config.model.rope_local_theta is 50000.0, but 10000.0 in the checkpoint' in out


def test_mistakes_in_an_adaptation_are_errors(program: Program, folder: pathlib.Path, tmp_path: pathlib.Path):
    flags = arguments(folder, tmp_path / 'run')
    line = program.error(*flags, '--config.model.num_layers=3', **ADAPT)
    assert 'config.model.num_layers: found 3, expected 2, as in' in line
    line = program.error(*flags, '--config.model.num_layers=12', **ADAPT)  # the usual number of layers
    assert 'config.model.num_layers: found 12, expected 2, as in' in line
    line = program.error(*flags, '--config.init=', **ADAPT)
    assert 'config.init: found nothing' in line
    (tmp_path / 'words.txt').write_text('old-stone\n', encoding='utf-8')
    line = program.error(*flags, f'--config.vocab.add={tmp_path}/words.txt', **ADAPT)
    assert 'words.txt:1: found' in line and "'old' '-' 'stone'" in line
    line = program.error(*flags, f'--config.heldout_texts=x={folder}/new.txt', **ADAPT)
    assert 'new.txt in x and in config.corpus' in line
    line = program.error(*flags, f'--config.heldout_texts=x={folder}/../{folder.name}/new.txt', **ADAPT)
    assert 'new.txt in x and in config.corpus' in line
    line = program.error(*flags, '--config.run=vocab', **ADAPT)
    assert line.startswith('error: config.init: found ') and 'because run=vocab trains a new vocabulary' in line
    line = program.error(*flags, '--config.heldout_texts=each', **ADAPT)
    assert "'each' with one corpus" in line
    mixture = (f'--config.corpus={folder}/new.txt=auto,{folder}/words.txt=auto', '--config.vocab.add=')
    line = program.error(*flags, *mixture, f'--config.heldout_texts=each,new={folder}/other.txt', **ADAPT)
    assert "config.heldout_texts: found 'new' twice" in line
    for wrong, part in (('oops', 'NAME=PATH'), (f'x={folder}/none.txt', 'none.txt')):
        assert part in program.error(*flags, f'--config.heldout_texts={wrong}', **ADAPT)
    assert not any((tmp_path / 'run' / name).exists() for name in ('store', 'tokenizer'))
    for verb in ('pretrain', 'corpus'):
        line = program.error(f'--workdir={tmp_path}/run', '--config.vocab.add=x', f'--config.run={verb}')
        assert 'config.vocab.add: found words for a vocabulary that is trained' in line
    line = program.error(f'--workdir={tmp_path}/run', '--config.run=vocab', '--config.vocab.unused=9999')
    assert 'config.vocab.unused: found 9999 of ' in line
    *pieces, last = (folder / 'init' / 'vocab.txt').read_text(encoding='utf-8').splitlines()
    (tmp_path / 'vocab.txt').write_text('\n'.join([*pieces[:-1], last, pieces[-1]]), encoding='utf-8')
    line = program.error(*flags, '--config.vocab.add=', f'--config.tokenizer={tmp_path}/vocab.txt', **ADAPT)
    assert f'config.tokenizer: found no {pieces[-1]!r} with id {len(pieces) - 1}, expected the vocabulary of' in line
    assert not (tmp_path / 'run' / 'config.json').exists()


def test_candidates_are_listed(program: Program, folder: pathlib.Path, tmp_path: pathlib.Path):
    listing = ('--config.run=vocab', '--config.vocab.candidates=3')
    out = program.run(*arguments(folder, tmp_path / 'run'), *listing, **ADAPT).stdout
    lines = (tmp_path / 'run' / 'candidates.txt').read_text(encoding='utf-8').splitlines()
    word, count, pieces = lines[0].split('\t')
    assert word == 'oldstone' and int(count) > 10 and len(pieces.split()) > 1 and len(lines) <= 3
    assert '--config.vocab.add=' in out
    (tmp_path / 'known.txt').write_text('the the the\n', encoding='utf-8')
    none = (*listing, f'--config.corpus={tmp_path}/known.txt')
    out = program.run(*arguments(folder, tmp_path / 'none'), *none, **ADAPT).stdout
    assert 'no words in' in out and '--config.vocab.add=' not in out


@pytest.mark.slow
def test_a_finished_run_is_evaluated_on_a_new_text(
    program: Program, adapted: pathlib.Path, folder: pathlib.Path, tmp_path: pathlib.Path
):
    workdir = copy_workdir(adapted, tmp_path / 'run')
    texts = f'--config.heldout_texts=other={folder}/other.txt,same={folder}/../{folder.name}/other.txt'
    for _ in range(2):  # once is enough
        out = program.run(*arguments(folder, workdir), texts, **ADAPT).stdout
        assert 'all 2 steps are done' in out and 'also evaluated on same: ' in out
    before, after = (rows(path / 'metrics.jsonl') for path in (adapted, workdir))
    assert after == [*before, {**before[-1], 'split': 'heldout:same'}]
    assert before[-1]['split'] == 'heldout:other'
    line = next(line for line in out.splitlines() if line.lstrip(' │┃').startswith('same'))
    loss, accuracy = (format_value(before[-1][key]) for key in ('mlm_loss', 'mlm_accuracy'))
    assert re.findall(r'[-\d.]+', line) == ['-', loss, '-', accuracy]


@pytest.mark.slow
def test_languages_are_weighted_by_smoothed_size(program: Program, folder: pathlib.Path, tmp_path: pathlib.Path):
    mixture = f'--config.corpus={folder}/new.txt=auto,{folder}/other.txt=auto'
    keys = ('--config.heldout_texts=each', '--config.corpus_options.smoothing=0', '--config.corpus_options.heldout=0.2')
    out = program.run(f'--workdir={tmp_path}/run', mixture, *keys, *QUICK).stdout
    assert (
        'new.txt, 0.5 of the examples' in out
        and 'other.txt, 0.5 of the examples' in out
        and 'also evaluated on new: ' in out
    )
    splits = [row['split'] for row in rows(tmp_path / 'run' / 'metrics.jsonl') if row['step'] == 0]
    assert splits == ['heldout', 'heldout:new', 'heldout:other']
    # The vocabulary records the smoothing; the store of a single corpus does not.
    assert 'corpus_options.smoothing = 0' in (tmp_path / 'run' / 'tokenizer' / 'vocabulary.json').read_text()
    assert 'smoothing' not in (tmp_path / 'run' / 'store' / '0' / 'manifest.json').read_text()


@pytest.mark.slow
def test_embedding_rows_without_a_piece_are_kept(
    program: Program, folder: pathlib.Path, corpus: pathlib.Path, tmp_path: pathlib.Path
):
    """ModernBERT has 50,368 embedding rows and 50,280 pieces."""
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    start, workdir = tmp_path / 'start', tmp_path / 'run'
    start.mkdir()
    source = write_modernbert('modern', corpus.read_text().split('\n'), start, size=400)
    rows_of_start, pieces = source.config.vocab_size, len(transformers.AutoTokenizer.from_pretrained(start))
    assert pieces < rows_of_start
    flags = (f'--config.init={start}', f'--config.corpus={folder}/new.txt', *QUICK)
    program.run(f'--workdir={workdir}', *flags, **ADAPT)
    program.run(f'--workdir={workdir}', *flags, '--config.steps=4', **ADAPT)
    assert json.loads((workdir / 'config.json').read_text())['model']['vocab_size'] == rows_of_start
    model, info = transformers.AutoModelForMaskedLM.from_pretrained(workdir / 'export/hf', output_loading_info=True)
    assert not any(info.values()) and model.config.vocab_size == rows_of_start
    tables = [x.get_input_embeddings().weight.detach().numpy() for x in (source, model)]
    assert tables[0].shape == tables[1].shape and (tables[0] != tables[1]).any()
    np.testing.assert_allclose(tables[1][pieces:], tables[0][pieces:], atol=1e-3)
    source.resize_token_embeddings(pieces - 1)
    source.save_pretrained(start)
    line = program.error(f'--workdir={tmp_path / "3"}', *flags, **ADAPT)
    assert f'config.init: found {pieces} pieces, expected {pieces - 1}, as in {start}' in line
    assert f'resize_token_embeddings({pieces}) of transformers, or restore its own vocabulary and give the ' in line


@pytest.mark.slow
def test_added_words_take_free_rows_first(
    program: Program, folder: pathlib.Path, modernbert: pathlib.Path, tmp_path: pathlib.Path
):
    transformers = pytest.importorskip('transformers', reason="needs the extra 'test'")
    start = copy_workdir(modernbert, tmp_path / 'start')
    source = transformers.AutoModelForMaskedLM.from_pretrained(start)
    size = source.config.vocab_size + NEW + 2
    source.resize_token_embeddings(size)
    source.save_pretrained(start)
    flags = (*arguments(folder, tmp_path / 'run'), f'--config.init={start}')
    assert f'{NEW} after the last piece' in program.run(*flags, **ADAPT).stdout
    assert json.loads((tmp_path / 'run/export/hf/config.json').read_text())['vocab_size'] == size
