"""TensorFlow's tables of sorted keys and values, the *.index file of a checkpoint.

A file is a row of blocks and a footer. A block is a list of entries, each with what its key shares with the one before,
then the offsets of those entries that share nothing, then a byte for the compression and a checksum. The last block
is the index of the others (tensorflow/core/lib/io/{format,block_builder,table_builder}.cc, after LevelDB).
"""

import itertools
from collections.abc import Iterator, Mapping

import google_crc32c

from bertjax.files.protobuf import as_varint, varint

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, 'little')
_FOOTER = 48  # bytes: two handles, padding, the magic number
_TRAILER = 5  # bytes behind each block
_BLOCK = 256 << 10  # bytes after which a block ends
_WHOLE_KEY_EVERY = 16  # entries


def masked_crc32c(data: bytes) -> int:
    """The checksum of `data` as TensorFlow stores it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def read_table(data: bytes) -> dict[bytes, bytes]:
    """The entries of a table, in order.

    Raises:
      ValueError: it is none, or is damaged or compressed; says which.
    """
    if len(data) < _FOOTER or data[-8:] != _MAGIC:
        raise ValueError('no table of TensorFlow, or a part of one')
    statistics, at = _handle(data[-_FOOTER:], 0)
    index, _ = _handle(data[-_FOOTER:], at)
    _block(data, *statistics)  # which is empty, but has a checksum
    blocks = [_handle(handle, 0)[0] for _, handle in _entries(_block(data, *index))]
    return dict(itertools.chain.from_iterable(_entries(_block(data, *block)) for block in blocks))


def write_table(entries: Mapping[bytes, bytes]) -> bytes:
    """A table of these entries; equal entries give equal bytes."""
    data, index, block = bytearray(), {}, {}

    def put(content: bytes) -> bytes:
        handle = as_varint(len(data)) + as_varint(len(content))
        data.extend(content + b'\0')  # 0: not compressed
        data.extend(masked_crc32c(content + b'\0').to_bytes(4, 'little'))
        return handle

    size = 0
    for key, value in sorted(entries.items()):
        block[key] = value
        size += len(key) + len(value)
        if size >= _BLOCK:
            index[key] = put(_encoded(block, _WHOLE_KEY_EVERY))
            block, size = {}, 0
    if block:
        # As TensorFlow: of the last block, a short key that no other follows.
        index[bytes([max(block)[0] + 1]) if max(block) else b''] = put(_encoded(block, _WHOLE_KEY_EVERY))
    handles = put(_encoded({}, 1)) + put(_encoded(index, 1))
    return bytes(data) + handles.ljust(_FOOTER - len(_MAGIC), b'\0') + _MAGIC


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Offset and size of a block, and where its handle ends."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(data: bytes, offset: int, size: int) -> bytes:
    content, trailer = data[offset : offset + size], data[offset + size : offset + size + _TRAILER]
    if len(trailer) < _TRAILER:
        raise ValueError('a block that goes on behind the end')
    if masked_crc32c(content + trailer[:1]) != int.from_bytes(trailer[1:], 'little'):
        raise ValueError('a block of another checksum')
    if trailer[0]:
        raise ValueError('compressed blocks, which TensorFlow does not write into checkpoints')
    return content


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    starts = int.from_bytes(block[-4:], 'little')
    end, at, key = len(block) - 4 * (starts + 1), 0, b''
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        size, at = varint(block, at)
        key = key[:shared] + block[at : at + own]
        yield key, block[at + own : at + own + size]
        at += own + size


def _encoded(entries: Mapping[bytes, bytes], whole_every: int) -> bytes:
    data, starts, before = bytearray(), [], b''
    for number, (key, value) in enumerate(entries.items()):
        shared = 0
        if number % whole_every == 0:
            starts.append(len(data))
        else:
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(key, before, strict=False))
            shared = sum(1 for _ in same)
        data += as_varint(shared) + as_varint(len(key) - shared) + as_varint(len(value)) + key[shared:] + value
        before = key
    starts = starts or [0]  # of an empty block, too
    return bytes(data) + b''.join(start.to_bytes(4, 'little') for start in (*starts, len(starts)))
