"""Finds the splits of a text task in a folder, in a single file, or in a dataset of tensorflow-datasets."""

from collections.abc import Iterator, Mapping

from etils import epath

from bertjax.errors import UserError
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.layout import TableLayout
from bertjax.tasks.reading.records import Files, Row, read_rows, select_columns
from bertjax.tasks.reading.sources import dataset_splits, read_dataset
from bertjax.tasks.reading.splits import STEMS, SplitFiles, split_files


class TableFiles(SplitFiles):
    """The splits of a folder of tables, of a single table, or of a dataset of tensorflow-datasets.

    Args:
      data: The folder, the training file, or a training split saved by `datasets`; '' to use `dataset`.
      dataset: The name of a dataset in tensorflow-datasets.
      names: {split: the name of its file, or its name in `dataset`}. '' selects the usual names. If `data` is a single
        table and the name of dev or test is '', this split does not exist.
      format: The format of text files; 'auto' selects the format by suffix, see records.py:format_of.
    """

    _advice = 'add the file, or name it in config.task.{split}'
    _data_advice = 'give --config.data=FOLDER, or --config.task.dataset=NAME of tensorflow-datasets'

    def __init__(self, data: str, dataset: str, names: Mapping[str, str], format: str):
        super().__init__(data, lambda _: True, ('.csv', '.jsonl'), 'check the path; it may also be a single file')
        self._dataset, self._names, self._format = dataset, names, format
        self._where = data or dataset

    def find(self, split: str) -> Files | str:
        """Returns the files of a split, or the name of the split in the dataset; () or '' if there is none.

        Raises:
          UserError: Several files match, or the folder or dataset does not exist or is not set.
        """
        named = self._names[split]
        if not self._data:
            if not self._dataset:
                raise UserError('config.data', 'nothing', 'a folder or file', self._data_advice)
            dataset_names = dataset_splits(self._dataset)
            return named or next((stem for stem in STEMS[split] if stem in dataset_names), '')
        if self._one_file:
            if split == 'train':
                return (self._path,)
            return (self._path.parent / named,) if named else ()
        fix = f'name the right one in config.task.{split}'
        return (self.folder / named,) if named else split_files(self.folder, split, fix=fix)

    @property
    def _path(self) -> epath.Path:
        return user_path(self._data, 'config.data')

    @property
    def _one_file(self) -> bool:
        """Whether `data` is the training file or a saved dataset, not a folder of splits."""
        return self._path.is_file() or is_saved_dataset(self._path)

    def rows(self, split: str, layout: TableLayout) -> Iterator[Row]:
        """Yields the rows of a split, in order."""
        source = self.require(split)
        if isinstance(source, str):
            return select_columns(read_dataset(self._dataset, source), layout.columns)
        return read_rows(source, layout, self._format)

    @property
    def searched_folder(self) -> epath.Path | None:
        """See SplitFiles. It is None without `data`.

        The folder of a single file or saved dataset is searched only if its name is usual, such as train.csv.
        """
        if not self._data or (self._one_file and self._path.name.partition('.')[0] not in STEMS['train']):
            return None
        return self._path.parent if self._one_file else self._path
