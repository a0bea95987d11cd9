"""Protects results in a workdir: results are named after their input, and another input may have the same name."""

import pathlib
from collections.abc import Collection, Iterable
from typing import Any

from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none

INPUT, FILES = 'input', 'files'  # Keys of the metadata of results: their input, and the names of their files.


def recorded_files(facts: Iterable[pathlib.Path]) -> set[str]:
    """Returns the names of the files that the metadata files list."""
    return {str(name) for path in facts for name in _read(path).get(FILES) or ()}


def check_overwrite(
    facts: Iterable[pathlib.Path], origin: str, files: Collection[pathlib.Path], known: Collection[str]
) -> None:
    """Checks that no results of another input would be replaced.

    Args:
      facts: The JSON metadata files of results, which record the input; they need not exist.
      origin: The identity of this run's input, as `facts` record it.
      files: The files to write.
      known: The names of the files that may exist already.

    Raises:
      UserError: Results of another input exist, or a file of unknown origin.
    """
    fix = 'give another --workdir, or move what is there'
    for path in facts:
        other = _read(path).get(INPUT, origin)
        if other != origin:
            raise UserError(str(path), f'results of {other}', f'none, or those of {origin}', fix)
    for path in files:
        if path.exists() and path.name not in known:
            raise UserError(str(path), 'a file that is of another input, or unknown', 'none of this name', fix)


def _read(path: pathlib.Path) -> dict[str, Any]:
    return read_json_or_none(path, dict) or {}
