"""The token store: a directory of memory-mapped token ids, with the offsets of sentences and documents.

Offsets count from the start of the split, and the last offset is the end of the split. manifest.json is written last.
It lists these files with their sizes and checksums:
  train-*.tokens, heldout-00000.tokens   ids, uint16 or int32; each document is in one file
  SPLIT.sentences                        int64 [sentences + 1], the first token of each sentence
  SPLIT.documents                        int64 [documents + 1], the first sentence of each document
  SPLIT.segments                         uint8 [sentences], the segment type of each sentence, if the data has segments
"""

import bisect
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib

import numpy as np
from etils import epath

from bertjax.errors import UserError
from bertjax.files.atomic import checksum
from bertjax.files.memory_map import map_array
from bertjax.files.small_files import read_json_object

STORE_FORMAT = 'bertjax token store'
STORE_VERSION = 1
CHECKSUM = 'blake2b-128'
_REBUILD = 'remove the directory and build it again from the text (--config.run=corpus)'


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the little-endian dtype of token ids: uint16 if all ids of the vocabulary fit, else int32."""
    return np.dtype('<u2' if vocab_size <= 1 << 16 else '<i4')


class StoreSplit:
    """The training or held-out split of a store.

    Attributes:
      name: 'train' or 'heldout'.
      num_documents, num_sentences, num_tokens: The counts in the split.
      sentence_offsets: int64 [num_sentences + 1], token offsets; the last is num_tokens.
      document_offsets: int64 [num_documents + 1], sentence indices; the last is num_sentences.
      segments: uint8 [num_sentences], the segment type of each sentence; None if the data has no segment types, or the
        split is empty.
      sha: The sha256 (hex) of the split's manifest entry, which contains the checksums of the files.
    """

    def __init__(self, directory: pathlib.Path, name: str, entry: dict, dtype: np.dtype):
        self.name = name
        self.num_documents, self.num_sentences = entry['documents'], entry['sentences']
        self.num_tokens = entry['tokens']
        self.sentence_offsets = map_array(directory / entry['sentence_offsets']['file'], '<i8')
        self.document_offsets = map_array(directory / entry['document_offsets']['file'], '<i8')
        segments = entry.get('segments')
        self.segments = map_array(directory / segments['file'], 'u1') if segments and segments['bytes'] else None
        self._starts = list(itertools.accumulate((shard['tokens'] for shard in entry['shards']), initial=0))
        self._directory, self._files = directory, entry['shards']
        self._shards: list[np.ndarray | None] = [None] * len(self._files)  # mapped at first use: each keeps a file open
        self._dtype = dtype
        self.sha = hash_json(entry)

    def tokens(self, start: int, length: int) -> np.ndarray:
        """Returns a read-only view of the `length` token ids from offset `start` of the split.

        Raises:
          IndexError: The range is outside the split, or spans two files.
          UserError: The file is missing or has another size than when the store was built.
        """
        index = bisect.bisect_right(self._starts, start) - 1
        if start < 0 or length < 0 or start + length > self.num_tokens:
            raise IndexError(f'tokens [{start}, {start + length}) are outside a split of {self.num_tokens} tokens')
        if length == 0:
            return np.empty(0, self._dtype)
        begin = start - self._starts[index]
        if start + length > self._starts[index + 1]:
            raise IndexError(f'tokens [{start}, {start + length}) cross the end of a document')
        shard = self._shards[index]
        if shard is None:
            _check_file(self._directory, self._files[index], verify=False)  # the file may have shrunk
            shard = self._shards[index] = map_array(self._directory / self._files[index]['file'], self._dtype)
        return shard[begin : begin + length]

    def document(self, index: int) -> list[np.ndarray]:
        """Returns the sentences of a document, each an array of token ids."""
        return self.sentences(int(self.document_offsets[index]), int(self.document_offsets[index + 1]))

    def sentences(self, first: int, last: int) -> list[np.ndarray]:
        """Returns the sentences [first, last) of the split, each an array of token ids."""
        bounds = self.sentence_offsets[first : last + 1].tolist()
        return [self.tokens(a, b - a) for a, b in itertools.pairwise(bounds)]


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """A token store that `open_store` has opened. The number of examples from a store is proportional to `weight`."""

    directory: pathlib.Path
    manifest: dict
    weight: float = 1.0

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of the store's version, content, dtype and tokenizer."""
        facts = {key: self.manifest[key] for key in ('version', 'dtype', 'tokenizer', 'splits')}
        return hash_json(facts)

    @property
    def report(self) -> dict:
        """The corpus report."""
        return self.manifest['report']

    @property
    def segments(self) -> int:
        """The number of segment types of the sequences; 0 if the store has none."""
        return self.manifest['settings'].get('segments', 0)

    def split(self, name: str) -> StoreSplit:
        """Returns the split `name`, 'train' or 'heldout'. The split 'heldout' may be empty."""
        return StoreSplit(self.directory, name, self.manifest['splits'][name], np.dtype(self.manifest['dtype']))


