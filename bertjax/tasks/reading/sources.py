"""Reads prepared datasets of tensorflow-datasets by index, without TensorFlow."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bertjax.files.tfds import Dataset
from bertjax.tasks.reading.arrow import UNLABELED, shorten_float32
from bertjax.tasks.reading.layout import Record


class DatasetSplit(NamedTuple):
    """A split of a prepared dataset: the name or directory of the dataset, and the name of the split."""

    dataset: str
    name: str


def dataset_splits(name: str) -> dict[str, int]:
    """Returns {split: number of records} of a prepared dataset. `name` may also be its directory.

    Raises:
      UserError: The dataset does not exist, or is not prepared on this machine.
    """
    return {split: info.num_examples for split, info in _dataset(name).builder.info.splits.items()}


def read_dataset(name: str, split: str) -> Iterator[Record]:
    """Yields the records ('name@split:index', fields) of a split such as 'validation', in order.

    Values are converted to Python types. A class label becomes its name, or None if the record is unlabeled.

    Raises:
      UserError: The dataset or the split does not exist, or its records cannot be read by index.
    """
    dataset = _dataset(name)
    source, features = dataset.split(split), dataset.builder.info.features
    for index in range(len(source)):
        yield Record(f'{name}@{split}:{index}', _plain(source[index], features))


def _dataset(name: str) -> Dataset:
    expected = 'the name or directory of a dataset'
    return Dataset(name, where='config.data', value=name, expected=expected, otherwise=', or give files')


def _plain(value: Any, feature: Any) -> Any:
    """Converts a value of tensorflow-datasets to Python types."""
    import tensorflow_datasets as tfds

    if isinstance(feature, tfds.features.Sequence):
        inner = feature.feature
        if isinstance(value, dict):  # tensorflow-datasets stores a sequence of dicts as a dict of sequences
            return {key: [_plain(item, inner[key]) for item in items] for key, items in value.items()}
        return [_plain(item, inner) for item in value]
    if isinstance(feature, tfds.features.FeaturesDict):
        return {key: _plain(value[key], feature[key]) for key in feature}
    if isinstance(feature, tfds.features.ClassLabel):
        return None if value == UNLABELED else feature.int2str(int(value))
    if isinstance(value, bytes):
        return value.decode('utf-8')
    if isinstance(value, float | np.floating) and feature.np_dtype == np.float32:
        return shorten_float32(value)
    return value.tolist() if hasattr(value, 'tolist') else value
