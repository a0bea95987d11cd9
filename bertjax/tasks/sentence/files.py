"""The files of a classification's splits: a folder, one file and what lies beside it; or tensorflow-datasets."""

from collections.abc import Collection, Iterator, Mapping

from etils import epath

from bertjax.errors import UserError
from bertjax.remote.paths import data_directory, user_path
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.layout import Layout
from bertjax.tasks.reading.records import Files, Row, read_rows, rows_of
from bertjax.tasks.reading.sources import dataset_splits, read_dataset
from bertjax.tasks.reading.splits import STEMS, called, describe_splits, split_files


class TableFiles:
    """The splits of a folder of tables, of a table, or of a prepared dataset.

    Args:
      data: the folder, or the file to train on; '' for `dataset`.
      dataset: of tensorflow-datasets.
      names: of the files, or of the dataset's splits, by split; '' for the usual ones.
      format: where suffixes do not tell, see records.py.
    """

    def __init__(self, data: str, dataset: str, names: Mapping[str, str], format: str):
        self._data, self._dataset, self._names, self._format = data, dataset, names, format

    def find(self, split: str) -> Files | str | None:
        """The files of a split, or the split's name in the dataset; None where there is none.

        Raises:
          UserError: several, no such folder, or nothing to look for them in.
        """
        named = self._names[split]
        if not self._data:
            if not self._dataset:
                fix = 'give --config.data=FOLDER, or --config.task.dataset=NAME of tensorflow-datasets'
                raise UserError('config.data', 'nothing', 'a folder or file', fix)
            there = dataset_splits(self._dataset)
            return named or next((stem for stem in STEMS[split] if stem in there), None)
        if self._one_file:
            own = self._path if split == 'train' else self._path.parent / named if named else None
            return None if own is None else (own,)
        folder = data_directory(self._data, 'a folder with train.csv, or a file')
        fix = f'name the right one in config.task.{split}'
        return (folder / named,) if named else split_files(folder, split, fix=fix) or None

    @property
    def _path(self) -> epath.Path:
        return user_path(self._data, 'config.data')

    @property
    def _one_file(self) -> bool:
        """Whether `data` is what there is to train on, and no folder of splits."""
        return self._path.is_file() or is_saved_dataset(self._path)

    def called(self, split: str) -> str:
        """The files of a split that exists, in a few words."""
        source = self.find(split)
        return source if isinstance(source, str) else called(source)

    def rows(self, split: str, layout: Layout) -> Iterator[Row]:
        """The rows of a split, in order.

        Raises:
          UserError: no such file; see records.py:read_records.
        """
        source = self.find(split)
        if source is None:
            names = ', '.join(f'{stem}.csv' for stem in STEMS[split])
            fix = f'add the file, or name it in config.task.{split}'
            raise UserError(self._data or self._dataset, f'no file of the {split} split', f'{names} …', fix)
        if isinstance(source, str):
            return rows_of(read_dataset(self._dataset, source), layout.columns)
        return read_rows(source, layout, self._format)

    def describe(self, dev: str, judged: Collection[str]) -> str:
        """Which files are which splits.

        Args:
          dev: what dev is where it has no files.
          judged: the splits that can be evaluated.
        """
        found = {split: self.find(split) for split in STEMS}
        found['dev'] = found['dev'] or dev
        folder = None
        if self._data and (not self._one_file or self._path.stem in STEMS['train']):
            folder = self._path.parent if self._one_file else self._path
        return describe_splits(found, folder, judged=judged, lacking='labels')
