"""Feature extraction from a file: features are computed in parts, saved, and combined at the end."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import pathlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.config.inference import FEATURE_FORMATS, ExtractKeys
from bertjax.config.ranges import format_value
from bertjax.data.features import describe_unknown_pieces
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile, write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.inference import feature_files
from bertjax.inference.encode import Encoding, build_sequences, describe_full, encode, token_spans
from bertjax.inference.input import STANDARD_INPUT, InputSource, Item, nonblank_texts, split_chunks
from bertjax.inference.overwrite_guard import FILES, INPUT, check_overwrite, recorded_files
from bertjax.inference.runner import Runner
from bertjax.inference.vector_files import read_ranges
from bertjax.progress import Advance
from bertjax.tasks.reading.records import Row
from bertjax.tasks.reading.texts import check_text, quote_names

# The number of texts in a part: PART_SIZE with one vector per text, TOKEN_PART_SIZE with one vector per token. A
# thousand vectors of width 768 take 3 MB. A text often has about 100 tokens.
PART_SIZE, TOKEN_PART_SIZE = 4096, 256
_VERSION = 5  # increase this number when a code change alters the parts of the same texts


@dataclasses.dataclass(frozen=True)
class Extractor:
    """Computes the features of texts, truncated to `runner.max_length` tokens, one part of a file at a time."""

    runner: Runner
    encoding: Encoding

    @property
    def width(self) -> int:
        """The width of the features."""
        return self.encoding.width(self.runner.model.config)

    @property
    def per_token(self) -> bool:
        """Whether there is one vector per token."""
        return self.encoding.pool == 'none'

    @functools.cached_property
    def identity(self) -> bytes:
        """A hash of the model and the options that determine the features of a text."""
        model = self.runner.model
        # The fingerprint of a tokenizer does not depend on its separators.
        options = (_VERSION, self.encoding, self.runner.max_length, model.tokenizer.separators)
        digest = hashlib.sha256(repr(options).encode() + model.fingerprint)
        for layer in self.encoding.dense:
            digest.update(layer.kernel.tobytes() + (b'' if layer.bias is None else layer.bias.tobytes()))
        return digest.digest()

    def part_key(self, items: Sequence[Item]) -> str:
        """Returns the key of a part: a hash of its texts, the model and the options."""
        texts = [item.values if isinstance(item, Row) else None for item in items]
        return hashlib.sha256(self.identity + json.dumps(texts).encode()).hexdigest()[:32]

    def compute_part(self, items: Sequence[Item], advance: Advance | None = None) -> feature_files.VectorPart:
        """Computes the features of items, in their order.

        `advance` is called with the numbers of finished non-blank items; None shows a progress bar.

        Returns:
          A dict of arrays, for N items.
            lengths: int32 [N], the number of tokens including [CLS] and [SEP]; 0 for a blank item.
            unknown: The `unknown_counts` of the non-blank items, int64 [4].
            features: float32 [N, D], NaN for a blank item. With one vector per token, [T, D] for all T tokens.
          With one vector per token, there are four more arrays, int32 [T].
            ids: The ids of the pieces.
            segments: 0 for the first text of an item, 1 for the second.
            starts, ends: The character span of the piece in its text; -1 for [CLS] and [SEP].
        """
        numbers, first, second = nonblank_texts(items)
        lengths = np.zeros(len(items), np.int32)
        shape = (0 if self.per_token else len(items), self.width)
        part = {'lengths': lengths, 'unknown': np.zeros(4, np.int64), 'features': np.full(shape, np.nan, np.float32)}
        if self.per_token:
            part |= {name: np.zeros(0, np.int32) for name in ('ids', 'segments', 'starts', 'ends')}
        if not numbers:
            return part
        tokenizer, prompted = self.runner.model.tokenizer, [self.encoding.prompt + text for text in first]
        features = build_sequences(tokenizer, prompted, second, self.runner.max_length)
        lengths[numbers], part['unknown'] = features.lengths, features.unknown_counts(tokenizer)
        rows = encode(self.runner, features, self.encoding, advance=advance)
        if not self.per_token:
            part['features'][numbers] = rows
            return part
        starts, ends = token_spans(tokenizer, features, first, second)
        positions = np.concatenate([np.arange(length) for length in features.lengths])
        segments = positions >= np.repeat(features.second, features.lengths)
        part |= {'segments': segments.astype(np.int32), 'starts': starts, 'ends': ends}
        return part | {'features': np.concatenate(rows), 'ids': features.tokens}


def compute_vectors(extractor: Extractor, texts: Sequence[str], folder: pathlib.Path, advance: Advance) -> np.ndarray:
    """Computes vectors of texts, float32 [N, D]. Parts are saved in `folder` by their `part_key`, and reused."""
    vectors = np.empty((len(texts), extractor.width), np.float32)
    for begin in range(0, len(texts), PART_SIZE):
        items = [Row('', (text,)) for text in texts[begin : begin + PART_SIZE]]
        path = folder / f'{extractor.part_key(items)}.npy'
        if path.exists():
            advance(len(items))
        else:
            with AtomicFile(path) as file:
                np.save(file, extractor.compute_part(items, advance)['features'])
        vectors[begin : begin + len(items)] = np.load(path)
    return vectors


def item_columns(item: Item, source: InputSource, id: str) -> dict[str, Any]:
    """Returns the columns that are written next to the features of an item.

    The columns `text` and, for a pair, `pair` contain the texts, or None for a blank item. If the argument `id` is not
    '', the column `id` contains the field that this argument names. Raises a UserError if the field is missing or its
    value cannot be written.
    """
    names = ('text', 'pair')[: len(source.columns)]
    texts = dict(zip(names, item.values if isinstance(item, Row) else (None, None), strict=False))
    if not id:
        return texts
    if item.fields is None or id not in item.fields:
        found = 'a plain line' if item.fields is None else f'the fields {quote_names(item.fields)}'
        fix = 'omit config.extract.id: the rows are in the order of the texts'
        raise UserError(item.where, found, f'the field {id!r} of config.extract.id', fix)
    value, where = item.fields[id], f'{item.where}, field {quote_names([id])}'
    if isinstance(value, str):
        check_text(value, where)
    elif not isinstance(value, int | None) and not (isinstance(value, float) and math.isfinite(value)):
        fix = 'name another field in config.extract.id, or leave the field empty'
        raise UserError(where, format_value(value), 'a string or a finite number', fix)  # JSON has no NaN
    return {'id': value, **texts}


@dataclasses.dataclass
class Extraction:
    """Converts a file of texts to a file of features in constant memory.

    The input is read up to three times: to check it, to compute the features, and to write the other columns. The
    features are computed in parts, which stay in a folder next to the target until the target is written, and which a
    later run with the same `Extractor.part_key` reuses. The metadata file NAME.FORMAT.json records the input, so that a
    run does not replace the features of another input. Until this file exists, input.json beside the parts records it.

    Attributes:
      target: The path of the output file. Its suffix selects the format: .npy, .safetensors, .parquet or .jsonl.
      options: The keys of config.extract. `extractor` already applies the keys of the encoding.
    """

    extractor: Extractor
    source: InputSource
    target: pathlib.Path
    options: ExtractKeys

    def __post_init__(self):
        self._size = self.options.part or (TOKEN_PART_SIZE if self.extractor.per_token else PART_SIZE)
        self._metadata_path = self.target.with_name(f'{self.target.name}.json')
        self._folder = self.target.parent / f'{self.source.name}.parts'
        self._input_path = self._folder / 'input.json'
        formats = [format for format in FEATURE_FORMATS if self.target.suffix != f'.{format}']
        self._other_metadata_paths = [self.target.with_suffix(f'.{format}.json') for format in formats]
        self._parts: list[pathlib.Path] = []
        self._identity, self._origin, self._rows, self._blank = '', self.source.origin, 0, 0
        self._files: list[pathlib.Path] = []  # the files to write; the ids, if any, are the last
        self._vector_files: list[pathlib.Path] = []  # the .npy files of vectors, if there is one vector per text
        self._ranges_path = self.target.with_suffix(feature_files.RANGES)
        self._ranges = read_ranges(self.options.precision, self.options.calibration, self.extractor.width)

    def read(self) -> int:
        """Reads all of the input and counts the texts. Raises a UserError with the file and the line of a mistake."""
        options = self.options
        ranges = self._ranges is not None and self._ranges.tolist()
        described = f'{self.target.name} {options.id!r} {options.precision} {options.shard} {ranges}'
        digest, texts = hashlib.sha256(described.encode()), hashlib.sha256()
        for number, items in enumerate(self._chunks(quiet=False)):
            for item in items:
                columns = item_columns(item, self.source, options.id)
                texts.update(json.dumps(item.values if isinstance(item, Row) else None).encode())
                if options.id:
                    digest.update(json.dumps(columns['id']).encode())
            key = self.extractor.part_key(items)
            self._parts.append(self._folder / f'{number:06d}-{key}')
            digest.update(key.encode())
            self._rows += len(items)
            self._blank += sum(not isinstance(item, Row) for item in items)
        self._identity = digest.hexdigest()
        self._name_files()
        if self.source.path == STANDARD_INPUT:  # Standard input has no path, so its texts identify it.
            self._origin = f'standard input {texts.hexdigest()[:32]}'
        return self._rows

    def _name_files(self) -> None:
        target, suffixes = self.target, []
        if target.suffix == '.npy' and self.extractor.per_token:
            suffixes = [feature_files.OFFSETS, feature_files.TOKENS]
        elif target.suffix == '.npy':
            shards = -(-self._rows // self.options.shard) if self.options.shard else 0
            names = [f'{target.stem}-{i:05d}-of-{shards:05d}.npy' for i in range(shards)] or [target.name]
            self._vector_files = [target.with_name(name) for name in names]
            suffixes = [feature_files.RANGES] if self.options.precision == 'int8' else []
        if self.options.id and target.suffix in ('.npy', '.safetensors'):
            suffixes += [feature_files.IDS]
        self._files = (self._vector_files or [target]) + [target.with_suffix(suffix) for suffix in suffixes]

    def is_done(self) -> bool:
        """Returns whether an earlier run has written the same output. If so, its remaining parts are removed."""
        identity = read_json_or_none(self._metadata_path, lambda facts: facts['identity'])
        is_done = identity == self._identity and all(path.is_file() for path in self._files)
        if is_done and not self._parts_of_other_runs():
            shutil.rmtree(self._folder, ignore_errors=True)
        return is_done

    def check(self) -> None:
        """Raises a UserError if the run would replace features of another input, or remove all parts of another run."""
        # The run may also replace files of other formats for this input, because two formats may share the file of ids.
        facts = [self._metadata_path, *self._other_metadata_paths, self._input_path]
        check_overwrite(facts, self._origin, self._files, recorded_files(facts))
        if saved := self._parts_of_other_runs():
            found = f'{len(saved):,} saved parts of other texts, another model or other options'
            fix = 'continue with the texts, model and options of the interrupted run, or remove this folder'
            raise UserError(str(self._folder), found, 'no saved parts, or parts of this run', fix)

    def _parts_of_other_runs(self) -> set[str]:
        """Returns the names of the saved parts if none of them belongs to this run, else an empty set."""
        saved = {path.name for path in self._folder.glob('[0-9]*')}  # The names of unfinished files begin with a dot.
        return saved if saved.isdisjoint(path.name for path in self._parts) else set()

    def _earlier_files(self) -> set[str]:
        """Returns the names of files that earlier runs wrote, or may have written, for this input and format."""
        return recorded_files([self._metadata_path, self._input_path])

    def compute(self, advance: Advance) -> None:
        """Computes the missing parts and removes others. Raises a UserError if the input has changed since `read`."""
        names = sorted(self._earlier_files() | {path.name for path in self._files})
        write_atomic(self._input_path, json.dumps({INPUT: self._origin, FILES: names}) + '\n')
        required = {path.name for path in self._parts}
        existing = {path.name for path in self._folder.iterdir()} - {self._input_path.name}
        for name in existing - required:  # These parts belong to other texts; see `check`.
            (self._folder / name).unlink()
        if existing & required:
            print(f'{len(existing & required):,} of {len(required):,} parts already exist')
        for path, items in itertools.zip_longest(self._parts, self._chunks()):
            if path is None or items is None or not path.name.endswith(self.extractor.part_key(items)):
                found, expected = 'texts that changed during the run', 'a file that does not change during the run'
                fix = 'start again when no other program writes to the file'
                raise UserError(self.source.path, found, expected, fix)
            if path.name in existing:
                advance(len(items))
                continue
            feature_files.save_part(path, self.extractor.compute_part(items, advance))
            advance(sum(not isinstance(item, Row) for item in items))

    def write(self, encoding: Mapping[str, Any]) -> Iterator[str]:
        """Writes the target, the files beside it and the metadata with `encoding`. Yields messages for the user."""
        stale = self._earlier_files() - {path.name for path in self._files} - recorded_files(self._other_metadata_paths)
        self._metadata_path.unlink(missing_ok=True)  # It describes an earlier file.
        for path in self.target.parent.glob('.*.tmp-*'):  # A killed run left these; no other run uses the workdir.
            path.unlink()
        self._write_files()
        for name in stale:  # A run with other options wrote these.
            self.target.with_name(name).unlink(missing_ok=True)
        longest = self.extractor.runner.max_length
        tokens, full, unknown = feature_files.count_tokens(self._parts, longest)
        facts = {INPUT: self._origin, 'rows': self._rows, 'blank': self._blank, 'tokens': tokens, 'longest': longest}
        facts |= {'full': full, 'width': self.extractor.width, **encoding, FILES: [path.name for path in self._files]}
        if self._vector_files:
            facts |= {'precision': self.options.precision, 'vectors': [path.name for path in self._vector_files]}
            facts |= {'ranges': self._ranges_path.name} if self.options.precision == 'int8' else {}
        write_atomic(self._metadata_path, json.dumps({**facts, 'identity': self._identity}, indent=2) + '\n')
        shutil.rmtree(self._folder)
        if self._blank:
            yield f'{self._blank:,} of {self._rows:,} texts are blank: they have rows, but no features'
        if full:
            yield describe_full(full, longest)
        yield from describe_unknown_pieces(unknown, self.extractor.runner.model.tokenizer)
        yield f'features of {self._rows:,} texts, width {self.extractor.width}, {tokens:,} tokens read'
        yield ', '.join(map(str, [*self._files, self._metadata_path]))

    def _write_files(self) -> None:
        columns = ([item_columns(item, self.source, self.options.id) for item in items] for items in self._chunks())
        if self.target.suffix in ('.parquet', '.jsonl'):
            write = feature_files.write_parquet if self.target.suffix == '.parquet' else feature_files.write_jsonl
            write(self.target, self._parts, columns, self.extractor.runner.model.tokenizer.pieces)
            return
        if self._vector_files:
            precision, ranges = self.options.precision, self._ranges
            if precision == 'int8':
                ranges = feature_files.find_ranges(self._parts) if ranges is None else ranges
                with AtomicFile(self._ranges_path) as file:
                    np.save(file, ranges)
            shard = self.options.shard or self._rows
            feature_files.write_vectors(self._vector_files, self._parts, self._size, shard, precision, ranges)
        else:
            write = feature_files.write_npy if self.target.suffix == '.npy' else feature_files.write_safetensors
            write(self.target, self._parts)
        if self.options.id:
            with AtomicFile(self._files[-1]) as file:
                for rows in columns:
                    file.write(''.join(json.dumps(row['id']) + '\n' for row in rows).encode())

    def _chunks(self, quiet: bool = True) -> Iterator[list[Item]]:
        return split_chunks(self.source.items(quiet=quiet), self._size)
