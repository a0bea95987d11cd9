"""Which files of a folder are which splits: by the usual names, whole, in shards, or as `datasets` saves them."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from etils import epath

from bertjax.errors import UserError
from bertjax.files.streams import bare_suffix, named_compressed
from bertjax.tasks.reading.arrow import is_saved_dataset
from bertjax.tasks.reading.records import BINARY, FORMATS, Files
from bertjax.tasks.reading.texts import quoted

# The names of a split's file without suffix, and of a split of a prepared dataset.
STEMS: Mapping[str, tuple[str, ...]] = {
    'train': ('train', 'training'),
    'dev': ('dev', 'devel', 'valid', 'validation', 'val', 'eval'),
    'test': ('test',),
}
_SHARD = re.compile(r'(.+?)-(\d{5})-of-(\d{5})')
# What `datasets` and the Hub write beside the data.
_OF_DATASETS = ('dataset_info.json', 'dataset_infos.json', 'dataset_dict.json', 'state.json')


def split_files(
    folder: epath.Path, split: str, *, stems: Collection[str] = (), suffixes: Collection[str] = (), fix: str = ''
) -> Files:
    """The files of a split: train.csv, the shards train-00000-of-00002.parquet …, or the folder train/ that holds
    Parquet files or what `datasets` saved; none where there are none. In a folder `data` below where there are no
    others, as in repositories of the Hugging Face Hub.

    Args:
      folder: that exists.
      split: 'train', 'dev' or 'test'.
      stems: the possible names; () for STEMS.
      suffixes: of the formats that can be read; () for all of records.py:FORMATS.
      fix: what to do when there are several.

    Raises:
      UserError: several files that could be this split, or a shard is missing.
    """
    stems, suffixes = tuple(stems) or STEMS[split], tuple(suffixes) or tuple(FORMATS)
    below = folder / 'data'
    found: dict[str, Files] = {}
    for place in (folder, below) if below.is_dir() else (folder,):
        # Text first: who has both has the same in both.
        for kinds in ([x for x in suffixes if x not in BINARY], [x for x in suffixes if x in BINARY]):
            found = found or _named(place, stems, kinds)
    if len(found) > 1:
        names = ' and '.join(sorted(found))
        raise UserError(str(folder), names, f'one file of the {split} split', fix or 'move the others away')
    return next(iter(found.values()), ())


def _named(folder: epath.Path, stems: Sequence[str], suffixes: Sequence[str]) -> dict[str, Files]:
    """{what it is called: its files} of all that could be the split."""
    found: dict[str, Files] = {}
    for path in sorted(folder.iterdir()):
        if path.name in stems and path.is_dir():
            parts = (path,) if is_saved_dataset(path) else tuple(sorted(path.glob('*.parquet')))
            if parts and '.parquet' in suffixes:
                found[path.name] = parts
            continue
        suffix = bare_suffix(path.name)
        if suffix not in suffixes or path.is_dir():
            continue
        stem = path.name.removesuffix(path.suffix) if named_compressed(path.name) else path.name
        stem = stem[: -len(suffix)]
        shard = _SHARD.fullmatch(stem)
        if stem in stems:
            found[path.name] = (path,)
        elif shard and shard[1] in stems:
            name = f'{shard[1]}-*-of-{shard[3]}{path.name[len(stem) :]}'
            found[name] = (*found.get(name, ()), path)
    for name, paths in found.items():
        whole = re.search(r'-\*-of-(\d{5})', name)
        if whole and len(paths) != int(whole[1]):
            raise UserError(str(folder), f'{len(paths)} files {name}', f'{int(whole[1])}', 'fetch the others too')
    return found


def called(files: Sequence[epath.Path]) -> str:
    """The files of a split, in a few words."""
    names = [path.name for path in files]
    return names[0] if len(names) == 1 else f'{len(names)} files, {names[0]} to {names[-1]}'


def describe_splits(
    found: Mapping[str, Files | str], folder: epath.Path | None, *, judged: Collection[str], lacking: str
) -> str:
    """A line on which files became which splits, and one on those that became none.

    Args:
      found: of each split its files, or what else it is; none where there are none.
      folder: of the files; None where no others are looked for.
      judged: the splits that can be evaluated; a test split that is none of them is only predicted.
      lacking: what it lacks then, such as 'labels'.
    """
    told = {split: files if isinstance(files, str) else called(files) for split, files in found.items() if files}
    if 'test' in told and 'test' not in judged:
        told['test'] += f' (no {lacking}: it is only predicted)'
    lines = [', '.join(f'{split}: {what}' for split, what in told.items())]
    used = {path for files in found.values() if not isinstance(files, str) for path in files or ()}
    unused = [path.name for path in _data_files(folder) if path not in used] if folder else []
    if unused:
        lines.append(f'not used: {quoted(unused)}')
    return '\n'.join(lines)


def _data_files(folder: epath.Path) -> Iterator[epath.Path]:
    """The files in the folder that could be read, such as a second table."""
    for path in sorted(folder.iterdir()):
        told = path.name.startswith(('.', '_')) or path.name in _OF_DATASETS
        if not told and bare_suffix(path.name) in FORMATS and path.is_file():
            yield path
