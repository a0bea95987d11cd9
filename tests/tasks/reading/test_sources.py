"""Tests reading datasets of tensorflow-datasets, prepared as array_record without TensorFlow."""

import numpy as np
import pytest
from text_world import learned

from bertjax.errors import UserError
from bertjax.tasks.sentence.classification import ClassificationTask


@pytest.fixture(scope='module')
def reviews(tmp_path_factory) -> str:
    """Returns the directory of a dataset with a train and a test split."""
    import tensorflow_datasets as tfds
    from etils import epath

    class Reviews(tfds.core.GeneratorBasedBuilder):
        """Some reviews."""

        name = 'reviews'
        pkg_dir_path = epath.Path(__file__).parent
        VERSION = tfds.core.Version('1.0.0')

        def _info(self):
            label = tfds.features.ClassLabel(names=['neg', 'pos'])
            features = {'text': tfds.features.Text(), 'label': label, 'stars': np.int64, 'cost': np.float32}
            features['words'] = tfds.features.Sequence(tfds.features.Text())
            return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {'train': self._generate_examples(40), 'test': self._generate_examples(4)}

        def _generate_examples(self, count):
            for i in range(count):
                row = {'text': f'é {i}', 'label': i % 2, 'stars': i % 5, 'cost': i / 10, 'words': ['a', str(i)]}
                yield i, row

    builder = Reviews(data_dir=str(tmp_path_factory.mktemp('tfds')), file_format='array_record')
    builder.download_and_prepare()
    return str(builder.data_dir)


def test_a_dataset_of_tensorflow_datasets_is_read(reviews):
    task = learned('', dataset=reviews)
    assert task.labels == ['neg', 'pos'] and list(task.splits()) == ['train', 'dev', 'test']
    assert len(task.records('train')) + len(task.records('dev')) == 40
    records = {(record.first, record.label) for record in task.records('test')}
    assert records == {(f'é {i}', ('neg', 'pos')[i % 2]) for i in range(4)}
    words = learned('', dataset=reviews, text_a='words', label='stars')
    assert words.labels == ['0', '1', '2', '3', '4'] and words.records('test')[0].first.startswith('a ')
    costs = learned('', dataset=reviews, label='cost', regression=True, dev='test')
    assert {record.label for record in costs.records('dev')} == {0.0, 0.1, 0.2, 0.3}


def test_missing_features_splits_and_datasets_are_errors(reviews):
    with pytest.raises(UserError, match=r'the fields .*text'):
        ClassificationTask('', 32, dataset=reviews, text_a='txet').records('train')
    with pytest.raises(UserError, match="no split 'dev2'"):
        ClassificationTask('', 32, dataset=reviews, dev='dev2').records('dev')
    with pytest.raises(UserError, match='cannot find'):
        ClassificationTask('', 32, dataset='no_such_dataset').records('train')
