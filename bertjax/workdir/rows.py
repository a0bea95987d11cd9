"""Writes rows that a Python program passes as data. The workdir stores them as files, which the run reads.

WORKDIR/rows/HASH/NAME has a file of JSON lines for each split. NAME is the name of the workdir, because a task on
custom data is named after its folder. HASH is the hash of NAME, the names of the splits and the rows, so that a resumed
run with the same rows reads the same files. Different rows are written to new files, which count as changed data.
"""

import datetime
import decimal
import glob
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bertjax.config.files import Recipe
from bertjax.config.plain import flatten
from bertjax.config.ranges import format_value
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile, sync_directory
from bertjax.tasks.reading.arrow import read_dataset_object, shorten_float32
from bertjax.tasks.reading.splits import STEMS
from bertjax.workdir.lock import lock_workdir

FOLDER = 'rows'  # in a workdir
_CORPUS_FORMATS = ('auto', 'jsonl', 'ids', 'symbols')  # values of config.corpus_options.format that accept rows


def write_rows(recipe: Recipe, folder: pathlib.Path) -> Recipe:
    """Writes the rows of a recipe to a workdir.

    The rows of a split are an iterable of dicts, a `datasets.Dataset` or a pandas DataFrame. A class label of a Dataset
    is written as its name, and a missing value of a DataFrame is written as null. The rows of a corpus may also be
    strings, one for each document. An iterator is read once, and its rows are not held in memory.

    Args:
      recipe: A recipe whose `rows` has the key 'data' or 'corpus'. The value for 'data' is {split: rows}, or the rows
        of the split train. The value for 'corpus' is rows.

    Returns:
      The recipe with the paths of the files instead of the rows.

    Raises:
      UserError: The recipe or the corpus format does not accept rows, a key of {split: rows} does not name a split,
        there are no rows, or a row cannot be written as JSON.
    """
    # The config records the paths of the rows. Absolute paths stay valid in another working directory.
    folder, keys = folder.resolve(), dict[str, Any]()
    with lock_workdir(folder):
        if 'data' in recipe.rows:
            if 'task' not in recipe.config:
                found, fix = 'rows', 'pass rows as corpus=…, or the folder of a token store as data=…'
                raise UserError('config.data', found, 'the folder of a token store', fix)
            data = recipe.rows['data']
            files = [value for value in flatten(recipe.config.task).values() if isinstance(value, str)]
            splits = _check_names(data if isinstance(data, Mapping) else {'train': data}, files)
            keys['data'] = str(_write(folder, splits))
        if 'corpus' in recipe.rows:
            options = recipe.config.corpus_options
            if options.format not in _CORPUS_FORMATS:
                expected = f'one of {", ".join(_CORPUS_FORMATS)} for rows'
                raise UserError('config.corpus_options.format', repr(options.format), expected, 'leave it out')
            path = _write(folder, {'corpus': recipe.rows['corpus']}, text_key=options.text_key)
            # A comma separates corpora, so a path with commas is written as a pattern.
            file = str(path / 'corpus.jsonl')
            keys['corpus'] = glob.escape(file).replace(',', '?') if ',' in file else file
    return recipe.with_keys(keys)


def _check_names(splits: Mapping[str, Any], files: Collection[str]) -> Mapping[str, Any]:
    """Checks that each key is the name of one of `files` without .jsonl, or of a split, such as dev or dev_matched."""
    usual, fix = {*itertools.chain(*STEMS.values()), 'ax'}, "for example data={'train': rows, 'dev': rows}"
    if not splits:
        raise UserError('config.data', 'no split', 'rows of at least one split', fix)
    for name in splits:
        is_valid = isinstance(name, str) and re.fullmatch(r'[\w.-]+', name) and not name.endswith('.jsonl')
        if not is_valid or (re.split('[._-]', name)[0] not in usual and f'{name}.jsonl' not in files):
            raise UserError('config.data', f'the key {format_value(name)}', 'the name of a split', fix)
    return splits


