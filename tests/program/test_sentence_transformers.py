"""Folders of sentence-transformers: vectors agree with `SentenceTransformer.encode`, or modules are refused."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import bertjax
from bertjax.convert.huggingface.sentence_transformers import module_files, read_sentence_modules
from bertjax.errors import UserError
from bertjax.loading.save_model import model_to_export
from bertjax.model.pooling import SENTENCE_POOL, pool_tokens
from bertjax.tasks.embedding.files import TextExample
from bertjax.tasks.embedding.task import EmbeddingTask
from bertjax.tasks.registry import options_with_kind

TEXTS = ['a bird sings over the old house and falls', 'stone']
RNG = np.random.default_rng(0)
DENSE = {'linear.weight': RNG.standard_normal((8, 32)).astype(np.float32), 'linear.bias': np.ones(8, np.float32)}
KINDS = ('Transformer', 'Pooling', 'Dense', 'Normalize')
FILES = {
    'modules.json': [
        {'idx': i, 'name': str(i), 'path': f'{i}_{kind}' if i else '', 'type': f'sentence_transformers.models.{kind}'}
        for i, kind in enumerate(KINDS)
    ],
    'sentence_bert_config.json': {'max_seq_length': 8, 'do_lower_case': False},
    'config_sentence_transformers.json': {'prompts': {'q': 'the wind '}, 'default_prompt_name': 'q'},
    '1_Pooling/config.json': {'pooling_mode_mean_tokens': False, 'pooling_mode_weightedmean_tokens': True},
    '2_Dense/config.json': {'in_features': 32, 'activation_function': 'torch.nn.modules.activation.Tanh'},
}


def write(folder: pathlib.Path, **changes) -> pathlib.Path:
    """Writes FILES, updated by `changes`, into the folder; returns the folder."""
    for name, content in {**FILES, **changes}.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    (folder / '2_Dense').mkdir(exist_ok=True)
    save_file(DENSE, folder / '2_Dense' / 'model.safetensors')
    return folder


@pytest.fixture(scope='module')
def folder(trained, tmp_path_factory) -> pathlib.Path:
    return write(shutil.copytree(trained / 'export' / 'hf', tmp_path_factory.mktemp('sentences') / 'model'))


def test_the_modules_of_a_folder_encode_its_texts(folder, extract, tmp_path):
    """Prompt, length, pooling, Dense and normalization apply in Python and in run=extract; arguments override them."""
    bert = bertjax.load(folder)
    tokens = bert.encode([f'the wind {text}' for text in TEXTS], pool=None)
    assert [len(x) for x in tokens] == [8, 5]
    pooled = np.stack([np.average(x, axis=0, weights=1 + np.arange(len(x))) for x in tokens])
    expected = np.tanh(pooled @ DENSE['linear.weight'].T + 1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(bert.encode(TEXTS), expected, atol=1e-5)
    description = "up to 8 tokens, the prompt 'the wind ', pool='weightedmean', Dense to 8, length 1"
    assert description in repr(bert)
    (tmp_path / 'in.txt').write_text('\n'.join(TEXTS))
    out = extract(tmp_path / 'in.txt', f'--config.init={folder}')
    assert f'from its modules.json: {description}' in out and 'width 8' in out
    np.testing.assert_allclose(np.load(tmp_path / 'features' / 'in.npy'), expected, atol=1e-5)
    facts = json.loads((tmp_path / 'features' / 'in.npy.json').read_text())
    assert (facts['pool'], facts['normalize'], facts['longest'], facts['dense']) == ('weightedmean', True, 8, [8])
    with pytest.raises(UserError, match=r'layers: found .*Dense'):
        bert.encode(TEXTS, layers=0)
    assert len(bertjax.load(folder, max_length=16).pieces(TEXTS[0])) > 8


def test_the_folder_limits_the_dimensions(folder, tmp_path):
    settings = {**FILES['config_sentence_transformers.json'], 'truncate_dim': 5}
    full, copied = bertjax.load(folder), shutil.copytree(folder, tmp_path / 'model')
    bert = bertjax.load(write(copied, **{'config_sentence_transformers.json': settings}))
    assert 'the first 5 dimensions' in repr(bert)
    np.testing.assert_allclose(bert.encode(TEXTS), full.encode(TEXTS)[:, :5], atol=1e-6)
    for options in ({'normalize': True}, {'normalize': False}, {'truncate_dim': 3}, {'truncate_dim': 8}):
        np.testing.assert_allclose(bert.encode(TEXTS, **options), full.encode(TEXTS, **{'truncate_dim': 5} | options))
    assert bert.encode(TEXTS, pool='cls').shape == (2, 32)
    assert bert.similarity(*TEXTS) == pytest.approx(full.similarity(*full.encode(TEXTS, truncate_dim=5)))


def test_a_prompt_that_is_not_pooled_is_refused(program, folder, tmp_path):
    changes = {'config_sentence_transformers.json': {'prompts': {'query': 'the '}}}
    changes |= {'1_Pooling/config.json': {'pooling_mode': 'mean', 'include_prompt': False}}
    bert = bertjax.load(write(shutil.copytree(folder, tmp_path / 'model'), **changes))
    assert bert.encode(TEXTS).shape == (2, 8)
    message = 'a prompt that is excluded from pooling, expected a prompt that is pooled'
    fix = "encode the texts with prompt='', or with a pooling such as pool='mean'"
    for compare in (bert.search, bert.rerank):
        with pytest.raises(UserError, match=f'{message}; {fix}'):
            compare(TEXTS[0], TEXTS)
    by_default = {**changes, 'config_sentence_transformers.json': FILES['config_sentence_transformers.json']}
    with pytest.raises(UserError, match=f'{message}; {fix}'):
        bertjax.load(write(shutil.copytree(folder, tmp_path / 'default'), **by_default)).encode(TEXTS)
    without_dense = {**by_default, 'modules.json': FILES['modules.json'][:2]}
    for name, is_exported in (('1_Pooling/config.json', False), ('config_sentence_transformers.json', True)):
        # the exported function cannot exclude a default prompt, but a model without one is exported
        model = write(tmp_path / 'default', **{**without_dense, name: changes[name]})
        content = model_to_export(bertjax.load(model)._model, ['stablehlo'], 'format')
        assert (content.embeddings is not None) == is_exported
    pairs = tmp_path / 'pairs.jsonl'
    pairs.write_text(json.dumps({'anchor': TEXTS[0], 'positive': TEXTS[1]}))
    ask = (f'--workdir={tmp_path / "w"}', f'--config.init={tmp_path / "model"}', f'--config.input={pairs}')
    line = program.error(*ask, recipe='configs/mine_negatives.py', small=False)
    assert line.endswith(f'{message}; give another model')


@pytest.mark.slow
def test_each_pooling_agrees_with_its_formula():
    x, mask = RNG.standard_normal((2, 4, 3)).astype(np.float32), np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    for row, count in enumerate((3, 2)):
        tokens = x[row, :count]
        expected = {'mean': tokens.mean(0), 'max': tokens.max(0), 'cls': tokens[0], 'lasttoken': tokens[-1]}
        expected |= {'mean_sqrt_len_tokens': tokens.sum(0) / count**0.5}
        expected |= {'weightedmean': np.average(tokens, axis=0, weights=1 + np.arange(count))}
        for pool in SENTENCE_POOL:
            np.testing.assert_allclose(pool_tokens(x, mask, pool)[row], expected[pool], atol=1e-6)


@pytest.mark.parametrize(
    'name, content, message',
    [
        ('modules.json', '{', 'no JSON'),
        ('modules.json', FILES['modules.json'][:1], 'expected Transformer, then Pooling'),
        ('modules.json', [{'type': 'x.Transformer', 'path': ''}], 'the modules x.Transformer'),
        (
            'modules.json',
            [*FILES['modules.json'], *FILES['modules.json'][2:3] * 8],
            'found 9 Dense modules',
        ),
        (
            'modules.json',
            [*FILES['modules.json'], {'type': 'sentence_transformers.models.LayerNorm', 'path': '4_LayerNorm'}],
            'modules.json: the module in 4_LayerNorm: found LayerNorm, expected Dense, Normalize or Dropout',
        ),
        (
            'modules.json',
            [{'type': 'sentence_transformers.models.Transformer', 'path': '../x'}],
            "a type, and the path ''",
        ),
        ('1_Pooling/config.json', {'pooling_mode': ['cls', 'mean']}, r"the pooling \['cls', 'mean'\]"),
        ('config_sentence_transformers.json', {'truncate_dim': '5'}, "found truncate_dim '5'"),
        (
            '2_Dense/config.json',
            {'activation_function': 'torch.nn.modules.activation.Mish'},
            '2_Dense/config.json: found the activation Mish, expected one of Identity, Tanh, ',
        ),
        ('2_Dense/config.json', {'use_residual': True}, 'Tanh with a residual'),
        ('2_Dense/config.json', {'out_features': 9}, r"2_Dense: found the tensors .*'linear.weight': \[8, 32\]"),
        ('2_Dense/config.json', {'module_input_name': 'token_embeddings'}, "found module_input_name 'token_emb"),
        ('sentence_bert_config.json', {'max_seq_length': -1}, 'max_seq_length: found -1'),
    ],
)
def test_unsupported_modules_are_refused(tmp_path, name, content, message):
    modules = read_sentence_modules(write(tmp_path, **{name: content}))
    with pytest.raises(UserError, match=message):
        raise modules.refusal


def test_an_error_names_the_file_of_the_length(tmp_path):
    write(tmp_path, **{'sentence_bert_config.json': {'max_seq_length': 2}})
    (tmp_path / 'sentence_bert_config.json').rename(tmp_path / 'sentence_roberta_config.json')
    with pytest.raises(UserError, match=r'sentence_roberta_config\.json: max_seq_length: found 2, '):
        raise read_sentence_modules(tmp_path).refusal


def test_a_training_from_unsupported_modules_names_its_key(tmp_path):
    write(tmp_path, **{'1_Pooling/config.json': {'pooling_mode': ['cls', 'mean']}})
    with pytest.raises(UserError, match=r'found the pooling .*; name a pooling with config.task.pool$'):
        EmbeddingTask('', 8).adopt(str(tmp_path))


def test_a_training_keeps_the_number_of_dimensions(tmp_path, capsys):
    """As `SentenceTransformer.save` does. The evaluation uses the vectors that `encode` will return."""
    write(tmp_path, **{'config_sentence_transformers.json': {'truncate_dim': 5}})
    task, resumed = EmbeddingTask('', 8), EmbeddingTask('', 8)
    task.adopt(str(tmp_path))
    resumed.restore(task.learned_state())
    settings = json.loads(module_files(resumed.sentence_modules(), 32, 2)['config_sentence_transformers.json'])
    assert settings['truncate_dim'] == 5
    # An export to Orbax has no modules.json.
    (tmp_path / 'orbax').mkdir()
    facts = {'task': {**options_with_kind(task), 'query_prompt': 'q '}, 'learned': task.learned_state(), 'seq_len': 8}
    (tmp_path / 'orbax' / 'task.json').write_text(json.dumps(facts))
    continued = EmbeddingTask('', 8)
    continued.adopt(str(tmp_path / 'orbax'))
    assert continued.learned_state() == task.learned_state() and "{'query': 'q '" in capsys.readouterr().out
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    (cosine,) = resumed.predictions([TextExample('scored', ('a', 'b'), 1.0)], None, {'embeddings': list(x)})
    assert cosine == pytest.approx(x[0, :5] @ x[1, :5] / np.prod(np.linalg.norm(x[:, :5], axis=1)), abs=1e-6)


def test_a_model_with_unsupported_pooling_works_otherwise(trained, tmp_path):
    model = shutil.copytree(trained / 'export' / 'hf', tmp_path / 'model')
    bert = bertjax.load(write(model, **{'1_Pooling/config.json': {'pooling_mode': ['cls', 'mean']}}))
    assert "up to 8 tokens, with unsupported modules (the pooling ['cls', 'mean'])" in repr(bert)
    with pytest.raises(UserError, match=r"found the pooling .* encode the texts with a pooling such as pool='mean'"):
        bert.encode('a bird')
    assert len(bert.pieces(TEXTS[0])) == 8
    dense = FILES['modules.json'][2]
    bert = bertjax.load(write(model, **{'modules.json': [*FILES['modules.json'][:2], dense, dense]}))
    with pytest.raises(UserError, match='a Dense layer with 32 inputs, expected 8 inputs'):
        bert.encode('a bird')


@pytest.mark.slow
def test_vectors_agree_with_sentence_transformers(trained, tmp_path):
    """The installed version writes the folders, one for each pooling and one with all modules."""
    package = pytest.importorskip('sentence_transformers', reason='compares with sentence-transformers')
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    kinds = {pool: [Pooling(32, pool)] for pool in SENTENCE_POOL}
    kinds['all'] = [Pooling(32, 'cls'), Dense(32, 16), Dense(16, 8, bias=False), Normalize()]
    for name, modules in kinds.items():
        encoder = Transformer(str(trained / 'export' / 'hf'))
        encoder.max_seq_length = 8
        prompts = {'prompts': {'q': 'the '}, 'default_prompt_name': 'q', 'truncate_dim': 3} if name == 'all' else {}
        peer = package.SentenceTransformer(modules=[encoder, *modules], device='cpu', **prompts)
        peer.save(str(tmp_path / name))
        np.testing.assert_allclose(bertjax.load(tmp_path / name).encode(TEXTS), peer.encode(TEXTS), atol=1e-5)


@pytest.mark.slow
def test_other_formats_keep_the_modules(folder, tmp_path, capsys):
    bert = bertjax.load(folder)
    for name in ('orbax', 'google'):
        bert.save(tmp_path / name, format=name)
        saved = bertjax.load(tmp_path / name)
        assert "the prompt 'the wind '" in repr(saved)
        saved.save(tmp_path / name / 'again', format='hf')
        assert "the prompt 'the wind '" in repr(bertjax.load(tmp_path / name / 'again'))
        np.testing.assert_allclose(saved.encode(TEXTS), bert.encode(TEXTS), atol=1e-6)
    assert not capsys.readouterr().out
    bert.save(tmp_path / 'lengths', format='stablehlo')
    facts = json.loads((tmp_path / 'lengths' / 'tokenizer_config.json').read_text())
    assert facts['model_max_length'] == 8
    assert 'the export to stablehlo lacks the modules of sentence-transformers' in capsys.readouterr().out
