"""Tests reading a dataset of tensorflow-datasets, prepared as array_record without TensorFlow."""

import os

import pytest
from corpus_text import documents, ids_of, stored
from etils import epath

from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.store import open_store
from bertjax.corpus.texts import iter_texts
from bertjax.errors import UserError

DOCS = documents(12)


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    """Returns the directory of a prepared dataset of two text features, of which `body` has wiki40b's markers."""
    import tensorflow_datasets as tfds

    class Mills(tfds.core.GeneratorBasedBuilder):
        """Some documents."""

        name = 'mills'
        pkg_dir_path = epath.Path(__file__).parent  # tfds cannot infer it for a test.
        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            text = tfds.features.Text()
            features = tfds.features.FeaturesDict({'body': text, 'title': text, 'parts': tfds.features.Sequence(text)})
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager):
            return {'train': self._generate_examples()}

        def _generate_examples(self):
            for index, doc in enumerate(DOCS):
                body = '\n_START_ARTICLE_\nTitle\n_START_PARAGRAPH_\n' + '_NEWLINE_'.join(doc)
                yield index, {'body': body, 'title': f'Title {index}', 'parts': ['one', 'two']}

    builder = Mills(data_dir=str(tmp_path_factory.mktemp('tfds')), file_format='array_record')
    builder.download_and_prepare()
    return str(builder.data_dir)


def test_the_spec_names_the_feature(dataset, tmp_path, vocabulary, tokenizer):
    report = build_store(f'tfds:{dataset}@train#body', tmp_path / 'store', str(vocabulary), progress=False)
    assert stored(open_store(tmp_path / 'store')) == sorted(ids_of(DOCS, tokenizer))
    assert report['documents'] == len(DOCS)
    manifest = (tmp_path / 'store' / 'manifest.json').read_text()
    assert dataset not in manifest
    build_store(f'tfds:{os.path.relpath(dataset)}#body', tmp_path / 'other', str(vocabulary), progress=False)
    assert (tmp_path / 'other' / 'manifest.json').read_text() == manifest
    assert set(iter_texts(f'tfds:{dataset}#body')) == {sentence for doc in DOCS for sentence in doc}


def test_the_text_key_names_the_feature_too(dataset):
    assert next(iter_texts(f'tfds:{dataset}', CorpusOptions(text_key='title'))).startswith('Title ')


@pytest.mark.parametrize(
    ('spec', 'found', 'expected'),
    [
        ('{}', "no feature 'text'", 'body, title'),
        ('{}@dev#body', "no split 'dev'", 'train'),
        ('{}#bdoy', "no feature 'bdoy'", 'body, title'),
        ('{}#parts', "no feature 'parts' with one string", 'body, title'),
        ('/nowhere/at/all', 'cannot find', 'tfds:NAME'),
    ],
)
def test_missing_datasets_splits_and_features_are_errors(spec, found, expected, dataset):
    with pytest.raises(UserError) as caught:
        list(iter_texts('tfds:' + spec.format(dataset)))
    assert found in str(caught.value) and expected in str(caught.value)
