"""Text for the tests of the corpus: written in every form, and read back from a store."""

import bz2
import gzip
import lzma
import pathlib

import zstandard

COMPRESS = {
    '': lambda data: data,
    '.gz': gzip.compress,
    '.bz2': bz2.compress,
    '.xz': lzma.compress,
    '.zst': zstandard.ZstdCompressor().compress,
}
WORDS = [
    'the',
    'old',
    'river',
    'ran',
    'past',
    'a',
    'quiet',
    'mill',
    'and',
    'children',
    'of',
    'town',
    'came',
    'there',
    'in',
    'summer',
    'to',
    'swim',
    'or',
    'fish',
]


def sentence(*key: int) -> str:
    """A sentence that differs for each key."""
    chosen = [WORDS[(7 * sum(key) + 3 * index + key[-1]) % len(WORDS)] for index in range(5 + key[-1] % 4)]
    return ' '.join([*chosen, 'x'.join(map(str, key))]).capitalize() + '.'


def documents(number: int, *, first: int = 0) -> list[list[str]]:
    """`number` different documents of one to five sentences each."""
    return [[sentence(doc, index) for index in range(1 + doc % 5)] for doc in range(first, first + number)]


def as_text(docs: list[list[str]], end: str = '\n') -> bytes:
    """A sentence a line, a blank line between documents."""
    return (end + end).join(end.join(doc) for doc in docs).encode() + end.encode()


def directory_bytes(directory: pathlib.Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob('*') if path.is_file()}


def ids_of(docs: list[list[str]], tokenizer) -> list[list[list[int]]]:
    """The token ids of documents' sentences."""
    return [[ids.tolist() for ids in tokenizer.encode(doc)] for doc in docs]


def stored(store, *names: str) -> list[list[list[int]]]:
    """The token ids of a store's documents, sorted, of both splits or of those named."""
    result = []
    for name in names or ('train', 'heldout'):
        split = store.split(name)
        result += [[ids.tolist() for ids in split.document(index)] for index in range(split.num_documents)]
    return sorted(result)
