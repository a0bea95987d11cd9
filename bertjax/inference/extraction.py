"""Features of a file: computed part by part, kept, and at the end one file."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.config.using import FEATURE_FORMATS
from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile, write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.inference.extract import Extractor, labels
from bertjax.inference.feature_files import (
    files_of,
    save_part,
    token_counts,
    write_jsonl,
    write_npy,
    write_parquet,
    write_safetensors,
)
from bertjax.inference.input import STANDARD_INPUT, InputSource, Item, chunks
from bertjax.inference.overwrite_guard import FILES, INPUT, check_overwrite, recorded_files
from bertjax.tasks.reading.records import Row


@dataclasses.dataclass
class Extraction:
    """From a file of texts to a file of features, in memory that does not depend on how many there are.

    The input is read three times: to see that it is whole, to compute, and for what stands beside the features. The
    parts lie in a folder beside the target until that is written; the name of each follows from its texts, the model
    and what is asked of it, so that only those are taken over that are the same. The facts, NAME.FORMAT.json, and until
    they are there a file among the parts, say which input it is: features of another one are not replaced.

    Attributes:
      extractor: computes a part.
      source: the texts, in a file, or standard input in one.
      target: what to write, by its suffix: .npy, .safetensors, .parquet or .jsonl.
      id: field of the records that names them, or ''.
      size: texts of a part.
    """

    extractor: Extractor
    source: InputSource
    target: pathlib.Path
    id: str
    size: int

    def __post_init__(self):
        self._facts = self.target.with_name(f'{self.target.name}.json')
        self._former = self.target.with_suffix('.json')  # the facts of the first versions, one file for all formats
        self._folder = self.target.parent / f'{self.source.name}.parts'
        self._claim = self._folder / 'input.json'
        self._parts: list[pathlib.Path] = []
        self._identity, self._origin, self._rows, self._blank = '', self.source.origin, 0, 0
        of_tokens = self.extractor.of_tokens
        self._files = files_of(self.target, of_tokens=of_tokens, id=bool(self.id))

    def read(self) -> int:
        """Reads the input to its end, and counts the texts.

        Raises:
          UserError: whatever is wrong in it, with file and line.
        """
        digest, texts = hashlib.sha256(f'{self.target.name} {self.id!r}'.encode()), hashlib.sha256()
        for number, items in enumerate(self._chunks(quiet=False)):
            for item in items:
                beside = labels(item, self.source, self.id)
                texts.update(json.dumps(item.values if isinstance(item, Row) else None).encode())
                if self.id:
                    digest.update(json.dumps(beside['id']).encode())
            key = self.extractor.key(items)
            self._parts.append(self._folder / f'{number:06d}-{key}')
            digest.update(key.encode())
            self._rows += len(items)
            self._blank += sum(not isinstance(item, Row) for item in items)
        self._identity = digest.hexdigest()
        if self.source.path == STANDARD_INPUT:  # known by its texts alone
            self._origin = f'standard input {texts.hexdigest()[:32]}'
        return self._rows

    def is_done(self) -> bool:
        """Whether the target is there, and is what would be written."""
        for facts in (self._facts, self._former):
            known = read_json_or_none(facts, lambda found: (found['identity'], found[FILES]))
            if known and known[0] == self._identity and all(self.target.with_name(name).is_file() for name in known[1]):
                shutil.rmtree(self._folder, ignore_errors=True)
                return True
        return False

    def check(self) -> None:
        """Refuses to replace features of another input, whole ones or parts of them.

        Raises:
          UserError: some are there, see `kept.check_overwrite`.
        """
        facts = [self._facts, *self._others()]
        # Of this input or refused: a file that two formats share, that of the ids, may be written again.
        check_overwrite([*facts, self._claim], self._origin, self._files, self._replaced() | recorded_files(facts))

    def _replaced(self) -> set[str]:
        """Names of files that are there, or may be, of this input, and in this format."""
        former = recorded_files([self._former])
        return recorded_files([self._facts, self._claim]) | (former if self.target.name in former else set())

    def _others(self) -> list[pathlib.Path]:
        """Where the facts of the features in other formats are."""
        names = (f'{self.target.stem}.{format}.json' for format in FEATURE_FORMATS)
        return [self.target.with_name(name) for name in names if name != self._facts.name]

    def compute(self, advance: Callable[[int], object]) -> None:
        """Computes the parts that are not there; `advance` is told how many more texts are done.

        Raises:
          UserError: the input has changed.
        """
        ours = sorted(self._replaced() | {path.name for path in self._files})
        write_atomic(self._claim, json.dumps({INPUT: self._origin, FILES: ours}) + '\n')
        wanted = {path.name for path in self._parts}
        kept = {path.name for path in self._folder.iterdir()} - {self._claim.name}
        for name in kept - wanted:  # of other texts, or of another model
            (self._folder / name).unlink()
        if kept & wanted:
            print(f'{len(kept & wanted):,} of {len(wanted):,} parts are there already')
        for path, items in itertools.zip_longest(self._parts, self._chunks()):
            if path is None or items is None or not path.name.endswith(self.extractor.key(items)):
                found, fix = 'other texts than a moment ago', 'start again when nobody writes to it'
                raise UserError(self.source.path, found, 'a file that stays as it is', fix)
            if path.name in kept:
                advance(len(items))
                continue
            save_part(path, self.extractor.part(items, advance))
            advance(sum(not isinstance(item, Row) for item in items))

    def write(self, options: Mapping[str, Any]) -> Iterator[str]:
        """Writes the target and what stands beside it, and removes the parts.

        Args:
          options: what the facts say of how the features were made.

        Yields:
          Lines for the user.
        """
        stale = self._replaced() - {path.name for path in self._files} - recorded_files(self._others())
        if self.target.name in recorded_files([self._former]):
            self._former.unlink()
        self._facts.unlink(missing_ok=True)  # what it says is of an earlier file
        for path in self.target.parent.glob('.*.tmp-*'):  # of a run that was killed; the workdir is ours alone
            path.unlink()
        self._write_files()
        for name in stale:  # of other options
            self.target.with_name(name).unlink(missing_ok=True)
        longest = self.extractor.max_length
        tokens, full = token_counts(self._parts, longest)
        facts = {INPUT: self._origin, 'rows': self._rows, 'blank': self._blank, 'tokens': tokens, 'longest': longest}
        facts |= {'full': full, 'width': self.extractor.width, **options, FILES: [path.name for path in self._files]}
        write_atomic(self._facts, json.dumps({**facts, 'identity': self._identity}, indent=2) + '\n')
        shutil.rmtree(self._folder)
        if self._blank:
            yield f'{self._blank:,} of {self._rows:,} are blank: they keep their place, without features'
        if full:
            yield f'{full:,} have {longest} tokens, the most: what is longer was cut'
        yield f'features of {self._rows:,} texts, width {self.extractor.width}, {tokens:,} tokens read'
        yield ', '.join(map(str, [*self._files, self._facts]))

    def _write_files(self) -> None:
        beside = ([labels(item, self.source, self.id) for item in items] for items in self._chunks())
        if self.target.suffix in ('.parquet', '.jsonl'):
            write = write_parquet if self.target.suffix == '.parquet' else write_jsonl
            write(self.target, self._parts, beside, self.extractor.runner.model.tokenizer.pieces)
            return
        (write_npy if self.target.suffix == '.npy' else write_safetensors)(self.target, self._parts)
        if self.id:
            with AtomicFile(self._files[-1]) as file:
                for rows in beside:
                    file.write(''.join(json.dumps(row['id']) + '\n' for row in rows).encode())

    def _chunks(self, quiet: bool = True) -> Iterator[list[Item]]:
        return chunks(self.source.items(quiet=quiet), self.size)
