"""Reads and writes TensorFlow checkpoints, PREFIX.index and PREFIX.data-NUMBER-of-COUNT, without TensorFlow.

The index is a table with one message per tensor. A message gives the position of the tensor's bytes in the data files
(tensorflow/core/protobuf/tensor_bundle.proto, tensorflow/core/util/tensor_bundle/tensor_bundle.cc).
"""

import math
from collections.abc import Mapping

import ml_dtypes
import numpy as np
from etils import epath

from bertjax.convert.google.table import read_table, write_table
from bertjax.errors import UserError
from bertjax.files import protobuf
from bertjax.files.atomic import AtomicFile, write_atomic
from bertjax.files.small_files import read_bytes

INDEX = '.index'
# {DataType of tensorflow/core/framework/types.proto: dtype}.
_DTYPES = {1: np.float32, 2: np.float64, 3: np.int32, 9: np.int64, 14: ml_dtypes.bfloat16, 19: np.float16}
_FLOAT32 = 1
# _HEADER is the key of the header. The next three are fields of BundleHeaderProto: the number of data files, the byte
# order and the format version. _PRODUCER is a field of VersionDef.
_HEADER, _SHARDS, _BIG_ENDIAN, _VERSION, _PRODUCER = b'', 1, 2, 3, 1
# The fields of BundleEntryProto. The next line has the fields of TensorShapeProto and of its dimensions.
_DTYPE, _SHAPE, _SHARD, _OFFSET, _SIZE, _CRC = 1, 2, 3, 4, 5, 6
_DIMENSION, _LENGTH = 2, 1
_EXPECTED = 'a complete checkpoint of TensorFlow'
_AGAIN = 'copy all files of the checkpoint again'


class Bundle:
    """A checkpoint. `shapes` has the shapes of all tensors by name. The tensors are read one at a time."""

    def __init__(self, prefix: epath.PathLike):
        """Opens the checkpoint `prefix`, the path of the index file without its suffix.

        Raises a UserError if the index does not exist or is damaged, or if the variables are in slices or big-endian.
        """
        self._prefix = epath.Path(prefix)
        self._index = self._prefix.parent / (self._prefix.name + INDEX)
        try:
            table = read_table(read_bytes(self._index, _EXPECTED, _AGAIN))
            header = protobuf.single_fields(table.pop(_HEADER, b''))
            # The keys of slices are not text.
            self._entries = {key.decode(errors='replace'): protobuf.single_fields(x) for key, x in table.items()}
            self.shapes = {name: _shape(entry.get(_SHAPE, b'')) for name, entry in self._entries.items()}
        except (ValueError, TypeError) as error:
            raise UserError(str(self._index), str(error), _EXPECTED, _AGAIN) from None
        if any(key.startswith(b'\0') for key in table):
            fix = 'save the checkpoint again without partitioned variables'
            raise UserError(str(self._index), 'variables in slices', 'whole variables', fix)
        if header.get(_BIG_ENDIAN):  # the checksums do not show this
            fix = 'save it again on a little-endian machine'
            raise UserError(str(self._index), 'big-endian numbers', 'little-endian numbers', fix)
        self._shards = header.get(_SHARDS, 1)

    def read(self, name: str) -> np.ndarray:
        """Reads a tensor in its saved dtype.

        Raises a UserError if the dtype is unsupported, if the tensor is truncated or damaged, or if its file cannot be
        read.
        """
        entry, shape, where = self._entries[name], self.shapes[name], f'{self._prefix}: {name}'
        kind, size = entry.get(_DTYPE, 0), entry.get(_SIZE, 0)
        if kind not in _DTYPES:
            found = f'values of type {kind} (tensorflow/core/framework/types.proto)'
            raise UserError(where, found, 'float, int32 or int64 values', 'give the checkpoint of a model')
        dtype = np.dtype(_DTYPES[kind])
        if size != math.prod(shape) * dtype.itemsize:
            raise UserError(where, f'{size:,} bytes for the shape {shape}', _EXPECTED, _AGAIN)
        file = self._prefix.parent / _data_file(self._prefix.name, entry.get(_SHARD, 0), self._shards)
        try:
            with file.open('rb') as stream:
                stream.seek(entry.get(_OFFSET, 0))
                data = stream.read(size)
        except OSError as error:
            found = 'nothing' if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
            raise UserError(str(file), found, f'the data of {self._index.name}', _AGAIN) from None
        if len(data) < size:
            found = f'the end of the data after {len(data):,} of {size:,} bytes'
            raise UserError(where, found, _EXPECTED, _AGAIN)
        if protobuf.masked_crc32c(data) != entry.get(_CRC, bytes(4)):
            raise UserError(where, 'values that do not match their checksum', _EXPECTED, _AGAIN)
        return np.frombuffer(data, dtype.newbyteorder('<')).reshape(shape)


def write_bundle(prefix: epath.PathLike, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes {name: float32 tensor} as a TensorFlow checkpoint with one data file. Equal tensors give equal bytes."""
    prefix, offset = epath.Path(prefix), 0
    version = protobuf.varint_field(_PRODUCER, 1)
    table = {_HEADER: protobuf.varint_field(_SHARDS, 1) + protobuf.bytes_field(_VERSION, version)}
    with AtomicFile(prefix.parent / _data_file(prefix.name, 0, 1)) as file:
        for name, tensor in sorted(tensors.items()):
            data = np.ascontiguousarray(tensor, '<f4').tobytes()
            file.write(data)
            lengths = [protobuf.bytes_field(_DIMENSION, protobuf.varint_field(_LENGTH, n)) for n in tensor.shape]
            table[name.encode()] = b''.join([
                protobuf.varint_field(_DTYPE, _FLOAT32),
                protobuf.bytes_field(_SHAPE, b''.join(lengths)),
                protobuf.varint_field(_OFFSET, offset),
                protobuf.varint_field(_SIZE, len(data)),
                protobuf.fixed_field(_CRC, protobuf.masked_crc32c(data)),
            ])  # fmt: skip
            offset += len(data)
    write_atomic(prefix.parent / (prefix.name + INDEX), write_table(table))


def _data_file(name: str, shard: int, shards: int) -> str:
    return f'{name}.data-{shard:05d}-of-{shards:05d}'


def _shape(message: bytes) -> tuple[int, ...]:
    dimensions = (value for field, value, _ in protobuf.decode_fields(message) if field == _DIMENSION)
    return tuple(protobuf.single_fields(dimension).get(_LENGTH, 0) for dimension in dimensions)
