"""Encodes and decodes protocol buffers (protobuf.dev, Encoding), for the few messages that bertjax reads and writes.

`masked_crc32c` is the checksum in TensorFlow's files. This module replaces the generated modules of other
packages, which cannot be used together: several register the same name with protobuf, and some need a newer protobuf
than others allow.
"""

from collections.abc import Iterator
from typing import Any

import google_crc32c

_FIXED = {5: 4, 1: 8}  # {wire type: bytes}


def decode_fields(message: bytes) -> Iterator[tuple[int, int | bytes, int]]:
    """Yields (field number, value, offset of the value) for each field of a message.

    The value of a varint is an int; the value of any other wire type is bytes.

    Raises:
      ValueError: The bytes are not a message.
    """
    at = 0
    while at < len(message):
        tag, at = decode_varint(message, at)
        kind, start = tag & 7, at
        if kind == 0:
            value, at = decode_varint(message, at)
        else:
            if kind == 2:
                size, start = decode_varint(message, at)
            elif kind in _FIXED:
                size = _FIXED[kind]
            else:
                raise ValueError(f'a field of wire type {kind}')
            value, at = message[start : start + size], start + size
            if at > len(message):
                raise ValueError('a field beyond the end of the message')
        yield tag >> 3, value, start


def single_fields(message: bytes) -> dict[int, Any]:
    """Returns {field number: value} of a message. If a field is repeated, only its last value is returned."""
    return {number: value for number, value, _ in decode_fields(message)}


def decode_varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns a varint and the offset of its end.

    Raises:
      ValueError: The message ends inside the varint.
    """
    value = shift = 0
    while at < len(message):
        byte, at = message[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at
    raise ValueError('the end of the message inside a number')


def varint_field(field: int, value: int) -> bytes:
    """Encodes a field with a varint. The result is empty for the default value 0."""
    return encode_varint(field << 3) + encode_varint(value) if value else b''


def bytes_field(field: int, value: bytes) -> bytes:
    """Encodes a field with bytes or another message."""
    return encode_varint(field << 3 | 2) + encode_varint(len(value)) + value


def fixed_field(field: int, value: bytes) -> bytes:
    """Encodes a field with a number of 32 or 64 bits, given as its 4 or 8 bytes in little-endian order."""
    return encode_varint(field << 3 | (5 if len(value) == 4 else 1)) + value


def encode_varint(value: int) -> bytes:
    """Encodes a number >= 0 as a varint."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def masked_crc32c(data: bytes) -> bytes:
    """Returns the checksum of `data` in the form in which TensorFlow stores it (tensorflow/core/lib/hash/crc32c.h)."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, 'little')
