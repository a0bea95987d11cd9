"""Tests reading a store, and errors about unusable stores."""

import json
import shutil

import numpy as np
import pytest
from corpus_text import as_text, documents, ids_of

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.errors import UserError
from bertjax.text.bert_settings import bert_settings
from bertjax.text.wordpiece import WordPieceTokenizer

DOCS = documents(300)


@pytest.fixture(scope='module')
def built(tmp_path_factory, vocabulary):
    folder = tmp_path_factory.mktemp('built')
    (folder / 'a.txt').write_bytes(as_text(DOCS))
    build_store(str(folder / 'a.txt'), folder / 'store', str(vocabulary), CorpusOptions(heldout=0.2), progress=False)
    return folder / 'store'


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / 'store')


def test_offsets_and_tokens_are_read_as_written(built, tokenizer):
    store = open_store(built, tokenizer_fingerprint=tokenizer.fingerprint)
    expected = ids_of(DOCS, tokenizer)
    for name in ('train', 'heldout'):
        split = store.split(name)
        assert split.sentence_offsets.dtype == np.int64 and split.sentence_offsets[0] == 0
        assert split.sentence_offsets[-1] == split.num_tokens
        assert split.document_offsets[-1] == split.num_sentences
        assert len(split.document_offsets) == split.num_documents + 1
        for index in range(split.num_documents):
            a, b = split.sentence_offsets[split.document_offsets[index : index + 2]]
            ids = split.tokens(int(a), int(b - a))
            assert ids.dtype == np.uint16
            assert [part.tolist() for part in split.document(index)] in expected
            assert ids.tolist() == [id for part in split.document(index) for id in part]
        for start, length in ((-1, 2), (0, split.num_tokens + 1), (split.num_tokens, 1)):
            with pytest.raises(IndexError):
                split.tokens(start, length)
        assert len(split.tokens(split.num_tokens, 0)) == 0
    assert store.split('train').sha != store.split('heldout').sha


def test_the_fingerprint_depends_on_the_content_only(built, tmp_path, vocabulary):
    for index, docs in enumerate((DOCS, DOCS[:-1])):
        (tmp_path / 'a.txt').write_bytes(as_text(docs))
        store = tmp_path / str(index)
        build_store(str(tmp_path / 'a.txt'), store, str(vocabulary), CorpusOptions(heldout=0.2), progress=False)
        assert (open_store(store).fingerprint == open_store(built).fingerprint) == (docs is DOCS)


def test_another_tokenizer_is_refused(built, tokenizer):
    other = WordPieceTokenizer(bert_settings(tokenizer.pieces, lowercase=False)).fingerprint
    with pytest.raises(UserError) as caught:
        open_store(built, tokenizer_fingerprint=other)
    assert other in str(caught.value) and tokenizer.fingerprint in str(caught.value)


@pytest.mark.parametrize(
    'name', ['train-00000.tokens', 'heldout-00000.tokens', 'train.sentences', 'heldout.documents', 'manifest.json']
)
@pytest.mark.parametrize('damage', ['flip', 'cut', 'longer', 'gone'])
def test_a_damaged_file_is_refused_by_name(damage, name, copy):
    path = copy / name
    data = bytearray(path.read_bytes())
    if damage == 'flip':
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
    elif damage == 'cut':
        path.write_bytes(data[:-2])
    elif damage == 'longer':
        path.write_bytes(data + b'12')
    else:
        path.unlink()
    with pytest.raises(UserError) as caught:
        open_store(copy)
    assert name in str(caught.value)
    if name != 'manifest.json' and damage == 'flip':
        assert open_store(copy, verify=False)


def test_another_version_is_refused(copy):
    manifest = json.loads((copy / 'manifest.json').read_text())
    (copy / 'manifest.json').write_text(json.dumps({**manifest, 'version': 99}))
    with pytest.raises(UserError, match='version 99'):
        open_store(copy)


@pytest.mark.parametrize('content', ['{"name": "my-package"}', '[1]', 'no json', ''])
def test_a_foreign_manifest_is_refused(content, tmp_path):
    (tmp_path / 'manifest.json').write_text(content)
    with pytest.raises(UserError, match=r'manifest\.json'):
        open_store(tmp_path)


def test_a_missing_store_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r'no manifest\.json'):
        open_store(tmp_path)
    (tmp_path / 'partial').mkdir()
    with pytest.raises(UserError, match='unfinished build'):
        open_store(tmp_path)
