"""Folders of the original ColBERT: a BERT and a projection in one checkpoint, and artifact.metadata."""

import json
import pathlib
import shutil

import numpy as np
import pytest
from embedding_runs import sentences, write_rows
from running import Program
from safetensors.numpy import load_file, save_file
from test_colbert_run import RECIPE, assert_equal_cosines, colbert
from test_rerank_run import lists, scores

import bertjax
from bertjax.convert.huggingface import multi_vector
from bertjax.convert.huggingface.multi_vector import PROJECTION, PUNCTUATION, MultiVector, read_multi_vector
from bertjax.convert.load import read_source
from bertjax.errors import UserError
from bertjax.loading.load_model import load_model
from bertjax.tasks.embedding.files import TextExample

METADATA = {'dim': 16, 'query_maxlen': 12, 'doc_maxlen': 24, 'mask_punctuation': True, 'similarity': 'cosine',
            'query_token_id': '[unused0]', 'doc_token_id': '[unused1]', 'attend_to_mask_tokens': False}  # fmt: skip
QUERIES, TEXTS = [*sentences(5, 8), 'bird'], [*sentences(5, 9), ', '.join(sentences(12, 9))]  # the last is too long


@pytest.fixture
def stanford(trained: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder as stanford-futuredata/ColBERT saves it, whose vocabulary has the two markers."""
    source, folder, draw = trained / 'export' / 'hf', tmp_path / 'stanford', np.random.default_rng(0)
    folder.mkdir()
    tensors = load_file(source / 'model.safetensors')
    tensors = {name: x for name, x in tensors.items() if name.startswith('bert.')}
    tensors |= {'linear.weight': draw.standard_normal((16, 32)).astype(np.float32)}
    save_file(tensors, folder / 'model.safetensors', {'format': 'pt'})
    config = json.loads((source / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, 'architectures': ['HF_ColBERT']}))
    vocabulary = (source / 'vocab.txt').read_text().splitlines()
    vocabulary[-2:] = METADATA['query_token_id'], METADATA['doc_token_id']
    (folder / 'vocab.txt').write_text('\n'.join(vocabulary) + '\n')
    (folder / 'tokenizer_config.json').write_text(
        json.dumps({'tokenizer_class': 'BertTokenizer', 'do_lower_case': True})
    )
    (folder / 'artifact.metadata').write_text(json.dumps(METADATA))
    return folder


@pytest.mark.slow
def test_a_folder_is_scored_saved_and_trained(program: Program, stanford: pathlib.Path, tmp_path: pathlib.Path):
    bert = bertjax.load(stanford)
    assert 'newly initialized: nothing' in bert._model.summary and 'linear.weight' not in bert._model.summary
    found = scores(bert, QUERIES, TEXTS)
    projection = load_file(stanford / 'model.safetensors')['linear.weight']
    np.testing.assert_array_equal(bert.params['head']['kernel'], projection.T)
    bert.save(tmp_path / 'saved')
    assert not (tmp_path / 'saved' / 'artifact.metadata').exists()
    np.testing.assert_allclose(scores(bertjax.load(tmp_path / 'saved'), QUERIES, TEXTS), found, rtol=1e-6)
    data = tmp_path / 'run' / 'data'
    write_rows(data / 'train.jsonl', lists(16, 1))
    write_rows(data / 'test.jsonl', [{'text_a': QUERIES[0], 'text_b': TEXTS[0], 'score': 1}])
    _, stdout = colbert(program, stanford, data, '--config.steps=1')
    assert 'newly initialized: nothing' in stdout
    flags = (f'--workdir={tmp_path / "other"}', f'--config.init={stanford}', f'--config.data={data}')
    error = program.error(*flags, recipe=RECIPE, small=False)
    assert 'config.task.query_len: found 32 for' in error and 'expected 12, as in that model' in error


def test_settings_are_read_or_refused(stanford: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as once:
        once.delattr(multi_vector, 'read_tensors')  # the projection is read with the other tensors
        projection = read_source(stanford).tensors[PROJECTION].values
    np.testing.assert_array_equal(projection, load_file(stanford / 'model.safetensors')['linear.weight'])
    expected = MultiVector('[unused0] ', '[unused1] ', 12, 24, True, False, PUNCTUATION)
    assert read_multi_vector(stanford, 64) == expected
    metadata = stanford / 'artifact.metadata'
    for changes, message in (
        ({'similarity': 'l2'}, "artifact.metadata: found similarity 'l2', expected 'cosine'"),
        ({'interaction': 'flipr'}, "artifact.metadata: found interaction 'flipr', expected 'colbert'"),
        ({'doc_maxlen': '180'}, "found doc_maxlen '180', expected a number of tokens, at least 4; correct the number"),
    ):
        metadata.write_text(json.dumps({**METADATA, **changes}))
        with pytest.raises(UserError, match=message):
            bertjax.load(stanford)
    metadata.unlink()
    assert read_multi_vector(stanford, 512) == MultiVector(
        '[unused0] ', '[unused1] ', 32, 220, True, False, PUNCTUATION
    )
    tensors = load_file(stanford / 'model.safetensors')
    save_file({name: x for name, x in tensors.items() if name != 'linear.weight'}, stanford / 'model.safetensors')
    with pytest.raises(UserError, match=r'found no matrix linear\.weight, expected the projection of HF_ColBERT'):
        bertjax.load(stanford)


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, {'attend_to_mask_tokens': True, 'mask_punctuation': False}])
def test_vectors_agree_with_sentence_transformers(stanford: pathlib.Path, tmp_path: pathlib.Path, changes: dict):
    package = pytest.importorskip('sentence_transformers', reason='reads the folder')
    import torch

    (stanford / 'artifact.metadata').write_text(json.dumps({**METADATA, **changes}))
    tensors = {name: torch.tensor(x) for name, x in load_file(stanford / 'model.safetensors').items()}
    older = shutil.copytree(stanford, tmp_path / 'older')  # as colbert-ir/colbertv2.0 was first published
    (older / 'model.safetensors').unlink()
    torch.save(tensors, older / 'pytorch_model.bin')
    theirs = package.MultiVectorEncoder(str(stanford), device='cpu')
    encoded = theirs.encode_query(QUERIES), theirs.encode_document(TEXTS)
    for folder in (stanford, older):
        assert_equal_cosines(scores(bertjax.load(folder), QUERIES, TEXTS), theirs.similarity_pairwise(*encoded).numpy())
    model = load_model(stanford)
    records = [TextExample('scored', pair, None) for pair in zip(QUERIES, TEXTS, strict=True)]
    features = model.task.features(records, model.tokenizer, training=False)
    batch = features.batch(np.arange(12), 24, model.tokenizer.pad_id)
    inputs = [batch[name] for name in model.task.objective.inputs]
    vectors = np.asarray(model.module.apply({'params': model.params}, *inputs)['token_vectors'])
    for mine, peer in zip(vectors, [*encoded[0], *encoded[1]], strict=True):
        np.testing.assert_allclose(mine[(mine != 0).any(-1)], peer, rtol=0, atol=1e-6)
    bertjax.load(older).save(tmp_path / 'saved')  # as a folder of sentence-transformers
    saved = package.MultiVectorEncoder(str(tmp_path / 'saved'), device='cpu')
    again = saved.similarity_pairwise(saved.encode_query(QUERIES), saved.encode_document(TEXTS)).numpy()
    assert_equal_cosines(again, scores(bertjax.load(older), QUERIES, TEXTS))
