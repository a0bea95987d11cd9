"""Feature extraction from a file: features are computed in parts, saved, and combined into one file at the end."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.config.inference import FEATURE_FORMATS
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile, write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.inference.extract import Extractor, item_columns
from bertjax.inference.feature_files import (
    count_tokens,
    output_files,
    save_part,
    write_jsonl,
    write_npy,
    write_parquet,
    write_safetensors,
)
from bertjax.inference.input import STANDARD_INPUT, InputSource, Item, split_chunks
from bertjax.inference.overwrite_guard import FILES, INPUT, check_overwrite, recorded_files
from bertjax.tasks.reading.records import Row


@dataclasses.dataclass
class Extraction:
    """Converts a file of texts to a file of features in constant memory.

    The input is read three times: to check it, to compute the features, and to write the columns beside them. The parts
    are stored in a folder beside the target until the target is written. The name of a part is derived from its texts,
    the model and the options, so that only identical parts are reused. The metadata file NAME.FORMAT.json, or a file
    among the parts until it is written, records the input: the features of another input are never replaced.

    Attributes:
      extractor: Computes a part.
      source: The texts, in a file or spooled from standard input.
      target: The output file; its suffix gives the format: .npy, .safetensors, .parquet or .jsonl.
      id: The field of the records that identifies them, or ''.
      size: The number of texts in a part.
    """

    extractor: Extractor
    source: InputSource
    target: pathlib.Path
    id: str
    size: int

    def __post_init__(self):
        self._facts = self.target.with_name(f'{self.target.name}.json')
        self._former = self.target.with_suffix('.json')  # Metadata of the first versions, one file for all formats.
        self._folder = self.target.parent / f'{self.source.name}.parts'
        self._claim = self._folder / 'input.json'
        self._parts: list[pathlib.Path] = []
        self._identity, self._origin, self._rows, self._blank = '', self.source.origin, 0, 0
        per_token = self.extractor.per_token
        self._files = output_files(self.target, per_token=per_token, id=bool(self.id))

    def read(self) -> int:
        """Reads the whole input and counts the texts.

        Raises:
          UserError: The input is malformed; the message names the file and the line.
        """
        digest, texts = hashlib.sha256(f'{self.target.name} {self.id!r}'.encode()), hashlib.sha256()
        for number, items in enumerate(self._chunks(quiet=False)):
            for item in items:
                columns = item_columns(item, self.source, self.id)
                texts.update(json.dumps(item.values if isinstance(item, Row) else None).encode())
                if self.id:
                    digest.update(json.dumps(columns['id']).encode())
            key = self.extractor.part_key(items)
            self._parts.append(self._folder / f'{number:06d}-{key}')
            digest.update(key.encode())
            self._rows += len(items)
            self._blank += sum(not isinstance(item, Row) for item in items)
        self._identity = digest.hexdigest()
        if self.source.path == STANDARD_INPUT:  # Identified by its texts, because it has no path.
            self._origin = f'standard input {texts.hexdigest()[:32]}'
        return self._rows

    def is_done(self) -> bool:
        """Returns whether the target exists with the content that `write` would give it."""
        for path in (self._facts, self._former):
            recorded = read_json_or_none(path, lambda facts: (facts['identity'], facts[FILES]))
            if not recorded or recorded[0] != self._identity:
                continue
            if all(self.target.with_name(name).is_file() for name in recorded[1]):
                shutil.rmtree(self._folder, ignore_errors=True)
                return True
        return False

    def check(self) -> None:
        """Checks that no features of another input, complete or partial, would be replaced.

        Raises:
          UserError: There are some, see `overwrite_guard.check_overwrite`.
        """
        facts = [self._facts, *self._others()]
        # Other formats count as known, because two formats may share the file of the ids.
        check_overwrite([*facts, self._claim], self._origin, self._files, self._replaced() | recorded_files(facts))

    def _replaced(self) -> set[str]:
        """Returns the names of files that earlier runs wrote, or may have written, for this input and format."""
        former = recorded_files([self._former])
        return recorded_files([self._facts, self._claim]) | (former if self.target.name in former else set())

    def _others(self) -> list[pathlib.Path]:
        """Returns the paths of the metadata for other formats."""
        names = (f'{self.target.stem}.{format}.json' for format in FEATURE_FORMATS)
        return [self.target.with_name(name) for name in names if name != self._facts.name]

    def compute(self, advance: Callable[[int], object]) -> None:
        """Computes the missing parts; calls `advance` with the number of newly finished texts.

        Raises:
          UserError: The input has changed since `read`.
        """
        names = sorted(self._replaced() | {path.name for path in self._files})
        write_atomic(self._claim, json.dumps({INPUT: self._origin, FILES: names}) + '\n')
        required = {path.name for path in self._parts}
        existing = {path.name for path in self._folder.iterdir()} - {self._claim.name}
        for name in existing - required:  # From other texts or another model.
            (self._folder / name).unlink()
        if existing & required:
            print(f'{len(existing & required):,} of {len(required):,} parts are there already')
        for path, items in itertools.zip_longest(self._parts, self._chunks()):
            if path is None or items is None or not path.name.endswith(self.extractor.part_key(items)):
                raise UserError(
                    self.source.path,
                    found='other texts than a moment ago',
                    expected='a file that does not change during the run',
                    fix='start again when nothing writes to it',
                )
            if path.name in existing:
                advance(len(items))
                continue
            save_part(path, self.extractor.compute_part(items, advance))
            advance(sum(not isinstance(item, Row) for item in items))

    def write(self, options: Mapping[str, Any]) -> Iterator[str]:
        """Writes the target with its accompanying files, and removes the parts.

        Args:
          options: How the features were made, for the metadata.

        Yields:
          Lines for the user.
        """
        stale = self._replaced() - {path.name for path in self._files} - recorded_files(self._others())
        if self.target.name in recorded_files([self._former]):
            self._former.unlink()
        self._facts.unlink(missing_ok=True)  # It describes an earlier file.
        for path in self.target.parent.glob('.*.tmp-*'):  # Left by a killed run; no other run uses the workdir.
            path.unlink()
        self._write_files()
        for name in stale:  # Written with other options.
            self.target.with_name(name).unlink(missing_ok=True)
        longest = self.extractor.max_length
        tokens, full = count_tokens(self._parts, longest)
        facts = {INPUT: self._origin, 'rows': self._rows, 'blank': self._blank, 'tokens': tokens, 'longest': longest}
        facts |= {'full': full, 'width': self.extractor.width, **options, FILES: [path.name for path in self._files]}
        write_atomic(self._facts, json.dumps({**facts, 'identity': self._identity}, indent=2) + '\n')
        shutil.rmtree(self._folder)
        if self._blank:
            yield f'{self._blank:,} of {self._rows:,} are blank: they keep their place, without features'
        if full:
            yield f'{full:,} have {longest} tokens, the maximum: longer texts were truncated'
        yield f'features of {self._rows:,} texts, width {self.extractor.width}, {tokens:,} tokens read'
        yield ', '.join(map(str, [*self._files, self._facts]))

    def _write_files(self) -> None:
        columns = ([item_columns(item, self.source, self.id) for item in items] for items in self._chunks())
        if self.target.suffix in ('.parquet', '.jsonl'):
            write = write_parquet if self.target.suffix == '.parquet' else write_jsonl
            write(self.target, self._parts, columns, self.extractor.runner.model.tokenizer.pieces)
            return
        (write_npy if self.target.suffix == '.npy' else write_safetensors)(self.target, self._parts)
        if self.id:
            with AtomicFile(self._files[-1]) as file:
                for rows in columns:
                    file.write(''.join(json.dumps(row['id']) + '\n' for row in rows).encode())

    def _chunks(self, quiet: bool = True) -> Iterator[list[Item]]:
        return split_chunks(self.source.items(quiet=quiet), self.size)
