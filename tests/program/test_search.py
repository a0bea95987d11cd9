"""Similarity, search and reranking by the vectors of a model, or by the head of a cross-encoder."""

import pathlib
import shutil

import numpy as np
import pytest
from marks import slow
from running import Program

import bertjax
from bertjax.convert.huggingface.sentence_transformers import SentenceModules, module_files
from bertjax.errors import UserError

WORDS = ('river', 'stone', 'bird', 'light', 'house', 'field', 'wind', 'old', 'green', 'runs', 'falls')
DRAW = np.random.default_rng(0)
TEXTS = [' '.join(DRAW.choice(WORDS, 2 + i % 7)) for i in range(40)]
QUERIES = TEXTS[3:8]


@pytest.fixture(scope='module')
def folder(trained: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder of sentence-transformers with two prompts."""
    folder = shutil.copytree(trained / 'export' / 'hf', tmp_path_factory.mktemp('search') / 'model')
    prompts = {'query': 'the ', 'document': 'a '}
    for name, content in module_files(SentenceModules(16, prompts=prompts, normalize=True), 32, 2).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture(scope='module')
def bert(folder: pathlib.Path) -> bertjax.Bert:
    return bertjax.load(folder)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_shorter_vectors_have_length_1(bert):
    full = bert.encode(TEXTS)
    np.testing.assert_allclose(bert.encode(TEXTS, truncate_dim=8), unit(full[:, :8]), atol=1e-6)
    raw = bert.encode(TEXTS, normalize=False)
    np.testing.assert_array_equal(bert.encode(TEXTS, truncate_dim=8, normalize=False), raw[:, :8])
    assert [x.shape[1] for x in bert.encode(TEXTS[:2], pool=None, truncate_dim=8)] == [8, 8]
    with pytest.raises(UserError, match='truncate_dim: found 33, expected at most 32'):
        bert.encode(TEXTS, truncate_dim=33)


@pytest.mark.slow
def test_vectors_are_those_of_sentence_transformers(bert, folder):
    package = pytest.importorskip('sentence_transformers', reason='compares with sentence-transformers')
    theirs = package.SentenceTransformer(str(folder), device='cpu')
    own = bert.encode(TEXTS, truncate_dim=8)
    np.testing.assert_allclose(theirs.encode(TEXTS, truncate_dim=8, normalize_embeddings=True), own, atol=1e-6)
    found = bert.search(QUERIES, TEXTS, top_k=4)
    expected = package.util.semantic_search(theirs.encode_query(QUERIES), theirs.encode_document(TEXTS), top_k=4)
    for hits, others in zip(found, expected, strict=True):
        np.testing.assert_allclose([hit['score'] for hit in hits], [other['score'] for other in others], atol=1e-6)


def test_search_uses_the_prompts(bert):
    queries, documents = bert.encode(QUERIES, prompt='query'), bert.encode(TEXTS, prompt='document')
    # The prompts share a compiled function.
    assert {name[1].prompt for name, _, _ in bert._runner._predictors if name[0] == 'encode'} == {''}
    cosines = queries @ documents.T
    found = bert.search(QUERIES, TEXTS, top_k=4)
    for row, hits in zip(cosines, found, strict=True):
        np.testing.assert_allclose([hit['score'] for hit in hits], np.sort(row)[::-1][:4], atol=1e-6)
        assert all(hit['text'] == TEXTS[hit['index']] for hit in hits)
    (alone,) = bert.search(QUERIES[0], TEXTS, top_k=1)
    assert alone['text'] == found[0][0]['text'] and alone['score'] == pytest.approx(found[0][0]['score'], abs=1e-6)
    np.testing.assert_array_equal(bert.encode(TEXTS[:2], prompt='the '), bert.encode(TEXTS[:2], prompt='query'))
    with pytest.raises(UserError, match=r"prompt: found 'passage', .*, expected one of query, document, or a prefix"):
        bert.encode(TEXTS, prompt='passage')
    without = bert.search(queries, documents, top_k=4)
    assert without == [[{'index': hit['index'], 'score': hit['score']} for hit in hits] for hits in found]
    assert bert.search(QUERIES, documents, top_k=4) == without
    assert bert.search(queries[0], documents, top_k=1)[0]['index'] == without[0][0]['index']
    assert len(bert.search(QUERIES[0], TEXTS[:3])) == 3 and bert.search(QUERIES[:1], []) == [[]]
    assert bert.search(QUERIES[0], documents[0], np.int64(3)) == bert.search(QUERIES[0], documents[:1])
    for top_k in (0, True, 2.0):
        with pytest.raises(UserError, match=f'top_k: found {top_k}, expected a whole number from 1 to'):
            bert.search(QUERIES[0], documents, top_k)


@pytest.mark.parametrize('precision', ['int8', *slow('float32', 'binary')])
def test_a_query_gets_the_form_of_the_vectors(bert, precision):
    documents = bert.encode(TEXTS, prompt='document', precision=precision, truncate_dim=16)
    options = {'calibration': bert.encode(TEXTS, prompt='document', truncate_dim=16)} if precision == 'int8' else {}
    queries = bert.encode(QUERIES, prompt='query', precision=precision, truncate_dim=16, **options)
    found = bert.search(queries, documents, top_k=3)
    blank = np.full_like(queries[:1], np.nan if precision == 'float32' else 0)
    assert bert.search(np.concatenate([blank, queries]), documents, top_k=3) == [[], *found]
    similar = bert.similarity(queries, documents)
    np.testing.assert_allclose(
        [[hit['score'] for hit in hits] for hits in found], np.sort(similar, axis=1)[:, ::-1][:, :3], atol=1e-6
    )
    if precision == 'int8':
        with pytest.raises(UserError, match='calibration: found None, with int8 vectors'):
            bert.search(QUERIES, documents)
        # With the calibration they stand for values that are near those of float32.
        exact = bert.similarity(bert.encode(QUERIES, prompt='query'), bert.encode(TEXTS, prompt='document'))
        full = bert.encode(TEXTS, prompt='document')
        coded = bert.encode(TEXTS, prompt='document', precision='int8')
        near = bert.similarity(bert.encode(QUERIES, prompt='query'), coded, calibration=full)
        np.testing.assert_allclose(near, exact, atol=2e-4)
        assert np.abs(near - exact).max() < 0.1 * np.abs(near - exact.mean()).max()
        found = bert.search(QUERIES, coded, top_k=40, calibration=full)
        for hits, row in zip(found, near, strict=True):
            np.testing.assert_allclose([hit['score'] for hit in hits], np.sort(row)[::-1], atol=1e-6)
        with pytest.raises(
            UserError, match=r'calibration: found float32 \[40, 32\], expected float32 \[2 or more, 16\]'
        ):
            bert.search(QUERIES, documents, calibration=full)
    else:
        assert bert.search(QUERIES, documents, top_k=3) == found


def test_similarity_of_texts_and_vectors(bert):
    vectors = bert.encode(TEXTS[:4])
    np.testing.assert_allclose(bert.similarity(TEXTS[:4], TEXTS[4:6]), vectors @ bert.encode(TEXTS[4:6]).T, atol=1e-6)
    np.testing.assert_allclose(bert.similarity(TEXTS[1], vectors), vectors[1] @ vectors.T, atol=1e-6)
    assert bert.similarity(TEXTS[1], TEXTS[2]) == pytest.approx(float(vectors[1] @ vectors[2]), abs=1e-6)
    with pytest.raises(UserError, match='found float32 vectors of width 32 and float32 vectors of width 5'):
        bert.similarity(vectors[:, :5], vectors)
    with pytest.raises(
        UserError, match="vectors: found width 33, expected at most 32, the width of the model's vectors; encode"
    ):
        bert.similarity('a', np.zeros((2, 33), np.float32))
    with pytest.raises(UserError, match='expected a text or a list of texts'):
        bert.similarity(np.array(3.0), 'a')
    with pytest.raises(UserError, match='the same precision and width'):
        bert.similarity(vectors, bert.encode(TEXTS[:4], precision='int8'))
    with pytest.raises(UserError, match='expected a text or a list of texts'):
        bert.similarity('a', np.array(0.5, np.float32))
    for name, call in {
        'a': lambda: bert.similarity(None, 'a'),
        r'a\[0\]': lambda: bert.similarity([[1.0] * 32], 'a'),
        'b': lambda: bert.similarity('a', None),
        r'queries\[1\]': lambda: bert.search(['a', 3], TEXTS),
        r'corpus\[0\]': lambda: bert.search('a', [vectors[0]]),
    }.items():
        with pytest.raises(UserError, match=f'^{name}: found .*, expected a text.*; pass texts, or vectors as'):
            call()


def test_int8_of_one_text_needs_a_calibration(bert):
    vectors = bert.encode(TEXTS)
    many = bert.encode(TEXTS, precision='int8')
    np.testing.assert_array_equal(bert.encode(TEXTS[5], precision='int8', calibration=vectors), many[5])
    with pytest.raises(UserError, match="calibration: found nothing for a single vector with precision='int8'"):
        bert.encode(TEXTS[5], precision='int8')
    with pytest.raises(UserError, match=r'calibration: found int8 \[40, 32\]'):
        bert.encode(TEXTS[5], precision='int8', calibration=many)
    with pytest.raises(UserError, match="calibration: found an array with precision='binary'"):
        bert.encode(TEXTS, precision='binary', calibration=vectors)
    assert bert.encode([], precision='int8').shape == (0, 32)
    with pytest.raises(UserError, match="precision: found 'int8' for one vector per token"):
        bert.encode(TEXTS, pool=None, precision='int8')


def test_a_calibration_needs_finite_ranges(bert):
    vectors = bert.encode(TEXTS)
    blank = np.full_like(vectors[:1], np.nan)  # the vector of an absent text
    known = np.concatenate([blank, vectors])
    coded = bert.encode(QUERIES, precision='int8', calibration=known)
    np.testing.assert_array_equal(coded, bert.encode(QUERIES, precision='int8', calibration=vectors))
    for i, value in ((3, np.nan), (4, np.inf)):
        wrong = np.where(np.arange(32) == i, np.float32(value), vectors)
        message = f'^calibration: found values from {value} to {value} in dimension {i}, expected finite'
        with pytest.raises(UserError, match=message):
            bert.encode(TEXTS, precision='int8', calibration=wrong)
        with pytest.raises(UserError, match=message):
            bert.similarity(coded, coded, calibration=wrong)


def test_a_file_of_vectors_is_searched(bert, folder, extract, tmp_path):
    (tmp_path / 'in.txt').write_text('\n'.join(TEXTS))
    options = (
        '--config.extract.prompt=document',
        '--config.extract.precision=int8',
        '--config.extract.truncate_dim=16',
        '--config.extract.layers=2',  # the last layer, which is also -1
    )
    extract(tmp_path / 'in.txt', f'--config.init={folder}', '--config.extract.shard=15', *options)
    vectors = bertjax.load_vectors(tmp_path / 'features' / 'in.npy.json')
    assert vectors.shape == (40, 16) and vectors.dtype == np.int8
    documents = bert.encode(TEXTS, prompt='document', truncate_dim=16)
    own = bert.encode(TEXTS, prompt='document', truncate_dim=16, precision='int8')
    assert np.abs(np.asarray(vectors).astype(int) - own).max() <= 1
    queries = bert.encode(QUERIES, prompt='query', truncate_dim=16)
    scores = [[hit['score'] for hit in hits] for hits in bert.search(QUERIES, vectors, top_k=3)]
    expected = np.sort(queries @ documents.T, axis=1)[:, ::-1][:, :3]
    np.testing.assert_allclose(scores, expected, atol=1e-3)
    extract(tmp_path / 'in.txt', f'--config.init={folder}', '--config.extract.pool=cls', '--config.extract.layers=1')
    vectors = bertjax.load_vectors(tmp_path / 'features' / 'in.npy.json')
    message = (
        r"vectors: found a file with layers=\[1\], pool='cls', expected layers=\[2\], pool='mean', the model's own"
    )
    calls = ((bert.search, QUERIES, vectors), (bert.search, vectors, TEXTS), (bert.similarity, TEXTS[0], vectors))
    for compare, *sides in calls:
        with pytest.raises(UserError, match=message):
            compare(*sides)
    queries = bert.encode(QUERIES, pool='cls', layers=1)
    np.testing.assert_allclose([hits[0]['score'] for hits in bert.search(queries, vectors, top_k=1)], 1, atol=1e-6)


@pytest.mark.slow
def test_files_of_int8_vectors_with_other_ranges_are_compared(bert, folder, extract, tmp_path):
    texts = {'a': TEXTS[:15], 'b': TEXTS[15:]}
    for name, lines in texts.items():
        (tmp_path / f'{name}.txt').write_text('\n'.join(lines))
        extract(tmp_path / f'{name}.txt', f'--config.init={folder}', '--config.extract.precision=int8')
    a, b = (bertjax.load_vectors(tmp_path / 'features' / f'{name}.npy.json') for name in texts)
    assert not np.array_equal(a.ranges, b.ranges)
    expected = bert.encode(texts['a']) @ bert.encode(texts['b']).T
    np.testing.assert_allclose(bert.similarity(a, b), expected, atol=2e-3)
    found = [[hit['score'] for hit in hits] for hits in bert.search(a, b, top_k=3)]
    np.testing.assert_allclose(found, np.sort(expected, axis=1)[:, ::-1][:, :3], atol=2e-3)
    one = bert.similarity(a, TEXTS[0])
    np.testing.assert_array_equal(bert.similarity(a, TEXTS[0], calibration=b.ranges), one)  # a file has its own ranges


def test_rerank_by_cosine(bert):
    hits = bert.rerank(QUERIES[0], TEXTS)
    assert hits == bert.search(QUERIES[0], TEXTS, top_k=40)
    assert sorted(hit['index'] for hit in hits) == [*range(40)] and bert.rerank('a', []) == []
    with pytest.raises(UserError, match='query: found 2 texts, expected one text'):
        bert.rerank(QUERIES[:2], TEXTS)


def test_rerank_with_a_head_of_another_kind(tuned):
    with pytest.raises(UserError, match='found a model for labels of texts, expected a model that scores pairs'):
        bertjax.load(tuned).rerank('a', ['b'])


@pytest.mark.slow
def test_rerank_with_a_cross_encoder_of_transformers(trained, tmp_path):
    torch = pytest.importorskip('torch', reason='compares with PyTorch')
    transformers = pytest.importorskip('transformers', reason='writes the model')
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / 'export' / 'hf')
    model = transformers.BertForSequenceClassification.from_pretrained(trained / 'export' / 'hf', num_labels=1).eval()
    torch.nn.init.normal_(model.classifier.weight)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path)
    inputs = tokenizer([QUERIES[0]] * len(TEXTS), TEXTS, padding=True, return_tensors='pt')
    with torch.no_grad():
        logits = model(**inputs).logits[:, 0].numpy()
    hits = bertjax.load(tmp_path).rerank(QUERIES[0], TEXTS)
    np.testing.assert_allclose([hit['score'] for hit in hits], np.sort(logits)[::-1], atol=1e-5)
    np.testing.assert_allclose([logits[hit['index']] for hit in hits], [hit['score'] for hit in hits], atol=1e-5)


@pytest.mark.slow
def test_a_pre_training_names_the_modules_that_its_export_will_lack(
    program: Program, folder: pathlib.Path, tmp_path: pathlib.Path
):
    flags = (f'--workdir={tmp_path}', f'--config.init={folder}', '--config.steps=1', '--config.eval_every=0')
    out = program.run(*flags).stdout
    assert 'the export will not have the modules of sentence-transformers (' in out
    assert "pool='mean'" in out and 'set config.task.pool=mean to train embeddings later' in out
