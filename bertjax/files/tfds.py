"""Reads the records of prepared tensorflow-datasets (tfds) datasets. Nothing is downloaded."""

from collections.abc import Sequence
from typing import Any

from bertjax.errors import UserError
from bertjax.files.paths import is_remote


class Dataset:
    """A prepared dataset. `name` is a name such as 'glue/rte', or the directory of the dataset.

    In error messages, `where` is the config key of the dataset, `value` the value of the key, `expected` describes the
    accepted values, and `otherwise`, such as ', or give files', is appended to the fix.

    Attributes:
      builder: The `tfds.core.DatasetBuilder`; `info.splits` is not empty.

    Raises:
      UserError: The dataset is unknown or not prepared, or tensorflow-datasets is not installed.
    """

    def __init__(self, name: str, *, where: str, value: str, expected: str, otherwise: str = ''):
        self._where, self._value = where, value
        self._at_path = name.startswith(('/', '.', '~')) or is_remote(name)
        call = f"tfds.builder({name!r}, file_format='array_record').download_and_prepare()"
        self._prepare = f'run once: import tensorflow_datasets as tfds, tensorflow_datasets.text; {call}{otherwise}'
        if self._at_path:
            self._prepare = f'give a directory that tfds has prepared as array_record{otherwise}'
        try:
            import tensorflow_datasets as tfds
            import tensorflow_datasets.text
        except ImportError as error:
            found, fix = f'{value!r} without tensorflow-datasets ({error})', 'pip install tensorflow-datasets'
            raise UserError(where, found, 'the package tensorflow-datasets', fix + otherwise) from error
        try:
            self.builder = tfds.builder_from_directory(name) if self._at_path else tfds.builder(name)
        except Exception as error:  # tfds raises many types, some from the network.
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            found, fix = f'{value!r}, which tfds cannot find ({line})', 'check the name and TFDS_DATA_DIR, or '
            raise UserError(where, found, expected, fix + self._prepare) from error
        if not self.builder.info.splits:
            raise UserError(where, f'{value!r}, not prepared', 'a prepared dataset', self._prepare)

    def string_features(self) -> dict[str, bool]:
        """Returns {name: whether the feature is a `Text`}, sorted by name, for features with one string per record."""
        from tensorflow_datasets.core.features import Tensor, Text

        strings = {
            name: isinstance(feature, Text)
            for name, feature in self.builder.info.features.items()
            if isinstance(feature, Tensor) and feature.shape == () and str(feature.np_dtype) == 'object'
        }
        return dict(sorted(strings.items()))

    def split(self, name: str) -> Sequence[dict[str, Any]]:
        """Returns the records of a split, which can be read by index.

        Raises:
          UserError: The split is unknown, or its records cannot be read by index.
        """
        info = self.builder.info
        if name not in info.splits:
            names = ', '.join(info.splits)
            raise UserError(self._where, f'no split {name!r} in {self._value!r}', f'one of {names}', 'name one of them')
        try:
            return self.builder.as_data_source(split=name)
        except Exception as error:  # tfds raises the errors of its readers.
            found = f'{self._value!r} in the file format {info.file_format.value!r}'
            # tfds refuses to prepare a dataset again in another format.
            fix = '' if self._at_path else f'delete {self.builder.data_dir}, or set another TFDS_DATA_DIR; then '
            expected = 'array_record, which can be read by index'
            raise UserError(self._where, found, expected, fix + self._prepare) from error
