"""Decides whether the blank lines in a file separate documents, or only the paragraphs of one document.

The name of a file does not show this: 'texts/*.txt' may be in BERT's format (one sentence or paragraph on each line, a
blank line between documents), or each file may be a book. So some files of each component are inspected, and the
majority decides how all files of the component are read. A component is a directory, a glob, or all single files.
"""

import collections
import dataclasses
import itertools
import re
import statistics
from collections.abc import Sequence

from bertjax.corpus import formats
from bertjax.corpus.sources import TextSource
from bertjax.files.streams import Lines
from bertjax.text.tokenizer_base import UNSPACED

MAX_INSPECTED = 24
# A block is a sequence of lines without a blank line.
BLOCK_OF_LINES = 2 / 3  # if fewer than this share of the blocks have several lines, each block is a paragraph
LONG_BLOCK = 150  # words; the median article is longer; the median paragraph has 80 (essays) or 20 words (novels)
# Thresholds for the share of lines that end a sentence, and for the 9th decile of line lengths divided by the median.
# The last line of each block is ignored. In wrapped text, the first value is below 0.4 and the second at most 1.2. If
# lines are sentences or paragraphs, the first is at least 0.8 and the second about 2.
ENDING, RAGGED = 0.5, 1.5
_ENDS = tuple('.!?…:;。！？｡।۔؟')
_CLOSING = '"\'”’»)]}*_ \t\r\f\v'

_HOW = {
    'text': 'documents with blank lines between them',
    'files': 'one document each',
    'jsonl': 'JSON with a document on each line',
    'wikiextractor': "WikiExtractor's documents",
}


def choose_readings(sources: Sequence[TextSource]) -> tuple[list[TextSource], list[str]]:
    """Sets the field `single` of files. Some files of a component are inspected to decide for all its files.

    Returns:
      The sources with this field, and a line about each decision. A component has no line if all its inspected files
      are empty or cannot be read.
    """
    by_path, readings = {}, []
    files = [source for source in sources if source.kind == 'file']
    ordered = sorted(files, key=lambda source: source.component)
    for component, group in itertools.groupby(ordered, key=lambda source: source.component):
        members = list(group)
        count = min(MAX_INSPECTED, len(members))  # evenly spaced files, including the first and the last
        sampled = [members[i * (len(members) - 1) // max(1, count - 1)] for i in range(count)]
        inspected = [_inspect(source) for source in sampled]
        labels = [label for format, label in inspected if format == 'text']
        # The only text of a component is never read as one document, which could be neither paired nor held out. If
        # only some files are inspected, there are probably further texts.
        several = len(labels) > 1 or (bool(labels) and count < len(members))
        single = several and (labels.count('files') > labels.count('text') or not any(labels))
        by_path |= {source.path: dataclasses.replace(source, single=single) for source in members}
        known = ['files' if format == 'text' and single else format for format, _ in inspected if format]
        if known:
            format_names = [format for format, _ in collections.Counter(known).most_common()]
            name = component or ', '.join([source.name for source in members[:3]] + ['…'] * (len(members) > 3))
            against = labels.count('text' if single else 'files')
            readings.append(_describe_reading(name, len(members), format_names, len(inspected), against))
    return [by_path.get(source.path, source) for source in sources], readings


def _describe_reading(name: str, files: int, format_names: Sequence[str], inspected: int, against: int) -> str:
    """Returns the line about a component.

    `format_names` are its formats, the most common first. `against` is the number of inspected files that contradict a
    reading as 'text' or 'files'.
    """
    how = ', and as '.join(_HOW[format] for format in format_names)
    text = f'{name}: {"1 file" if files == 1 else f"{files:,} files"}, read as {how}'
    # config.corpus_options.format applies to all files, so nothing is suggested for a component with several formats.
    other = {'text': 'files', 'files': 'text'}.get(format_names[0]) if len(format_names) == 1 else None
    if against and files == 1:
        return f'{text}, although they look like paragraphs of one document: remove the blank lines inside it'
    if against and other:
        text += f' ({against} of {inspected} inspected files seem to be {_HOW[other]})'
    if other and files > 1:
        text += f'; --config.corpus_options.format={other} reads them as {_HOW[other]}'
    return text


def _inspect(source: TextSource) -> tuple[str, str]:
    """Returns the format of a file, and the result of `classify_blank_lines` if the format is 'text', else ''.

    The format is '' if the file is empty or cannot be read.
    """
    compression, head = formats.read_head(source.path)
    if compression is None or not head:
        return '', ''
    format = formats.sniff(source.path, head, 'auto/text')
    if format != 'text':
        return format, ''
    complete = len(head) >= source.size and not compression
    return format, classify_blank_lines(head, complete=complete)


_UNSPACED = re.compile(f'[{UNSPACED}]')


def _count_words(line: str) -> int:
    """Returns a rough number of words. In scripts without spaces, a word has about two characters."""
    return len(line.split()) + len(_UNSPACED.findall(line)) // 2


def classify_blank_lines(head: bytes, *, complete: bool = True) -> str:
    """Returns 'text' if blank lines end documents, 'files' if they end paragraphs, '' if there is at most one block.

    Args:
      head: The beginning of a file, decompressed.
      complete: Whether `head` is the complete file. If not, the last of three or more blocks is ignored: it may be cut.
    """
    lines = [line.decode('utf-8', 'replace') for line in Lines(iter([head]))]  # form feeds do not end lines
    blocks = [list(block) for blank, block in itertools.groupby(lines, key=lambda line: not line.strip()) if not blank]
    blocks = blocks if complete or len(blocks) < 3 else blocks[:-1]
    if len(blocks) < 2:
        return ''
    if statistics.median(sum(map(_count_words, block)) for block in blocks) >= LONG_BLOCK:
        return 'text'
    if sum(len(block) > 1 for block in blocks) < BLOCK_OF_LINES * len(blocks):
        return 'files'
    inner = [line.rstrip(_CLOSING) for block in blocks for line in block[:-1]]
    lengths = sorted(map(len, inner))
    ragged = lengths[9 * len(lengths) // 10] > RAGGED * statistics.median(lengths)
    ending = sum(line.endswith(_ENDS) for line in inner) >= ENDING * len(inner)
    return 'text' if ending or ragged else 'files'