def hash_json(value: dict | list) -> str:
    """Returns the sha256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def token_files(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns all token files in the directory of a finished or unfinished store, including leftovers."""
    return [*directory.glob('train-*.tokens'), *directory.glob('heldout-*.tokens')]


def manifest_files(manifest: dict) -> list[dict]:
    """Returns the entries {file, bytes, checksum} of all files that a manifest lists."""
    entries = []
    for split in manifest['splits'].values():
        entries += [*split['shards'], split['sentence_offsets'], split['document_offsets']]
        entries += [split['segments']] if 'segments' in split else []
    return entries


def read_manifest(directory: epath.PathLike) -> dict:
    """Reads and checks the manifest of a store of this version.

    Raises:
      UserError: The directory has no store, or its manifest.json is of another kind or version, or was changed.
    """
    path = pathlib.Path(directory) / 'manifest.json'
    if not path.is_file():
        found = 'no manifest.json'
        if path.parent.joinpath('partial').is_dir():
            found += ', and an unfinished build'
        raise UserError(str(directory), found, 'a token store', 'run the command that builds it, or check the path')
    manifest = read_json_object(path, _REBUILD)
    if manifest.get('format') != STORE_FORMAT:
        raise UserError(str(path), 'another file', f'the manifest of a {STORE_FORMAT}', 'check the path')
    if manifest.get('version') != STORE_VERSION:
        raise UserError(str(path), f'version {manifest.get("version")!r}', f'version {STORE_VERSION}', _REBUILD)
    facts = {key: value for key, value in manifest.items() if key != 'checksum'}
    if manifest.get('checksum') != hash_json(facts):
        raise UserError(str(path), 'a changed manifest', 'the manifest as it was built', _REBUILD)
    return manifest


def manifest_text(manifest: dict) -> str:
    """Returns the content of manifest.json, including a checksum of the manifest."""
    text = json.dumps({**manifest, 'checksum': hash_json(manifest)}, indent=1, ensure_ascii=False) + '\n'
    # Lone surrogates, which Python uses in file names that are not UTF-8, become JSON escapes.
    return text.encode('utf-8', 'backslashreplace').decode('utf-8')


def open_store(
    directory: epath.PathLike, *, tokenizer_fingerprint: str | None = None, verify: bool = True
) -> TokenStore:
    """Opens a finished store.

    Args:
      directory: The local directory of the store. Its files are memory-mapped.
      tokenizer_fingerprint: The fingerprint of the tokenizer to use with the store; None skips this check.
      verify: Whether to read every file, in parallel, and compare its checksum. Sizes are always compared.

    Raises:
      UserError: The directory is not a store, the version or the tokenizer differs, or a file is missing or changed.
    """
    directory = pathlib.Path(directory)
    manifest = read_manifest(directory)
    built = manifest['tokenizer']['fingerprint']
    if tokenizer_fingerprint is not None and tokenizer_fingerprint != built:
        fix = f'give the tokenizer that the store was built with, or {_REBUILD}'
        raise UserError(
            str(directory), f'ids of the tokenizer {built}', f'ids of the tokenizer {tokenizer_fingerprint}', fix
        )
    with concurrent.futures.ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(lambda entry: _check_file(directory, entry, verify), manifest_files(manifest)))
    return TokenStore(directory, manifest)


def _check_file(directory: pathlib.Path, entry: dict, verify: bool) -> None:
    path = directory / entry['file']
    if not path.is_file():
        raise UserError(str(path), 'no such file', f'a file of {entry["bytes"]:,} bytes', _REBUILD)
    size = path.stat().st_size
    if size != entry['bytes']:
        raise UserError(str(path), f'{size:,} bytes', f'{entry["bytes"]:,} bytes', _REBUILD)
    if verify and checksum(path, CHECKSUM) != entry['checksum']:
        raise UserError(str(path), 'changed content', f'the checksum {entry["checksum"]}', _REBUILD)
