"""Cuts a corpus into shards. Their number and bounds do not depend on the number of workers."""

import dataclasses
import itertools
import re
from collections.abc import Iterator

from bertjax.corpus import formats, sequences
from bertjax.corpus.sources import TextPart, TextSource
from bertjax.files import streams
from bertjax.remote.paths import open_file

MIN_SHARD, MAX_SHARD = 4 << 20, 64 << 20  # the bounds of the target size of a shard, in bytes of plain text
TARGET_SHARDS = 64  # enough that the cores of a large machine finish at about the same time
FILES_A_SHARD = 10_000
RECORDS_A_SHARD = 20_000  # the number of records of a dataset in a shard
# A compressed file cannot be cut. If it is large, up to MAX_STRIDES workers decompress it, and each of n workers
# encodes every n-th document.
MAX_STRIDES = 8
STRIDE_BYTES = 8 << 20  # a compressed file has a part for each STRIDE_BYTES, but at most MAX_STRIDES parts
EXPANSION = 3.5  # the estimated bytes of text per compressed byte

_BOUNDARY = {
    'text': re.compile(rb'\n' + formats.BLANK + rb'\n'),
    'jsonl': re.compile(rb'\n'),
    **{format: re.compile(rb'\n') for format in sequences.FORMATS},
    'wikiextractor': re.compile(rb'\n(?=<doc )'),
}


def _boundary(file, position: int, size: int, format: str) -> int:
    """Returns a boundary between two documents at or after `position`, or `size` if none is found."""
    pattern, position = _BOUNDARY[format], position - 1
    file.seek(position)
    window = b''
    while position < size:
        window += file.read(streams.CHUNK)
        match = pattern.search(window)
        if match:
            return min(position + match.end(), size)
        tail = window[-256:]
        position, window = position + len(window) - len(tail), tail
        if file.tell() >= size:
            break
    return size


def _cut(part: TextPart, target: int) -> list[TextPart]:
    """Cuts a large uncompressed file into ranges of about `target` bytes. Every cut is between two documents."""
    cuts = [0]
    with open_file(part.path) as file:
        while cuts[-1] + target + target // 2 < part.end:
            cuts.append(_boundary(file, cuts[-1] + target, part.end, part.format))
    if cuts[-1] != part.end:
        cuts.append(part.end)
    return [dataclasses.replace(part, begin=begin, end=end) for begin, end in itertools.pairwise(cuts)]


def _parts_of(source: TextSource, format_option: str, target: int) -> Iterator[tuple[TextPart, bool]]:
    """Yields (part, whether the part is a small file) for each part of a source."""
    if source.kind != 'file':
        for begin in range(0, source.size, RECORDS_A_SHARD):
            end = min(begin + RECORDS_A_SHARD, source.size)
            yield TextPart(source.kind, source.path, source.name, begin, end), False
        return
    full_file = source.whole(format_option)
    if _text_size(source) < target:
        yield full_file, True
        return
    compression, head = formats.read_head(source.path)
    format = full_file.format if compression is None else formats.sniff(source.path, head, full_file.format)
    if compression and format != 'files':
        of = max(1, min(MAX_STRIDES, source.size // STRIDE_BYTES))
        for stride in range(of):
            yield dataclasses.replace(full_file, of=of, stride=stride, format=format), False
    elif compression != '' or format == 'files' or source.size < 1.5 * target:
        yield full_file, False
    else:
        for part in _cut(dataclasses.replace(full_file, format=format), target):
            yield part, False


def _text_size(source: TextSource) -> float:
    """Returns the estimated bytes of text in a file. For a dataset, returns the number of records."""
    return source.size * (EXPANSION if streams.has_compression_suffix(source.path) else 1)


def cut_shards(sources: list[TextSource], format: str, *, in_order: bool = False) -> list[list[TextPart]]:
    """Cuts a corpus into shards that are close to a target size, if possible. Returns the parts of each shard in order.

    With `in_order`, each shard is a contiguous piece of the text. Otherwise, large parts have separate shards, and
    several shards may read different documents of the same compressed file.
    """
    # The estimated bytes of plain text that a shard should read.
    target = int(min(MAX_SHARD, max(MIN_SHARD, sum(map(_text_size, sources)) / TARGET_SHARDS)))
    shards, group, size = [], [], 0.0
    for source in sources:
        for part, small in _parts_of(source, format, target):
            if in_order and part.stride:  # the part of stride 0 reads all documents, because its `of` becomes 1 below
                continue
            if not (in_order or small):
                shards.append([part])
                continue
            group.append(dataclasses.replace(part, of=1))
            size += _text_size(source) if small else target
            if size >= target or len(group) >= FILES_A_SHARD:
                shards.append(group)
                group, size = [], 0.0
    return [*shards, group] if group else shards
