"""The exports of embedding models: the same vectors in sentence-transformers, ONNX and StableHLO."""

import dataclasses
import importlib.util
import json
import pathlib
import shutil
from collections.abc import Callable

import numpy as np
import pytest
from embedding_runs import SHORT, embed, pairs, sentences, unit, write_rows
from running import Program, rows

import bertjax
from bertjax.convert.content import ExportContent
from bertjax.convert.huggingface.save import export_huggingface
from bertjax.convert.load import read_config
from bertjax.model.bert import BertForPreTraining
from bertjax.model.stacking import init_params
from bertjax.text.tokenizer import load_tokenizer

ENDS = [('the bird sings.', 'a bird runs.'), ('the stone falls.', 'the wind.'), ('slow river', 'old river')]
PROMPT = '--config.task.query_prompt=the '
LAST_FOUR = ('--config.task.layers=mean_last_four', '--config.task.normalize=False')


@pytest.fixture(scope='module')
def deep(once: Callable, trained: pathlib.Path, draw_params: Callable) -> pathlib.Path:
    """A folder with an encoder of five random layers."""
    source = trained / 'export' / 'hf'

    def fill(folder: pathlib.Path) -> None:
        module = BertForPreTraining(dataclasses.replace(read_config(source), num_layers=5))
        params = draw_params(lambda key: init_params(module, key))
        export_huggingface(ExportContent(module, params, load_tokenizer(source)), folder / 'hf')

    return once('deep', fill) / 'hf'


@pytest.fixture(scope='module')
def exported(once: Callable, program: Program, trained: pathlib.Path, deep: pathlib.Path) -> Callable:
    """exported('cls' or 'last_four') -> the workdir of a run with all exports; do not write into it."""
    onnx = ',onnx' if importlib.util.find_spec('jax2onnx') else ''

    def train(name: str) -> pathlib.Path:
        start, changes = (trained, ('--config.task.pool=cls', PROMPT)) if name == 'cls' else (deep, LAST_FOUR)

        def fill(folder: pathlib.Path) -> None:
            write_rows(folder / 'data' / 'train.jsonl', pairs(16, 1))
            if name == 'last_four':
                write_rows(folder / 'data' / 'dev.jsonl', pairs(8, 2))
            formats = (f'--config.export_formats=hf,stablehlo{onnx}', '--config.steps=2')
            embed(program, start, folder / 'data', *formats, *changes)

        return once(f'embed_{name}', fill) / 'run'

    return train


@pytest.mark.slow
def test_the_export_is_read_by_sentence_transformers(
    program: Program, trained: pathlib.Path, exported: Callable, tmp_path: pathlib.Path
):
    package = pytest.importorskip('sentence_transformers', reason='loads the export')
    texts = [*sentences(5, 8), 'bird', ' '.join(sentences(12, 9))]  # the last is longer than 24 tokens
    write_rows(tmp_path / 'mean' / 'data' / 'train.jsonl', pairs(16, 1))
    mean = ('--config.task.pool=mean', '--config.task.normalize=False', '--config.steps=2', PROMPT)
    plain, _ = embed(program, trained, tmp_path / 'mean' / 'data', *mean)
    for pool, normalized, workdir in (('mean', False, plain), ('cls', True, exported('cls'))):
        bert, saved = bertjax.load(workdir), tmp_path / pool / 'saved'
        bertjax.load(workdir, step=2).save(saved)
        for folder in (workdir / 'export' / 'hf', saved):
            theirs = package.SentenceTransformer(str(folder), device='cpu')
            assert json.loads((folder / 'tokenizer_config.json').read_text())['model_max_length'] == 24
            kinds = [type(module).__name__ for module in theirs]
            assert kinds == ['Transformer', 'Pooling', *['Normalize'][: int(normalized)]]
            np.testing.assert_allclose(theirs.encode(texts), bert.encode(texts), atol=1e-6)
            query = bert.encode(texts, prompt='query')
            np.testing.assert_allclose(theirs.encode_query(texts), query, atol=1e-6)
            np.testing.assert_array_equal(query, bert.encode([f'the {text}' for text in texts]))
            np.testing.assert_array_equal(bert.encode(texts, prompt='document'), bert.encode(texts))
        # A run can start from a folder of sentence-transformers and adopts its pooling.
        theirs.save(str(tmp_path / pool / 'theirs'))
        data = tmp_path / pool / 'again' / 'data'
        write_rows(data / 'test.jsonl', [{'text_a': a, 'text_b': b, 'score': i} for i, (a, b) in enumerate(ENDS)])
        scored = ('--config.run=evaluate', '--config.split=test')
        again, _ = embed(program, tmp_path / pool / 'theirs', data, *scored)
        similar = [row['similarity'] for row in rows(again / 'predictions' / 'test.jsonl')]
        vectors = [unit(theirs.encode([pair[i] for pair in ENDS])) for i in (0, 1)]
        np.testing.assert_allclose(similar, (vectors[0] * vectors[1]).sum(-1), atol=1e-6)


