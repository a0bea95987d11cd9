"""Dense modules of sentence-transformers are trained further, saved, exported and loaded."""

import dataclasses
import pathlib
import shutil

import jax
import numpy as np
import pytest
from embedding_runs import embed, pairs, unit, write_rows
from running import Program
from safetensors.numpy import load_file, save_file
from test_sentence_transformers import TEXTS

import bertjax
from bertjax.convert.huggingface.dense import DenseConfig
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, module_files, read_sentence_modules
from bertjax.errors import UserError

DENSE = (DenseConfig(8, 'Tanh', normalize_input=True), DenseConfig(6, 'SiLU', use_bias=False))
MODULES = SentenceModules(16, pool='max', dense=DENSE, normalize=True)


@pytest.fixture
def start(trained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder of sentence-transformers with MODULES."""
    folder, draw = shutil.copytree(trained / 'export' / 'hf', tmp_path / 'start'), np.random.default_rng(0)
    for name, content in module_files(MODULES, 32, 2).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    first, second = (draw.normal(0, 0.3, shape).astype(np.float32) for shape in ((8, 32), (6, 8)))
    save_file({'linear.weight': first, 'linear.bias': np.ones(8, np.float32)}, folder / '2_Dense' / 'model.safetensors')
    save_file({'linear.weight': second}, folder / '3_Dense' / 'model.safetensors')
    return folder


def vectors_by_hand(bert: bertjax.Bert, folder: pathlib.Path) -> np.ndarray:
    """Computes the vectors of TEXTS from the encoder and the tensors of a folder with MODULES."""
    first, second = (load_file(folder / f'{i}_Dense' / 'model.safetensors') for i in (2, 3))
    pooled = unit(bert.encode(TEXTS, pool='max'))
    x = np.tanh(pooled @ first['linear.weight'].T + first['linear.bias']) @ second['linear.weight'].T
    return unit(x / (1 + np.exp(-x)))


@pytest.mark.slow
def test_dense_modules_are_trained(
    program: Program, trained: pathlib.Path, start: pathlib.Path, tmp_path: pathlib.Path
):
    bert = bertjax.load(start)
    before = vectors_by_hand(bert, start)
    np.testing.assert_allclose(bert.encode(TEXTS), before, atol=1e-6)
    assert "pool='max', Dense to 8, Dense to 6, length 1" in repr(bert) and '_Dense' not in bert._model.summary
    data = tmp_path / 'data'
    write_rows(data / 'train.jsonl', pairs(16, 1))
    changes = ('--config.seq_len=16', '--config.learning_rate=1e-5', '--config.task.matryoshka_dims=(6,3)')
    workdir, stdout = embed(program, start, data, *changes)
    assert 'newly initialized: nothing' in stdout
    # The run starts from the modules and trains them, and all that is saved has the same vectors.
    export, bert = workdir / 'export' / 'hf', bertjax.load(workdir)
    vectors = bert.encode(TEXTS)
    assert dataclasses.replace(read_sentence_modules(export), prompts={}, dense_layers=()) == MODULES
    for folder in ('2_Dense', '3_Dense'):
        weights = [load_file(x / folder / 'model.safetensors')['linear.weight'] for x in (start, export)]
        assert 1e-6 < np.abs(weights[0] - weights[1]).max() < 1e-4  # 6 steps of at most 1e-5
    np.testing.assert_allclose(vectors, before, atol=2e-3)
    np.testing.assert_allclose(vectors, vectors_by_hand(bert, export), atol=1e-6)
    np.testing.assert_allclose(bertjax.load(workdir, step=6).encode(TEXTS), vectors, atol=1e-6)
    np.testing.assert_allclose(unit(bert.apply(bert.params, bert.batch(TEXTS))['embeddings']), vectors, atol=1e-6)
    # The run keeps its modules if it is repeated with another config.init, and a run from an Orbax export has them.
    assert 'all 6 steps are done' in embed(program, trained, data, *changes)[1]
    np.testing.assert_array_equal(bertjax.load(workdir).encode(TEXTS), vectors)
    bert.save(tmp_path / 'orbax', format='orbax')
    embed(program, tmp_path / 'orbax', data, *changes, f'--workdir={tmp_path / "continued"}')
    np.testing.assert_allclose(bertjax.load(tmp_path / 'continued').encode(TEXTS), vectors, atol=2e-3)
    other = bert.with_params(jax.tree.map(lambda x: x * 1.1, bert.params))
    assert np.abs(other.encode(TEXTS) - vectors).max() > 1e-3
    other.save(tmp_path / 'other')
    np.testing.assert_allclose(bertjax.load(tmp_path / 'other').encode(TEXTS), other.encode(TEXTS), atol=1e-6)
    with pytest.raises(UserError, match='truncate_dim: found 7, expected at most 6'):
        bert.encode(TEXTS, truncate_dim=7)
    wide = ('--config.task.matryoshka_dims=(8,)', f'--config.init={start}', f'--config.data={data}')
    error = program.error(f'--workdir={tmp_path / "wide"}', *wide, recipe='configs/embed.py', small=False)
    assert 'matryoshka_dims: found (8,), expected at most 6, the width of the vectors' in error


@pytest.mark.slow
def test_sentence_transformers_and_dense_modules(program: Program, trained: pathlib.Path, tmp_path: pathlib.Path):
    """Their folder is read with either file of weights and is trained further, and they load what is written."""
    package = pytest.importorskip('sentence_transformers', reason='writes and reads the folders')
    import torch
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    functions = [torch.nn.SiLU, torch.nn.GELU, torch.nn.ReLU, torch.nn.Sigmoid, torch.nn.Identity, torch.nn.Tanh]
    dense = [Dense(32, 32, activation_function=function()) for function in functions]
    modules = [Pooling(32, 'cls'), *dense[:3], Normalize(), *dense[3:], Dense(32, 8, bias=False), Normalize()]
    peer = package.SentenceTransformer(modules=[Transformer(str(trained / 'export' / 'hf')), *modules], device='cpu')
    expected = peer.encode(TEXTS)
    for name, safe in (('safe', True), ('start', False)):
        peer.save(str(tmp_path / name), safe_serialization=safe)
        assert (tmp_path / name / '2_Dense' / 'pytorch_model.bin').exists() != safe
        np.testing.assert_allclose(bertjax.load(tmp_path / name).encode(TEXTS), expected, atol=1e-6)
    write_rows(tmp_path / 'data' / 'train.jsonl', pairs(16, 1))
    workdir, stdout = embed(program, tmp_path / 'start', tmp_path / 'data')
    assert 'newly initialized: nothing' in stdout
    bert = bertjax.load(workdir)
    assert np.abs(bert.encode(TEXTS) - expected).max() > 1e-4
    bert.save(tmp_path / 'saved')
    for folder in (workdir / 'export' / 'hf', tmp_path / 'saved'):
        loaded = package.SentenceTransformer(str(folder), device='cpu')
        np.testing.assert_allclose(loaded.encode(TEXTS), bert.encode(TEXTS), atol=1e-6)
