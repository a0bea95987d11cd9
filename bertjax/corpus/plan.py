"""Cutting a corpus into work units whose number and bounds depend on the corpus alone, never on the workers."""

import itertools
import re
from collections.abc import Iterator

from etils import epath

from bertjax.corpus import layouts, streams
from bertjax.corpus.readers import Part
from bertjax.corpus.sources import Source

MIN_UNIT, MAX_UNIT = 4 << 20, 64 << 20  # Bytes of plain text (estimated) that one unit reads.
UNITS_WANTED = 64  # Enough for a large machine's cores to finish together.
FILES_A_UNIT = 10_000
RECORDS_A_UNIT = 20_000  # Of a tfds dataset.
MAX_STRIDES = 8
STRIDE_BYTES = 8 << 20  # Compressed bytes that are worth another worker decompressing the same file.
EXPANSION = 3.5  # Text compresses to about a third.

_BOUNDARY = {
    'text': re.compile(rb'\n[ \t\r\f\v]*\n'),
    'jsonl': re.compile(rb'\n'),
    'wikiextractor': re.compile(rb'\n(?=<doc )'),
}


def _boundary(file, at: int, size: int, format: str) -> int:
    """The first place at or after byte `at` where a document begins."""
    pattern, at = _BOUNDARY[format], at - 1
    file.seek(at)
    window = b''
    while at < size:
        window += file.read(streams.CHUNK)
        match = pattern.search(window)
        if match:
            return min(at + match.end(), size)
        keep = window[-256:]
        at, window = at + len(window) - len(keep), keep
        if file.tell() >= size:
            break
    return size


def _cut(source: Source, format: str, unit: int) -> list[Part]:
    """Byte ranges of a large plain file that begin and end between documents."""
    cuts = [0]
    with epath.Path(source.path).open('rb') as file:
        while cuts[-1] + unit + unit // 2 < source.size:
            cuts.append(_boundary(file, cuts[-1] + unit, source.size, format))
    if cuts[-1] != source.size:
        cuts.append(source.size)
    bounds = itertools.pairwise(cuts)
    return [Part('file', source.path, source.name, begin, end, format=format) for begin, end in bounds]


def _look(path: str, format: str) -> tuple[str, str]:
    """(compression, format) of a file by its first bytes; a damaged one is left for the reader to complain about."""
    try:
        with epath.Path(path).open('rb') as file:
            compression = streams.compression_of(path, file.read(8))
            file.seek(0)
            head = next((chunk for chunk in streams.chunks(file, compression) if chunk), b'')
        return compression, layouts.sniff(path, head[: layouts.SNIFF], format)
    except streams.DAMAGE:
        return 'damaged', format


def _units_of(source: Source, format: str, unit: int) -> Iterator[tuple[list[Part], bool]]:
    """(parts, whether they may share a unit with other files)."""
    if source.kind == 'pydoc':
        yield [Part('pydoc', source.path, source.name, 0, source.size)], False
        return
    if source.kind == 'tfds':
        for begin in range(0, source.size, RECORDS_A_UNIT):
            end = min(begin + RECORDS_A_UNIT, source.size)
            yield [Part('tfds', source.path, source.name, begin, end)], False
        return
    if format == 'auto':
        format = 'auto/files' if source.single else 'auto/text'
    whole = Part('file', source.path, source.name, 0, source.size, format=format)
    if source.size * (EXPANSION if streams.packed(source.path) else 1) < unit:
        yield [whole], True
        return
    compression, format = _look(source.path, format)
    if compression and compression != 'damaged' and format != 'files':
        of = max(1, min(MAX_STRIDES, source.size // STRIDE_BYTES))
        for stride in range(of):
            part = Part('file', source.path, source.name, 0, source.size, of=of, stride=stride, format=format)
            yield [part], False
    elif compression or format == 'files' or source.size < 1.5 * unit:
        yield [whole], False
    else:
        for part in _cut(source, format, unit):
            yield [part], False


def plan_units(sources: list[Source], format: str) -> list[list[Part]]:
    """The units of a corpus: for each, the parts that it reads in this order."""
    text = sum(source.size * (1 if not streams.packed(source.path) else EXPANSION) for source in sources)
    unit = int(min(MAX_UNIT, max(MIN_UNIT, text / UNITS_WANTED)))
    units, group, size = [], [], 0.0
    for source in sources:
        for parts, small in _units_of(source, format, unit):
            if not small:
                units.append(parts)
                continue
            size += source.size * (EXPANSION if streams.packed(source.path) else 1)
            group += parts
            if size >= unit or len(group) >= FILES_A_UNIT:
                units.append(group)
                group, size = [], 0.0
    return [*units, group] if group else units
