"""What a blank line means: the end of a document, or of a paragraph of a file that is one document.

Both kinds of text look alike by name: 'texts/*.txt' may be BERT's own format (a sentence or paragraph a line, a blank
line between documents) or a shelf of books. So some files are looked at, and all that were found together are read in
the way that most of those need. How they were named, by directory, glob or one by one, makes no difference.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Sequence

from bertjax.corpus import formats
from bertjax.corpus.sources import TextSource

FILES_LOOKED_AT = 24
BLOCK_OF_LINES = 2 / 3  # Share of blocks with two lines or more from which lines are sentences or paragraphs.
LONG_BLOCK = 150  # Words: abstracts and articles have more, paragraphs of essays about 80, of novels 20 (medians).
# Lines that another follows in their block, where they are wrapped: below 0.4 of them end a sentence, and the longer
# ones (the 9th decile) are at most 1.2 times the usual length. Of sentences and paragraphs 0.8 and more, and 2 times.
ENDING, RAGGED = 0.5, 1.5
_ENDS = tuple('.!?…:;。！？｡।۔؟')
_CLOSING = '"\'”’»)]}*_ \t\r\f\v'

_HOW = {
    'text': 'documents with blank lines between them',
    'files': 'a document each',
    'jsonl': 'JSON, a document a line',
    'wikiextractor': "WikiExtractor's documents",
}


@dataclasses.dataclass(frozen=True)
class Reading:
    """How the files of one component are read.

    Attributes:
      name: of the component, or of the files that were named one by one.
      files: how many there are.
      format: the format in which most of those looked at are read.
      looked: how many were looked at.
      against: for how many of them the other meaning of blank lines seems right.
    """

    name: str
    files: int
    format: str
    looked: int
    against: int

    def __str__(self) -> str:
        counted = '1 file' if self.files == 1 else f'{self.files:,} files'
        text = f'{self.name}: {counted}, read as {_HOW[self.format]}'
        other = {'text': 'files', 'files': 'text'}.get(self.format)
        if self.against and self.files == 1:
            return f'{text}, although they look like paragraphs of one: leave blank lines between documents only'
        if self.against:
            text += f' ({self.against} of the {self.looked} looked at seem to be {_HOW[other]})'
        if other and self.files > 1:
            text += f'; --config.corpus_options.format={other} reads them as {_HOW[other]}'
        return text


def choose(found: Sequence[TextSource]) -> tuple[list[TextSource], list[Reading]]:
    """The sources of a corpus with `single` decided by content, and what was decided for each component."""
    chosen, readings = {}, []
    files = [source for source in found if source.kind == 'file']
    ordered = sorted(files, key=lambda source: source.component)
    for component, group in itertools.groupby(ordered, key=lambda source: source.component):
        members = list(group)
        seen = [_look(source) for source in _spread(members)]
        votes = [vote for _, vote in seen]
        single = _are_documents(votes, len(members))
        chosen |= {source.path: dataclasses.replace(source, single=single) for source in members}
        known = [format for format, _ in seen if format]
        if known:
            format = statistics.mode(known)
            format = 'files' if format == 'text' and single else format
            name = component or ', '.join([source.name for source in members[:3]] + ['…'] * (len(members) > 3))
            against = votes.count('text' if single else 'files')
            readings.append(Reading(name, len(members), format, len(seen), against))
    return [chosen.get(source.path, source) for source in found], readings


def _spread(members: Sequence[TextSource]) -> list[TextSource]:
    """Some of the files, at even distances, the first and the last among them."""
    count = min(FILES_LOOKED_AT, len(members))
    return [members[i * (len(members) - 1) // max(1, count - 1)] for i in range(count)]


def _are_documents(votes: Sequence[str], files: int) -> bool:
    """Whether each of the files is one document. A corpus of one file never is: it could not be paired or held out."""
    return files > 1 and (votes.count('files') > votes.count('text') or not any(votes))


def _look(source: TextSource) -> tuple[str, str]:
    """(format of a file, '' if it cannot be read; what its blank lines speak for, '' if it has none)."""
    compression, head = formats.read_head(source.path)
    if compression == formats.UNREADABLE or not head:
        return '', ''
    format = formats.sniff(source.path, head, 'auto/text')
    whole = len(head) >= source.size and not compression
    return format, what_blank_lines_end(head.decode('utf-8', 'replace'), whole=whole) if format == 'text' else ''


def what_blank_lines_end(text: str, *, whole: bool = True) -> str:
    """'text' where blank lines end documents, 'files' where they end paragraphs, '' where there are none inside.

    Args:
      text: of a file, from its beginning.
      whole: whether that is all of it; otherwise its last block is not looked at.
    """
    blocks = [
        list(lines)
        for blank, lines in itertools.groupby(text.splitlines(), key=lambda line: not line.strip('\ufeff \t\r\f\v'))
        if not blank
    ]
    blocks = blocks if whole or len(blocks) < 3 else blocks[:-1]
    if len(blocks) < 2:
        return ''
    if statistics.median(sum(len(line.split()) for line in block) for block in blocks) >= LONG_BLOCK:
        return 'text'
    if sum(len(block) > 1 for block in blocks) < BLOCK_OF_LINES * len(blocks):
        return 'files'
    inner = [line.rstrip(_CLOSING) for block in blocks for line in block[:-1]]
    lengths = sorted(map(len, inner))
    ragged = lengths[9 * len(lengths) // 10] > RAGGED * statistics.median(lengths)
    ending = sum(line.endswith(_ENDS) for line in inner) >= ENDING * len(inner)
    return 'text' if ending or ragged else 'files'
