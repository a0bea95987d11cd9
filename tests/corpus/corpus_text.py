"""Makes documents, compresses them, and reads the documents of a store."""

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
    'the', 'old', 'river', 'ran', 'past', 'a', 'quiet', 'mill', 'and', 'children', 'of', 'town',
    'came', 'there', 'in', 'summer', 'to', 'swim', 'or', 'fish',
]  # fmt: skip


def sentence(*key: int) -> str:
    """Returns a sentence that is unique for each key."""
    chosen = [WORDS[(7 * sum(key) + 3 * index + key[-1]) % len(WORDS)] for index in range(5 + key[-1] % 4)]
    return ' '.join([*chosen, 'x'.join(map(str, key))]).capitalize() + '.'


def documents(number: int, *, first: int = 0) -> list[list[str]]:
    """Returns `number` different documents of one to five sentences."""
    return [[sentence(doc, index) for index in range(1 + doc % 5)] for doc in range(first, first + number)]


def as_text(docs: list[list[str]], end: str = '\n') -> bytes:
    """Returns text with one sentence on each line and a blank line between documents."""
    return (end + end).join(end.join(doc) for doc in docs).encode() + end.encode()


def directory_bytes(directory: pathlib.Path) -> dict[str, bytes]:
    """Returns relative path -> content of all files below a directory."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob('*') if path.is_file()}


def ids_of(docs: list[list[str]], tokenizer) -> list[list[list[int]]]:
    return [[ids.tolist() for ids in tokenizer.encode(doc)] for doc in docs]


def stored(store, *names: str) -> list[list[list[int]]]:
    """Returns the sorted documents of the named splits (default: both), as lists of the token ids of sentences."""
    result = []
    for name in names or ('train', 'heldout'):
        split = store.split(name)
        result += [[ids.tolist() for ids in split.document(index)] for index in range(split.num_documents)]
    return sorted(result)
