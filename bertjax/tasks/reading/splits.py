"""Finds the files of each split in a folder by their usual names: single files, shards, or saved by `datasets`."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix, has_compression_suffix
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.records import BINARY, FORMATS, Files
from bertjax.tasks.reading.texts import quote_names

# Split -> the usual names of its file without suffix, and of the split of a prepared dataset.
STEMS: Mapping[str, tuple[str, ...]] = {
    'train': ('train', 'training'),
    'dev': ('dev', 'devel', 'valid', 'validation', 'val', 'eval'),
    'test': ('test',),
}
_SHARD = re.compile(r'(.+?)-(\d{5})-of-(\d{5})')
# Files that `datasets` and the Hub write beside the data.
_METADATA_FILES = ('dataset_info.json', 'dataset_infos.json', 'dataset_dict.json', 'state.json')


def split_files(
    folder: epath.Path, split: str, *, stems: Collection[str] = (), suffixes: Collection[str] = (), fix: str = ''
) -> Files:
    """Returns the files of a split; empty if there are none.

    They are a file such as train.csv, the shards train-00000-of-00002.parquet …, or the folder train/ with Parquet
    files or a saved dataset. If `folder` has none, its subfolder `data` is searched, as in repositories of the Hugging
    Face Hub.

    Args:
      folder: An existing folder.
      split: 'train', 'dev' or 'test'.
      stems: The possible names; () for STEMS.
      suffixes: The suffixes of readable formats; () for all of records.py:FORMATS.
      fix: The fix in the message if several files match.

    Raises:
      UserError: Several files match the split, or a shard is missing.
    """
    stems, suffixes = tuple(stems) or STEMS[split], tuple(suffixes) or tuple(FORMATS)
    subfolder = folder / 'data'
    text_suffixes = [suffix for suffix in suffixes if suffix not in BINARY]
    binary_suffixes = [suffix for suffix in suffixes if suffix in BINARY]
    candidates: dict[str, Files] = {}
    for parent in (folder, subfolder) if subfolder.is_dir() else (folder,):
        # Text files come first; a folder with both formats has the same records in both.
        for kinds in (text_suffixes, binary_suffixes):
            candidates = candidates or _find_candidates(parent, stems, kinds)
    if len(candidates) > 1:
        names = ' and '.join(sorted(candidates))
        raise UserError(str(folder), names, f'one file of the {split} split', fix or 'move the others away')
    return next(iter(candidates.values()), ())


def _find_candidates(folder: epath.Path, stems: Sequence[str], suffixes: Sequence[str]) -> dict[str, Files]:
    """Returns {name: files} for everything that could be the split."""
    candidates: dict[str, Files] = {}
    for path in sorted(folder.iterdir()):
        if path.name in stems and path.is_dir():
            parts = (path,) if is_saved_dataset(path) else tuple(sorted(path.glob('*.parquet')))
            if parts and '.parquet' in suffixes:
                candidates[path.name] = parts
            continue
        suffix = bare_suffix(path.name)
        if suffix not in suffixes or path.is_dir():
            continue
        stem = path.name.removesuffix(path.suffix) if has_compression_suffix(path.name) else path.name
        stem = stem[: -len(suffix)]
        shard = _SHARD.fullmatch(stem)
        if stem in stems:
            candidates[path.name] = (path,)
        elif shard and shard[1] in stems:
            name = f'{shard[1]}-*-of-{shard[3]}{path.name[len(stem) :]}'
            candidates[name] = (*candidates.get(name, ()), path)
    for name, paths in candidates.items():
        shards = re.search(r'-\*-of-(\d{5})', name)
        if shards and len(paths) != int(shards[1]):
            raise UserError(str(folder), f'{len(paths)} files {name}', f'{int(shards[1])}', 'fetch the others too')
    return candidates


def describe_files(files: Sequence[epath.Path]) -> str:
    """Describes the files of a split in a few words."""
    names = [path.name for path in files]
    return names[0] if len(names) == 1 else f'{len(names)} files, {names[0]} to {names[-1]}'


def describe_splits(
    files: Mapping[str, Files | str], folder: epath.Path | None, *, labelled: Collection[str], missing: str
) -> str:
    """Describes which files are which splits, and on a second line the unused files.

    Args:
      files: The files of each split, or a description; empty if there are none.
      folder: The folder of the files; None if unused files are not listed.
      labelled: The splits that can be evaluated; a test split not among them is only predicted.
      missing: The name of the missing part of such a test split, such as 'labels'.
    """
    texts = {
        split: paths if isinstance(paths, str) else describe_files(paths) for split, paths in files.items() if paths
    }
    if 'test' in texts and 'test' not in labelled:
        texts['test'] += f' (no {missing}: it is only predicted)'
    lines = [', '.join(f'{split}: {text}' for split, text in texts.items())]
    used = {path for paths in files.values() if not isinstance(paths, str) for path in paths or ()}
    unused = [path.name for path in _data_files(folder) if path not in used] if folder else []
    if unused:
        lines.append(f'not used: {quote_names(unused)}')
    return '\n'.join(lines)


def _data_files(folder: epath.Path) -> Iterator[epath.Path]:
    """Yields the readable data files in the folder, such as a second table."""
    for path in sorted(folder.iterdir()):
        ignored = path.name.startswith(('.', '_')) or path.name in _METADATA_FILES
        if not ignored and bare_suffix(path.name) in FORMATS and path.is_file():
            yield path