def _write(folder: pathlib.Path, splits: Mapping[str, Any], text_key: str = '') -> pathlib.Path:
    """Writes {split: rows} to files SPLIT.jsonl and returns their folder. An existing folder of these rows is kept."""
    unfinished, name = folder / FOLDER / '.unfinished', folder.resolve().name
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a killed process
    digest = hashlib.blake2b(name.encode(), digest_size=8)
    try:
        for split, rows in splits.items():
            digest.update(f'{split}\n'.encode())
            with AtomicFile(unfinished / name / f'{split}.jsonl') as target:
                for line in _json_lines(split, rows, text_key):
                    digest.update(line)
                    target.write(line)
        final = folder / FOLDER / digest.hexdigest()
        if not final.exists():
            unfinished.rename(final)
            sync_directory(final.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return final / name


def _json_lines(name: str, rows: Any, text_key: str) -> Iterator[bytes]:
    number = -1
    for number, row in enumerate(_records(name, rows)):
        where = f'{name}[{number}]'
        if text_key and isinstance(row, str):
            if number == 0 and '\n' not in row and len(row) < 1000 and os.path.isfile(row):
                fix = f'pass the path itself and not a list of paths, for example corpus={row!r}'
                raise UserError(where, f'{row!r}, the path of a file', 'the text of a document', fix)
            row = {text_key: row}
        if not isinstance(row, Mapping):
            expected = 'a string, or a dict of named fields' if text_key else 'a dict of named fields'
            raise UserError(where, f'{format_value(row)}, a {type(row).__name__}', expected, 'correct the row')
        row = {str(key): _to_json(value, f'{where}, field {key!r}') for key, value in row.items()}
        # A lone surrogate becomes a JSON escape, which the reader reports.
        yield json.dumps(row, ensure_ascii=False).encode('utf-8', 'backslashreplace') + b'\n'
    if number < 0:
        raise UserError(name, 'no row', 'at least one row', 'check the rows; an iterator can be read only once')


def _records(name: str, rows: Any) -> Iterable[Any]:
    if hasattr(rows, 'with_format') and getattr(rows, 'features', None):  # a Dataset of `datasets`
        return (fields for _, fields in read_dataset_object(rows, name))
    if hasattr(rows, 'isna') and hasattr(rows, 'columns'):  # a DataFrame of pandas
        if len(twice := rows.columns[rows.columns.duplicated()]):
            raise UserError(name, f'two columns {format_value(twice[0])}', 'different names', 'rename one of them')
        series = [rows[column] for column in rows.columns]
        # As objects, integers with missing values, for example of the dtype Int64, do not become floats.
        arrays = [x.to_numpy(object if x.dtype.kind in 'iu' else None) for x in series]
        columns = [zip(array, x.isna(), strict=True) for array, x in zip(arrays, series, strict=True)]
        return (
            {column: None if missing else value for column, (value, missing) in zip(rows.columns, row, strict=True)}
            for row in zip(*columns, strict=True)
        )
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        expected = 'a list of dicts, a datasets.Dataset or a pandas DataFrame'
        fix = 'pass rows, or pass the path of the data as config.data or config.corpus'
        raise UserError(name, f'{format_value(rows)}, a {type(rows).__name__}', expected, fix)
    return rows


def _to_json(value: Any, where: str) -> Any:
    """Converts a value to the same JSON value as tasks/reading/arrow.py. NaN marks a missing value and becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(item, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item, where) for item in value]
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in 'mM':
        # NumPy converts finer units than Python's microseconds, and durations in months or years, to integers.
        unit = np.datetime_data(value.dtype)[0]
        if unit in ('ns', 'ps', 'fs', 'as') or value.dtype.kind == 'm':
            value = value.astype(f'{value.dtype.kind}8[us]')
    if isinstance(value, datetime.date) and value != value:  # NaT of pandas
        return None
    if hasattr(value, 'dtype') and hasattr(value, 'tolist'):  # NumPy
        shorten = getattr(value, 'ndim', 0) == 0 and value.dtype == 'float32'
        return _to_json(shorten_float32(value) if shorten else value.tolist(), where)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta | decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
    elif value is None or isinstance(value, str | int | float):
        return value
    found = f'{format_value(value)}, a {type(value).__name__}'
    raise UserError(where, found, 'a string, a number, a boolean, a list or a dict', 'convert the value')
