"""Reads Parquet files, Arrow files and datasets saved by `datasets`, with the optional package pyarrow.

A saved dataset has the layout of huggingface/datasets (arrow_dataset.py:save_to_disk, arrow_writer.py): a folder
with Arrow files, dataset_info.json, and state.json, which lists the Arrow files. The names of class labels are in
dataset_info.json and in the metadata of the Arrow schema, under b'huggingface'.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from etils import epath

from bertjax.errors import UserError, first_line
from bertjax.files.small_files import read_json_object
from bertjax.files.streams import bare_suffix
from bertjax.tasks.reading.layout import Record

_ROWS = 1024  # the number of rows that are converted to Python objects at a time
UNLABELED = -1  # the class label of unlabeled records, as in GLUE's test splits


def is_saved_dataset(path: epath.Path) -> bool:
    """Whether a path is a folder in which `datasets` saved a single split."""
    return all((path / name).is_file() for name in ('state.json', 'dataset_info.json'))


def read_arrow(path: epath.Path) -> Iterator[Record]:
    """Yields the records ('file[index]', fields) of a Parquet or Arrow file, or of a saved dataset.

    Class labels become their names, and the label -1 of an unlabeled record becomes None. float32 numbers are rounded
    to their shortest decimal form.

    Raises:
      UserError: pyarrow is not installed, a file is missing or damaged, or a class number is out of range.
    """
    if path.is_dir():
        state, fix = path / 'state.json', 'save the dataset again'
        try:
            files = [path / part['filename'] for part in read_json_object(state, fix)['_data_files']]
        except (KeyError, TypeError):  # the file of another program
            raise UserError(str(state), 'no list of Arrow files', 'the state.json of a saved dataset', fix) from None
        features = read_json_object(path / 'dataset_info.json', fix).get('features') or {}
    else:
        files, features = [path], {}
    for file in files:
        if not file.is_file():
            raise UserError(str(file), 'no such file', f'a part of {path}', 'save the dataset again')
        yield from _read_file(file, features)


def read_dataset_object(dataset: Any, where: str) -> Iterator[Record]:
    """Yields the records ('where[index]', fields) of a `datasets.Dataset`, with the same values as `read_arrow`."""
    tables = dataset.with_format('arrow').iter(batch_size=_ROWS)
    return _records(dataset.features.arrow_schema, tables, {}, where)


def _records(schema: Any, batches: Iterable[Any], features: Mapping[str, Any], where: str) -> Iterator[Record]:
    """Yields the records of Arrow tables or batches. `features` overrides features in the metadata of the schema."""
    with contextlib.suppress(ValueError, KeyError, TypeError):  # files of other programs lack this metadata
        features = json.loads((schema.metadata or {})[b'huggingface'])['info']['features'] | features
    kinds = {field.name: field.type for field in schema}
    slices = (batch.slice(start, _ROWS) for batch in batches for start in range(0, batch.num_rows, _ROWS))
    rows = (row for part in slices for row in _to_rows(part, where))
    for number, row in enumerate(rows):
        at = f'{where}[{number}]'
        yield Record(at, {name: _plain(value, kinds[name], features.get(name), at) for name, value in row.items()})


def _to_rows(part: Any, where: str) -> list[dict[str, Any]]:
    try:
        return part.to_pylist()
    except (ValueError, OverflowError) as error:  # a text is not UTF-8, or Python cannot represent a date
        found, expected = f'an unreadable value ({first_line(error)})', 'UTF-8 texts, and dates of the years 1 to 9999'
        raise UserError(where, found, expected, 'remove the column, or write the file again') from None


def import_arrow(where: str) -> tuple[Any, Any]:
    """Imports pyarrow and its Parquet module. Raises a UserError about `where` if pyarrow is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        fix = "install the extra 'arrow': pip install 'bertjax[arrow]'"
        raise UserError(where, 'a file that needs pyarrow', 'pyarrow to be installed', fix) from None
    return pyarrow, pyarrow.parquet


def _read_file(path: epath.Path, features: Mapping[str, Any]) -> Iterator[Record]:
    pa, pq = import_arrow(str(path))
    count = 0
    try:
        with path.open('rb') as file:
            if bare_suffix(path.name) == '.parquet':  # x.parquet.gz is Parquet with pages that are compressed by gzip
                parquet = pq.ParquetFile(file, page_checksum_verification=True)  # verifies pages that have a checksum
                schema, batches = parquet.schema_arrow, parquet.iter_batches(_ROWS)
            else:
                schema, batches = _arrow_batches(pa, file)
            for record in _records(schema, batches, features, str(path)):
                yield record
                count += 1
    except (pa.ArrowException, OSError) as error:
        found = f'an error after {count} rows ({first_line(error)})'
        raise UserError(str(path), found, 'a complete Parquet or Arrow file', 'download it again') from None


def _arrow_batches(pa: Any, file: Any) -> tuple[Any, Iterator[Any]]:
    """Returns the schema and the batches of an Arrow stream, which `datasets` writes, or of an Arrow file (Feather)."""
    magic = file.read(6)
    file.seek(0)
    if magic == b'ARROW1':
        reader = pa.ipc.open_file(file)
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
    reader = pa.ipc.open_stream(file)
    return reader.schema, iter(reader)


def _item_feature(feature: Any) -> Any:
    """Returns the feature of the items if `feature` describes a list, else `feature` itself."""
    if isinstance(feature, list):  # earlier versions of `datasets` describe a list as [feature of the items]
        return feature[0]
    is_list = isinstance(feature, dict) and isinstance(feature.get('_type'), str) and 'feature' in feature
    return feature['feature'] if is_list else feature


def _plain(value: Any, kind: Any, feature: Any, at: str) -> Any:
    """Converts a value of the Arrow type `kind` to JSON. `feature` describes the value in `datasets`, or is None.

    Dates, decimals, durations and UTF-8 bytes become text. Other bytes become None.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and hasattr(kind, 'value_type'):
        item_kind, item_feature = kind.value_type, _item_feature(feature)
        return [_plain(item, item_kind, item_feature, at) for item in value]
    if isinstance(value, dict):
        # `datasets` stores a sequence of records as a record of sequences.
        features = _item_feature(feature) or {}
        return {name: _plain(item, kind.field(name).type, features.get(name), at) for name, item in value.items()}
    if isinstance(value, int) and feature and feature.get('_type') == 'ClassLabel':
        return _class_name(feature.get('names'), value, at)
    if isinstance(value, float) and str(kind) == 'float':  # the name of float32
        return shorten_float32(value)
    if isinstance(value, int | float):
        return value
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode('utf-8')
    except UnicodeDecodeError:
        return None  # binary data, for example an image


def shorten_float32(value: float) -> float:
    """Returns the shortest decimal number that rounds to the same float32 number: 3.8 for 3.799999952316284."""
    return float(str(np.float32(value)))


def _class_name(names: list[str] | None, value: int, at: str) -> str | int | None:
    if value == UNLABELED:
        return None
    if not names:
        return value
    if not 0 <= value < len(names):
        fix = 'correct the record, or name the classes in the features'
        raise UserError(at, f'the class {value}', f'0 to {len(names) - 1}, or {UNLABELED} for no label', fix)
    return names[value]
