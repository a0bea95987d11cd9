"""Results in a workdir that are named after their input: those of another input of that name are not replaced."""

import pathlib
from collections.abc import Collection, Iterable
from typing import Any

from bertjax.errors import UserError
from bertjax.files.small_files import read_json_or_none

INPUT, FILES = 'input', 'files'  # of the facts beside results: which input they are of, and which files they describe


def recorded_files(facts: Iterable[pathlib.Path]) -> set[str]:
    """The files that facts describe, by name."""
    return {str(name) for path in facts for name in _read(path).get(FILES) or ()}


def check_overwrite(
    facts: Iterable[pathlib.Path], own: str, files: Collection[pathlib.Path], known: Collection[str]
) -> None:
    """Refuses to replace results of another input.

    Args:
      facts: JSON files that say of which input results are; they need not be there.
      own: the input, as they say it.
      files: that are going to be written.
      known: names of those among them that may be there already.

    Raises:
      UserError: other results are there, or a file that nobody knows anything of.
    """
    fix = 'give another --workdir, or move what is there'
    for path in facts:
        other = _read(path).get(INPUT, own)
        if other != own:
            raise UserError(str(path), f'results of {other}', f'none, or those of {own}', fix)
    for path in files:
        if path.exists() and path.name not in known:
            raise UserError(str(path), 'a file that is of another input, or unknown', 'none of this name', fix)


def _read(path: pathlib.Path) -> dict[str, Any]:
    found = read_json_or_none(path, dict)
    return found or {}
