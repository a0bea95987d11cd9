"""Reads and writes TensorFlow's tables of sorted keys and values, such as the *.index file of a checkpoint.

A file is a sequence of blocks and a footer. A block consists of entries, and the offsets of some entries. A byte for
the compression type and a checksum follow each block. The entries at the listed offsets have complete keys. Each other
entry omits the prefix that its key shares with the previous key. The last two blocks are an empty block and the index
of the other blocks (tensorflow/core/lib/io/{format,block_builder,table_builder}.cc, after LevelDB).
"""

import itertools
from collections.abc import Iterator, Mapping

from bertjax.files.protobuf import decode_varint, encode_varint, masked_crc32c

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, 'little')
_FOOTER = 48  # The size in bytes of the footer: two handles (the offset and the size of a block), padding and _MAGIC.
_TRAILER = 5  # The size in bytes of the compression type and the checksum after each block.
_RESTART_INTERVAL = 16  # Every 16th entry of a block has a complete key.


def read_table(data: bytes) -> dict[bytes, bytes]:
    """Returns the entries of a table, in order. Raises a ValueError if it is incomplete, damaged or compressed."""
    if len(data) < _FOOTER or data[-8:] != _MAGIC:
        raise ValueError('bytes that are not a complete table of TensorFlow')
    statistics, position = _handle(data[-_FOOTER:], 0)
    index, _ = _handle(data[-_FOOTER:], position)
    _block(data, *statistics)  # This only checks the empty block.
    blocks = [_handle(handle, 0)[0] for _, handle in _entries(_block(data, *index))]
    return dict(itertools.chain.from_iterable(_entries(_block(data, *block)) for block in blocks))


def write_table(entries: Mapping[bytes, bytes]) -> bytes:
    """Returns the bytes of a table of `entries`, at least one, in one block. Equal entries give equal bytes."""
    data = bytearray()

    def put(block: Mapping[bytes, bytes]) -> bytes:
        content, begin = _encode(block) + b'\0', len(data)  # 0: not compressed
        data.extend(content + masked_crc32c(content))
        return encode_varint(begin) + encode_varint(len(content) - 1)

    block = put(dict(sorted(entries.items())))
    # As in TensorFlow, the key of the block in the index is short, and >= all keys of the block.
    last = max(entries)
    handles = put({}) + put({bytes([last[0] + 1]) if last else b'': block})
    return bytes(data) + handles.ljust(_FOOTER - len(_MAGIC), b'\0') + _MAGIC


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Decodes a handle. Returns (offset, size) of the block, and the position after the handle."""
    offset, position = decode_varint(data, position)
    size, position = decode_varint(data, position)
    return (offset, size), position


def _block(data: bytes, offset: int, size: int) -> bytes:
    content, trailer = data[offset : offset + size], data[offset + size : offset + size + _TRAILER]
    if len(trailer) < _TRAILER:
        raise ValueError('a block that continues after the end of the file')
    if masked_crc32c(content + trailer[:1]) != trailer[1:]:
        raise ValueError('a block that does not match its checksum')
    if trailer[0]:
        raise ValueError('compressed blocks, which TensorFlow does not write into checkpoints')
    return content


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    starts = int.from_bytes(block[-4:], 'little')
    end, position, key = len(block) - 4 * (starts + 1), 0, b''
    while position < end:
        shared, position = decode_varint(block, position)
        unshared, position = decode_varint(block, position)
        size, position = decode_varint(block, position)
        key = key[:shared] + block[position : position + unshared]
        yield key, block[position + unshared : position + unshared + size]
        position += unshared + size


def _encode(entries: Mapping[bytes, bytes]) -> bytes:
    data, starts, previous = bytearray(), [], b''
    for number, (key, value) in enumerate(entries.items()):
        if number % _RESTART_INTERVAL == 0:
            starts.append(len(data))
            previous = b''
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(key, previous, strict=False))
        shared = sum(1 for _ in same)
        data += (
            encode_varint(shared) + encode_varint(len(key) - shared) + encode_varint(len(value)) + key[shared:] + value
        )
        previous = key
    starts = starts or [0]  # An empty block also lists one offset.
    return bytes(data) + b''.join(start.to_bytes(4, 'little') for start in (*starts, len(starts)))
