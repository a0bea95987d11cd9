"""Finds the files of each split by their usual names: single files, shards, or saved datasets."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix
from bertjax.remote.paths import user_path
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.records import BINARY, FORMATS, Files
from bertjax.tasks.reading.sources import DatasetSplit, dataset_splits
from bertjax.tasks.reading.texts import quote_names

# {split: its usual names in file names and in tensorflow-datasets}.
STEMS: Mapping[str, tuple[str, ...]] = {
    'train': ('train', 'training'),
    'dev': ('dev', 'devel', 'valid', 'validation', 'val', 'eval'),
    'test': ('test',),
}
HasLabels = Callable[[], bool] | None
_SHARD = re.compile(r'(.+?)-(\d{5})-of-(\d{5})(?:-[0-9a-f]{16})?')  # in older repositories of the Hub, a hash follows
# Metadata files that `datasets` and the Hugging Face Hub store in the folder of the data.
_METADATA_FILES = ('dataset_info.json', 'dataset_infos.json', 'dataset_dict.json', 'state.json')


class SplitFiles:
    """The splits of a task in a folder.

    Args:
      data: config.data, the folder.
      has_labels: A function that returns whether the test split has labels; None if it always does.
      suffixes: The suffixes of the allowed formats.
      fix: The fix in the error message if the folder does not exist.
    """

    missing = 'labels'  # the part that an unlabeled test split lacks
    _advice = 'add or rename the file'  # the fix in the error message if a split has no files
    _file_fix = 'rename it to train or dev, with its suffix, and give its folder'  # the fix if `data` is a file

    def __init__(self, data: str, has_labels: HasLabels, suffixes: Sequence[str], fix: str = 'check the path'):
        self._data, self._has_labels, self._suffixes, self._fix = data, has_labels, suffixes, fix
        self._where = data  # the name of the data for messages

    @property
    def folder(self) -> epath.Path:
        """The folder; raises a UserError if it does not exist."""
        path, fix = self._path, self._fix
        if self._data and path.is_dir():
            return path
        if path.is_file():
            fix = self._file_fix
        raise UserError('config.data', repr(self._data), f'a folder with train{self._suffixes[0]} …', fix)

    def find(self, split: str) -> Files:
        """Returns the files of a split, or () if there are none; see `split_files`."""
        return split_files(self.folder, split, suffixes=self._suffixes)

    def require(self, split: str) -> Files:
        """Returns the files of a split; raises a UserError if there are none."""
        check_split(split)
        files = self.find(split)
        if not files:
            names = ', '.join(f'{split}{suffix}' for suffix in self._suffixes[:2])
            found, fix = f'no file of the {split} split', self._advice.format(split=split)
            # Beside a single file, a file with the name of the split is not read.
            others = [path.name for path in self._data_files() if path.parent == self._path]
            found += f' among {quote_names(others)}' if others else ''
            raise UserError(self._where, found, f'{names} …', fix)
        return files

    def is_labeled(self, split: str) -> bool:
        """Whether the records of a split have labels. Only the records of 'test' may lack them."""
        return split != 'test' or self._has_labels is None or self._has_labels()

    def splits(self) -> list[str]:
        """Returns the names of the labeled splits."""
        return [split for split in STEMS if self.find(split) and self.is_labeled(split)]

    def describe(self, **texts: str) -> str:
        """Returns a readable list of the splits and their files, or '' without data. A second line lists unused files.

        `texts` may describe splits that have no files.
        """
        if not self._where:
            return ''
        files = {split: self.find(split) for split in STEMS}
        texts |= {split: describe_files(paths) for split, paths in files.items() if paths}
        if files['test'] and 'test' not in self.splits():
            texts['test'] += f' (no {self.missing}; for prediction only)'
        lines = [', '.join(f'{split}: {texts[split]}' for split in STEMS if split in texts)]
        used = {path for paths in files.values() for path in paths}
        unused = [path.name for path in self._data_files() if path not in used]
        return '\n'.join([*lines, f'not used: {quote_names(unused)}'] if unused else lines)

    @property
    def _path(self) -> epath.Path:
        return user_path(self._data, 'config.data')

    def _data_files(self) -> list[epath.Path]:
        """Returns the files with records in the folder, or those beside a single file or saved dataset.

        A single file or saved dataset needs a usual name of the training split; otherwise, the list is empty.
        """
        path = self._path
        if path.is_file() or is_saved_dataset(path):
            path, is_folder = path.parent, path.name.partition('.')[0] in STEMS['train']
        else:
            is_folder = bool(self._data) and path.is_dir()
        return [
            file
            for file in (sorted(path.iterdir()) if is_folder else [])
            if self._is_data_file(file) and not file.name.startswith(('.', '_')) and file.name not in _METADATA_FILES
        ]

    def _is_data_file(self, path: epath.Path) -> bool:
        """Whether the name of a file is that of a file with records."""
        return bare_suffix(path.name) in {*FORMATS, *self._suffixes}


class TableFiles(SplitFiles):
    """The splits of a folder of tables, of a single table, or of a dataset of tensorflow-datasets.

    Args:
      data: The folder, the training file, or a training split saved by `datasets`; '' to use `dataset`.
      dataset: The name of a dataset in tensorflow-datasets.
      names: {split: the name of the file, or of the split in `dataset`}. '' selects the usual names. If `data` is a
        single table, a dev or test split without a name does not exist.
      has_labels: See SplitFiles.
    """

    _advice = 'add the file, or name it in config.task.{split}'
    _data_advice = 'give --config.data=FOLDER, or --config.task.dataset=NAME of tensorflow-datasets'

    def __init__(self, data: str, dataset: str, names: Mapping[str, str], has_labels: HasLabels = None):
        super().__init__(data, has_labels, ('.csv', '.jsonl'), 'check the path; it may also be a single file')
        self._dataset, self._names = dataset, names
        self._where = data or dataset

    def find(self, split: str) -> Files:
        """Returns the files of a split, or () if there are none.

        Raises:
          UserError: Several files match, or the folder or dataset does not exist or is not set.
        """
        named = self._names[split]
        if not self._data:
            if not self._dataset:
                raise UserError('config.data', 'nothing', 'a folder or file', self._data_advice)
            dataset_names = dataset_splits(self._dataset)
            name = named or next((stem for stem in STEMS[split] if stem in dataset_names), '')
            return (DatasetSplit(self._dataset, name),) if name else ()
        if self._one_file:
            path = self._path.parent / named if named else self._path
            if split == 'train' and path != self._path:
                expected = f"'', because config.data is the training file {self._path.name}"
                fix = 'leave it out, or give the folder as config.data'
                raise UserError('config.task.train', repr(named), expected, fix)
            return (path,) if named or split == 'train' else ()
        fix = f'name the right one in config.task.{split}'
        return (self.folder / named,) if named else split_files(self.folder, split, fix=fix)

    @property
    def _path(self) -> epath.Path:
        return user_path(self._data, 'config.data', tuple(filter(None, self._names.values())))

    @property
    def _one_file(self) -> bool:
        """Whether `data` is the training file or a saved dataset, not a folder of splits."""
        return self._path.is_file() or is_saved_dataset(self._path)


def check_split(split: str) -> None:
    """Raises a UserError about config.split if `split` is not in STEMS."""
    if split not in STEMS:
        raise UserError('config.split', repr(split), 'one of ' + ', '.join(STEMS), 'choose one of them')


def split_files(
    folder: epath.Path,
    split: str,
    *,
    stems: Collection[str] = (),
    suffixes: Collection[str] = tuple(FORMATS),
    fix: str = 'move the others away',
    first: Collection[epath.Path] = (),
) -> Files:
    """Returns the files of a split, or () if there are none.

    The split is a file such as train.csv, shards such as train-00000-of-00002.parquet, or a folder train/ that has
    Parquet files or is a saved dataset. If `folder` has none of these, its subfolder `data` is searched, which
    many repositories of the Hugging Face Hub have.

    Args:
      stems: The possible file names without suffix; () for STEMS[split].
      suffixes: The suffixes of the allowed formats.
      fix: The fix in the error message if several files match.
      first: Files of the split that have priority over all others.

    Raises:
      UserError: Several files match the split, or a shard is missing.
    """
    stems = stems or STEMS[split]
    candidates: dict[str, Files] = {path.name: (path,) for path in first}
    for parent in [path for path in (folder, folder / 'data') if path.is_dir()]:
        # Text and binary files of a split are assumed to contain the same records, so only the text files are read.
        for is_binary in (False, True):
            kinds = [suffix for suffix in suffixes if (suffix in BINARY) == is_binary]
            candidates = candidates or _find_candidates(parent, stems, kinds)
    if len(candidates) > 1:
        names = ' and '.join(sorted(candidates))
        raise UserError(str(folder), names, f'one file of the {split} split', fix)
    return next(iter(candidates.values()), ())


def _find_candidates(folder: epath.Path, stems: Collection[str], suffixes: Collection[str]) -> dict[str, Files]:
    """Returns {name: files} for each file, folder or set of shards whose name matches the split."""
    candidates: dict[str, Files] = {}
    shard_counts: dict[str, int] = {}
    for path in sorted(folder.iterdir()):
        if path.name in stems and path.is_dir():
            parquet = (file for file in sorted(path.iterdir()) if bare_suffix(file.name) == '.parquet')
            parts = (path,) if is_saved_dataset(path) else tuple(parquet)
            if parts and '.parquet' in suffixes:
                candidates[path.name] = parts
            continue
        suffix = bare_suffix(path.name)
        if suffix not in suffixes or path.is_dir():
            continue
        stem = path.name[: path.name.lower().rindex(suffix)]
        shard = _SHARD.fullmatch(stem)
        if stem in stems:
            candidates[path.name] = (path,)
        elif shard and shard[1] in stems:
            name = f'{shard[1]}-*-of-{shard[3]}{path.name[len(stem) :]}'
            candidates[name] = (*candidates.get(name, ()), path)
            shard_counts[name] = int(shard[3])
    for name, count in shard_counts.items():
        if len(candidates[name]) != count:
            raise UserError(str(folder), f'{len(candidates[name])} files {name}', str(count), 'download all shards')
    return candidates


def describe_files(files: Sequence[epath.Path]) -> str:
    """Returns the name of a single file, or the number of several files with the first and the last name."""
    names = [path.name for path in files]
    return names[0] if len(names) == 1 else f'{len(names)} files, {names[0]} to {names[-1]}'