@pytest.mark.slow
def test_the_mean_of_the_last_four_layers(program: Program, trained, exported: Callable, tmp_path: pathlib.Path):
    """The vectors are the same in training, after loading, and in sentence-transformers."""
    workdir = exported('last_four')
    bert, texts = bertjax.load(workdir), sentences(7, 3)
    vectors = bert.encode(texts)
    by_hand = bert.encode(texts, layers=(-4, -3, -2, -1), pool='mean')
    np.testing.assert_allclose(vectors, by_hand, atol=1e-6)
    assert not np.allclose(vectors, bert.encode(texts, pool='mean'), atol=1e-3)
    with pytest.raises(bertjax.UserError, match=r"combine: found 'concat', .*; omit it, or also give the layers"):
        bert.encode(texts, combine='concat')
    applied = bert.apply(bert.params, bert.batch(texts))['embeddings']
    np.testing.assert_allclose(vectors, applied, atol=1e-6)
    found = rows(workdir / 'predictions' / 'dev.jsonl')[0]
    scores = [document['score'] for document in found['documents']]
    corpus = [text for pair in pairs(8, 2) for text in (pair['positive'], *_as_list(pair.get('negative', [])))]
    hits = bert.search(found['text'], list(dict.fromkeys(corpus)), top_k=len(scores))
    np.testing.assert_allclose([hit['score'] for hit in hits], scores, atol=1e-5)
    package = pytest.importorskip('sentence_transformers', reason='reads the export')
    theirs = package.SentenceTransformer(str(workdir / 'export' / 'hf'), device='cpu')
    assert [type(module).__name__ for module in theirs] == ['Transformer', 'WeightedLayerPooling', 'Pooling']
    np.testing.assert_allclose(theirs.encode(texts), vectors, atol=1e-6)
    # A folder of theirs with other weights.
    theirs[1].layer_weights.data *= theirs[1].layer_weights.data.cumsum(0)  # 1, 2, 3, 4
    theirs.save(str(tmp_path / 'theirs'))
    np.testing.assert_allclose(bertjax.load(tmp_path / 'theirs').encode(texts), theirs.encode(texts), atol=1e-6)
    arguments = (f'--workdir={tmp_path / "other"}', f'--config.data={workdir.parent / "data"}', *SHORT)
    for init, message in ((tmp_path / 'theirs', 'the layers (-4, -3, -2, -1)'), (trained, 'at least 4 layers')):
        options = {'recipe': 'configs/embed.py', 'small': False}
        assert message in program.error(*arguments, f'--config.init={init}', LAST_FOUR[0], **options)


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@pytest.mark.slow
@pytest.mark.parametrize('name', ['cls', 'last_four'])
def test_exports_compute_the_vectors(exported: Callable, tmp_path: pathlib.Path, name: str):
    """ONNX and StableHLO give the vectors of `encode`, for a trained task and a folder of sentence-transformers."""
    pytest.importorskip('jax2onnx', reason='the extra onnx is not installed')
    onnxruntime = pytest.importorskip('onnxruntime', reason='the extra onnx is not installed')
    from jax import export
    from safetensors.numpy import load_file

    trained_task = shutil.copytree(exported(name) / 'export', tmp_path / 'export')
    (trained_task / 'hf' / 'task.json').unlink()  # sentence-transformers' files are left
    settings = trained_task / 'hf' / 'config_sentence_transformers.json'
    full = bertjax.load(trained_task / 'hf').encode(sentences(7, 3))
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {'truncate_dim': 5}))
    plain = bertjax.load(trained_task / 'hf')
    assert plain.task is None
    np.testing.assert_allclose(plain.encode(sentences(7, 3)), full[:, :5], atol=1e-6)
    for format in ('onnx', 'stablehlo'):
        (tmp_path / 'plain').mkdir(exist_ok=True)
        plain.save(tmp_path / 'plain' / format, format=format)
    batch = plain.batch(sentences(7, 3))
    for folder, expected in ((trained_task, full), (tmp_path / 'plain', full[:, :5])):
        session = onnxruntime.InferenceSession(str(folder / 'onnx' / 'embeddings.onnx'))
        names = [entry.name for entry in session.get_inputs()]
        (vectors,) = session.run(['embeddings'], {name: batch[name] for name in names})
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
        function = export.deserialize(bytearray((folder / 'stablehlo' / 'embeddings.jax_export').read_bytes()))
        weights = load_file(folder / 'stablehlo' / 'weights.safetensors')
        inputs = [batch[name] for name in ('input_ids', 'segment_ids', 'attention_mask')]
        np.testing.assert_allclose(function.call(weights, *inputs)['embeddings'], expected, atol=1e-5)
    assert not (trained_task / 'onnx' / 'task.onnx').exists()
    assert (tmp_path / 'plain' / 'onnx' / 'encoder.onnx').exists()
