"""Combines the parts of an extraction into its output: npy, safetensors, Parquet or JSON lines.

Only one part is in memory at a time. A part is a safetensors file with the arrays of `Extractor.compute_part`.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save

from bertjax.files.atomic import AtomicFile, write_atomic
from bertjax.files.safetensors import Tensor, write_tensors
from bertjax.model.quantization import quantize, value_ranges
from bertjax.tasks.reading.arrow import import_arrow
from bertjax.tasks.reading.json_rows import convert_to_text

VectorPart = dict[str, np.ndarray]
Labels = Mapping[str, Any]  # The columns of a text other than its features: id, text, pair.
TOKEN = ('ids', 'segments', 'starts', 'ends')  # the arrays of a part with one value per token
# The suffixes of the files next to a .npy or .safetensors file: the ranges of int8 vectors, the ids of the texts, and
# the offsets and tokens of per-token features.
RANGES, IDS, OFFSETS, TOKENS = '.ranges.npy', '.ids.jsonl', '.offsets.npy', '.tokens.npy'


def save_part(path: pathlib.Path, part: VectorPart) -> None:
    """Writes a part atomically."""
    write_atomic(path, save(part))


def write_vectors(
    paths: Sequence[pathlib.Path],
    parts: Sequence[pathlib.Path],
    size: int,
    shard: int,
    precision: str,
    ranges: np.ndarray | None,
) -> None:
    """Writes .npy files with one vector per text; see `model.quantization.quantize`.

    Each part but the last has `size` vectors, and each file but the last `shard`.
    """
    rows = _shapes(parts)['features'][0]
    empty = quantize(np.zeros((0, _shapes(parts[:1])['features'][1]), np.float32), precision, ranges)
    for begin, path in zip(range(0, rows, shard), paths, strict=True):
        end = min(begin + shard, rows)
        arrays = (
            quantize(_tensor(parts[i], 'features')[max(0, begin - i * size) : end - i * size], precision, ranges)
            for i in range(begin // size, -(-end // size))
        )
        _write_npy(path, empty.dtype, (end - begin, empty.shape[1]), arrays)


def find_ranges(parts: Sequence[pathlib.Path]) -> np.ndarray:
    """Returns the minimum and the maximum of each dimension over all vectors, float32 [2, D]."""
    return value_ranges(np.concatenate([value_ranges(_tensor(part, 'features')) for part in parts]))


def write_npy(path: pathlib.Path, parts: Sequence[pathlib.Path]) -> None:
    """Writes NAME.npy, float32 [T, D], with one vector per token. Adds NAME.offsets.npy and NAME.tokens.npy.

    Text i has the tokens offsets[i] to offsets[i + 1] - 1. NAME.tokens.npy is a structured array with a row per token.
    """
    shapes = _shapes(parts)
    _write_npy(path, np.float32, shapes['features'], (part['features'] for part in map(load_file, parts)))
    _write_npy(path.with_suffix(OFFSETS), np.int64, (shapes['lengths'][0] + 1,), _offsets(parts))
    kind = np.dtype([(name.removesuffix('s'), np.int32) for name in TOKEN])
    tables = (np.rec.fromarrays([part[name] for name in TOKEN], dtype=kind) for part in map(load_file, parts))
    _write_npy(path.with_suffix(TOKENS), kind, shapes['ids'], tables)


def write_safetensors(path: pathlib.Path, parts: Sequence[pathlib.Path]) -> None:
    """Writes NAME.safetensors: `features`, float32 [N, D], or [T, D] with `offsets` and the arrays in TOKEN."""
    shapes = _shapes(parts)
    tensors: dict[str, Tensor] = {}
    if 'ids' in shapes:
        tensors['offsets'] = Tensor('I64', (shapes['lengths'][0] + 1,), lambda: _offsets(parts))
    for name in [name for name in shapes if name not in ('lengths', 'unknown')]:
        kind = 'F32' if name == 'features' else 'I32'
        tensors[name] = Tensor(kind, shapes[name], lambda name=name: (_tensor(part, name) for part in parts))
    write_tensors(path, tensors)


def write_jsonl(
    path: pathlib.Path, parts: Sequence[pathlib.Path], labels: Iterable[Sequence[Labels]], pieces: Sequence[str]
) -> None:
    """Writes NAME.jsonl with one object per text.

    An object has the columns in `labels`, and `features`, which is null for a blank text. An object with per-token
    features also has the lists `pieces`, `segments`, `starts` and `ends`.
    """
    with AtomicFile(path) as file:
        for part, rows in zip(parts, labels, strict=True):
            file.write(''.join(format_json_rows(load_file(part), rows, pieces)).encode())


def format_json_rows(part: VectorPart, labels: Sequence[Labels], pieces: Sequence[str]) -> Iterator[str]:
    """Yields the lines of a part for `write_jsonl`."""
    for label, row in zip(labels, _rows(part, pieces), strict=True):
        if row['features'] is not None:  # write the fewest digits that identify a float32 value
            row['features'] = np.asarray(row['features']).astype(str).astype(float).tolist()
        yield json.dumps({**label, **row}, ensure_ascii=False) + '\n'


def write_parquet(
    path: pathlib.Path, parts: Sequence[pathlib.Path], labels: Iterable[Sequence[Labels]], pieces: Sequence[str]
) -> None:
    """Writes NAME.parquet with the columns of `write_jsonl`. `id` is a string. Vectors are lists of fixed size."""
    pa, pq = import_arrow('config.extract.format')
    width = _shapes(parts)['features'][1]
    vector = pa.list_(pa.float32(), width)
    token_types = {'pieces': pa.list_(pa.string()), **{name: pa.list_(pa.int32()) for name in TOKEN[1:]}}
    writer = None
    with AtomicFile(path) as file:
        for name, rows in zip(parts, labels, strict=True):
            part = load_file(name)
            kinds = {label: pa.string() for label in rows[0]}
            kinds |= {**token_types, 'features': pa.list_(vector)} if 'ids' in part else {'features': vector}
            records = [{**label, **row} for label, row in zip(rows, _rows(part, pieces), strict=True)]
            for record in records:
                if 'id' in record:
                    record['id'] = convert_to_text(record['id'], '')
            writer = writer or pq.ParquetWriter(file.file, pa.schema(kinds))
            writer.write_table(pa.Table.from_pylist(records, pa.schema(kinds)))
        writer.close()


def count_tokens(parts: Sequence[pathlib.Path], full: int) -> tuple[int, int, np.ndarray]:
    """Returns the number of tokens, the number of rows with exactly `full` tokens, and the sum of `unknown`, [4]."""
    total, rows, unknown = 0, 0, np.zeros(4, np.int64)
    for path in parts:
        lengths = _tensor(path, 'lengths')
        total, rows = total + int(lengths.sum()), rows + int((lengths == full).sum())
        unknown += _tensor(path, 'unknown')
    return total, rows, unknown


def _rows(part: VectorPart, pieces: Sequence[str]) -> Iterator[dict[str, Any]]:
    ends = np.cumsum(part['lengths']).tolist()
    for number, (end, length) in enumerate(zip(ends, part['lengths'].tolist(), strict=True)):
        if 'ids' not in part:
            yield {'features': part['features'][number] if length else None}
            continue
        tokens = slice(end - length, end)
        names = [pieces[id] for id in part['ids'][tokens].tolist()]
        columns = {name: part[name][tokens].tolist() for name in TOKEN[1:]}
        yield {'pieces': names, **columns, 'features': list(part['features'][tokens]) if length else None}


def _shapes(parts: Sequence[pathlib.Path]) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the arrays after all parts are concatenated."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in parts:
        with safe_open(path, 'numpy') as part:
            for name in sorted(part.keys()):
                rows, *rest = part.get_slice(name).get_shape()
                shapes[name] = (shapes.get(name, (0,))[0] + rows, *rest)
    return shapes


def _tensor(path: pathlib.Path, name: str) -> np.ndarray:
    with safe_open(path, 'numpy') as part:
        return part.get_tensor(name)


def _offsets(parts: Sequence[pathlib.Path]) -> Iterator[np.ndarray]:
    """Yields the int64 array `offsets`, part by part: 0, then the end of the tokens of each text."""
    yield np.zeros(1, np.int64)
    total = 0
    for path in parts:
        ends = total + np.cumsum(_tensor(path, 'lengths'), dtype=np.int64)
        yield ends
        total = int(ends[-1])


def _write_npy(path: pathlib.Path, kind: Any, shape: tuple[int, ...], arrays: Iterable[np.ndarray]) -> None:
    """Writes the concatenation of arrays in the format of numpy.save."""
    with AtomicFile(path) as file:
        header = {'descr': np.lib.format.dtype_to_descr(np.dtype(kind)), 'fortran_order': False, 'shape': shape}
        np.lib.format.write_array_header_1_0(file, header)
        for array in arrays:
            file.write(np.ascontiguousarray(array))
