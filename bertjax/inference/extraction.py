"""Features of a file: computed part by part, kept, and at the end one file."""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertjax.errors import UserError
from bertjax.files.atomic import AtomicFile, write_atomic
from bertjax.files.whole import read_json_or_none
from bertjax.inference.extract import Extractor, labels
from bertjax.inference.feature_files import (
    save_part,
    token_counts,
    write_jsonl,
    write_npy,
    write_parquet,
    write_safetensors,
)
from bertjax.inference.input import Item, Source, chunks
from bertjax.tasks.reading.records import Row


@dataclasses.dataclass
class Extraction:
    """From a file of texts to a file of features, in memory that does not depend on how many there are.

    The input is read three times: to see that it is whole, to compute, and for what stands beside the features. The
    parts lie in a folder beside the target until that is written; the name of each follows from its texts, the model
    and what is asked of it, so that only those are taken over that are the same.

    Attributes:
      extractor: computes a part.
      source: the texts, in a file.
      target: what to write, by its suffix: .npy, .safetensors, .parquet or .jsonl.
      id: field of the records that names them, or ''.
      size: texts of a part.
    """

    extractor: Extractor
    source: Source
    target: pathlib.Path
    id: str
    size: int

    def __post_init__(self):
        self._facts = self.target.with_suffix('.json')
        self._folder = self.target.parent / f'{self.source.name}.parts'
        self._parts: list[pathlib.Path] = []
        self._identity, self._rows, self._blank = '', 0, 0

    def read(self) -> int:
        """Reads the input to its end, and counts the texts.

        Raises:
          UserError: whatever is wrong in it, with file and line.
        """
        digest = hashlib.sha256(f'{self.target.name} {self.id!r}'.encode())
        for number, items in enumerate(self._chunks(quiet=False)):
            for item in items:
                labels(item, self.source, self.id)
            key = self.extractor.key(items)
            self._parts.append(self._folder / f'{number:06d}-{key}')
            digest.update(key.encode())
            self._rows += len(items)
            self._blank += sum(not isinstance(item, Row) for item in items)
        self._identity = digest.hexdigest()
        return self._rows

    def is_done(self) -> bool:
        """Whether the target is there, and is what would be written."""
        known = read_json_or_none(self._facts, lambda found: (found['identity'], found['files']))
        done = known and known[0] == self._identity and all((self.target.parent / name).is_file() for name in known[1])
        if done:
            shutil.rmtree(self._folder, ignore_errors=True)
        return bool(done)

    def compute(self, advance: Callable[[int], object]) -> None:
        """Computes the parts that are not there; `advance` is told how many more texts are done.

        Raises:
          UserError: the input has changed.
        """
        wanted = {path.name for path in self._parts}
        kept = {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()
        for name in kept - wanted:  # of other texts, or of another model
            (self._folder / name).unlink()
        if kept & wanted:
            print(f'{len(kept & wanted):,} of {len(wanted):,} parts are there already')
        for path, items in itertools.zip_longest(self._parts, self._chunks()):
            if path is None or items is None or not path.name.endswith(self.extractor.key(items)):
                found, mend = 'other texts than a moment ago', 'start again when nobody writes to it'
                raise UserError(self.source.path, found, 'a file that stays as it is', mend)
            if path.name in kept:
                advance(len(items))
                continue
            save_part(path, self.extractor.part(items, advance))
            advance(sum(not isinstance(item, Row) for item in items))

    def write(self, options: Mapping[str, Any]) -> Iterator[str]:
        """Writes the target and what stands beside it, and removes the parts.

        Args:
          options: what NAME.json says of how the features were made.

        Yields:
          Lines for the user.
        """
        self._facts.unlink(missing_ok=True)  # what it says is of an earlier file
        for path in self.target.parent.glob('.*.tmp-*'):  # of a run that was killed; the workdir is ours alone
            path.unlink()
        files, longest = self._files(), self.extractor.max_length
        tokens, full = token_counts(self._parts, longest)
        facts = {'rows': self._rows, 'blank': self._blank, 'tokens': tokens, 'longest': longest, 'full': full}
        facts |= {'width': self.extractor.width, **options, 'files': [path.name for path in files]}
        write_atomic(self._facts, json.dumps({**facts, 'identity': self._identity}, indent=2) + '\n')
        shutil.rmtree(self._folder)
        if self._blank:
            yield f'{self._blank:,} of {self._rows:,} are blank: they keep their place, without features'
        if full:
            yield f'{full:,} have {longest} tokens, the most: what is longer was cut'
        yield f'features of {self._rows:,} texts, width {self.extractor.width}, {tokens:,} tokens read'
        yield ', '.join(map(str, [*files, self._facts]))

    def _files(self) -> list[pathlib.Path]:
        beside = ([labels(item, self.source, self.id) for item in items] for items in self._chunks())
        if self.target.suffix in ('.parquet', '.jsonl'):
            write = write_parquet if self.target.suffix == '.parquet' else write_jsonl
            return write(self.target, self._parts, beside, self.extractor.runner.model.tokenizer.pieces)
        files = (write_npy if self.target.suffix == '.npy' else write_safetensors)(self.target, self._parts)
        if not self.id:
            return files
        path = self.target.with_suffix('.ids.jsonl')
        with AtomicFile(path) as file:
            for rows in beside:
                file.write(''.join(json.dumps(row['id']) + '\n' for row in rows).encode())
        return [*files, path]

    def _chunks(self, quiet: bool = True) -> Iterator[list[Item]]:
        return chunks(self.source.items(quiet=quiet), self.size)
