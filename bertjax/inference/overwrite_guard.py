"""Keeps a run from overwriting the results of another input, whose result files may have the same names."""

import json
import pathlib
import shutil
from collections.abc import Collection, Iterable
from typing import Any

from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none

INPUT, FILES = 'input', 'files'  # keys of a metadata file: the input of the results, and the names of the result files


def recorded_files(facts: Iterable[pathlib.Path]) -> set[str]:
    """Returns the names of the files that the metadata files list."""
    return {str(name) for path in facts for name in read_json_or_none(path, lambda found: found[FILES]) or ()}


def check_overwrite(
    facts: Iterable[pathlib.Path], origin: str, files: Collection[pathlib.Path], known: Collection[str]
) -> None:
    """Raises a UserError if a run would replace results of another input, or a file of unknown origin.

    Args:
      facts: The metadata files (JSON) of existing results. They record the input of the results. A file may be missing.
      origin: The identity of this run's input, as recorded in the metadata.
      files: The paths of the files to write.
      known: The names of files that may be replaced.
    """
    fix = 'give another --workdir, or move the existing files'
    for path in facts:
        other = read_json_or_none(path, lambda found: found[INPUT]) or origin
        if other != origin:
            raise UserError(str(path), f'results of {other}', f'no results, or results of {origin}', fix)
    for path in files:
        if path.exists() and path.name not in known:
            raise UserError(str(path), 'a file of another input or of unknown origin', 'no file of this name', fix)


class ResultFiles:
    """The results FOLDER/NAME.jsonl, their metadata NAME.json, and the saved parts in the folder NAME.parts.

    Raises a UserError if the results would replace the input file, or the results of another input.
    """

    def __init__(self, folder: pathlib.Path, name: str, origin: str):
        self.target, self.facts, self.parts = (folder / f'{name}.{suffix}' for suffix in ('jsonl', 'json', 'parts'))
        self._origin = origin
        if origin in (str(self.target.resolve()), str(self.facts.resolve())):
            fix = 'move the file, or give another --workdir'
            raise UserError('config.input', f'{origin}, which would be replaced', 'a file elsewhere', fix)
        # Without a metadata file, an existing file of results may be overwritten.
        check_overwrite([self.facts], origin, [self.target], recorded_files([self.facts]) or {self.target.name})

    def read(self, identity: str) -> dict[str, Any] | None:
        """Returns the metadata if finished results with this identity exist, else None."""
        facts = read_json_or_none(self.facts, lambda found: found if found['identity'] == identity else None)
        return facts if self.target.exists() else None

    def write_facts(self, **facts: Any) -> None:
        """Writes the metadata, and removes the saved parts."""
        content = {INPUT: self._origin, FILES: [self.target.name], **facts}
        write_atomic(self.facts, json.dumps(content, indent=2) + '\n')
        shutil.rmtree(self.parts, ignore_errors=True)
