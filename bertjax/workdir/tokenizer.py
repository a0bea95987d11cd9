"""WORKDIR/tokenizer: the tokenizer of the run, which is verified at every start.

The file `saved.json` has the checksums of the tokenizer's files and, for a trained vocabulary, records of its text.
`saved.json` is removed before these files change and written after them, so its existence marks a complete tokenizer.
"""

import json
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

from bertjax.corpus import identity
from bertjax.corpus.identity import KnownText
from bertjax.errors import UserError, printable
from bertjax.files.atomic import checksum, write_atomic
from bertjax.files.paths import display_path
from bertjax.files.small_files import read_json_or_none
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.lock import has_run

FOLDER, SAVED, TRAINED = 'tokenizer', 'saved.json', 'vocabulary.json'
# The files that `load_tokenizer` may read.
_FILES = ('tokenizer.model', 'spiece.model', 'tokenizer.json', 'vocab.txt', 'vocab.json', 'merges.txt')
_FILES += ('tokenizer_config.json', 'added_tokens.json', 'special_tokens_map.json')


def save_tokenizer(
    tokenizer: Tokenizer, workdir: pathlib.Path, *, key: str = '', text: Sequence[KnownText] | None = None
) -> None:
    """Replaces the workdir's tokenizer.

    For a trained vocabulary, `key` is `PretrainingSettings.vocabulary_key`, and `text` has the records of the text.

    Raises:
      UserError: The workdir's run has recorded another tokenizer.
    """
    directory = workdir / FOLDER
    config = workdir / 'config.json'
    recorded = read_json_or_none(config, lambda facts: facts['fingerprints']['tokenizer']) if has_run(workdir) else None
    if recorded not in (None, tokenizer.fingerprint):
        found, expected = f'the fingerprint {tokenizer.fingerprint[:16]}', f'{recorded[:16]}, as the run recorded'
        fix = 'give the text or the vocabulary with which the run started, or start anew in another --workdir'
        raise UserError('the tokenizer', found, expected, fix)
    for path in (directory / TRAINED, directory / SAVED, *directory.glob('.*.tmp-*')):
        path.unlink(missing_ok=True)
    written = tokenizer.save(directory)
    for path in _files(directory):  # remove old files, because `load_tokenizer` may prefer them
        if path.name not in written:
            path.unlink()
    files = {path.name: {'bytes': path.stat().st_size, 'sha256': checksum(path)} for path in _files(directory)}
    _write_saved(directory, files, text)
    if key:
        # This file is written last, because its existence marks a completely trained vocabulary.
        write_atomic(directory / TRAINED, key)


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    return [directory / name for name in _FILES if (directory / name).is_file()]


def _write_saved(directory: pathlib.Path, files: dict[str, Any], text: Sequence[KnownText] | None) -> None:
    facts = {'files': files, 'text': text}
    write_atomic(directory / SAVED, json.dumps(facts, indent=None if text else 1) + '\n')


def _read_saved(directory: pathlib.Path) -> dict[str, Any] | None:
    def parse(facts: dict) -> dict[str, Any]:
        files = {name: {key: file[key] for key in ('bytes', 'sha256')} for name, file in facts['files'].items()}
        return {'files': files, 'text': None if facts['text'] is None else identity.from_json(facts['text'])}

    return read_json_or_none(directory / SAVED, parse)


def read_vocabulary_text(workdir: pathlib.Path) -> list[KnownText]:
    """Returns the records of the text that the workdir's vocabulary was trained on."""
    return _read_complete(workdir / FOLDER)['text']


def update_vocabulary_text(workdir: pathlib.Path, text: Sequence[KnownText]) -> None:
    """Updates the recorded dates and inodes of the text that the workdir's vocabulary was trained on."""
    directory = workdir / FOLDER
    # Keep the recorded checksums, because the files have not been verified yet.
    _write_saved(directory, _read_complete(directory)['files'], text)


def _read_complete(directory: pathlib.Path) -> dict[str, Any]:
    saved = _read_saved(directory)
    if saved is None:
        raise _changed_error(directory / SAVED, 'no readable checksums', 'those of the saved files')
    return saved


def load_workdir_tokenizer(workdir: pathlib.Path) -> Tokenizer:
    """Loads the tokenizer of the workdir. Raises a UserError if a file is missing or has changed."""
    directory = workdir / FOLDER
    _check_files(directory, _read_complete(directory)['files'])
    return load_tokenizer(str(directory))


def check_export(workdir: pathlib.Path, exported: pathlib.Path) -> None:
    """Raises a UserError if a vocabulary file of an export gives other ids than the same file in WORKDIR/tokenizer.

    An export may change settings that do not affect the ids, such as the post-processor in a tokenizer.json.
    """
    for name, facts in (_read_saved(workdir / FOLDER) or {'files': {}})['files'].items():
        path = exported / name
        differs = name != 'tokenizer_config.json' and path.is_file() and checksum(path) != facts['sha256']
        if differs and load_tokenizer(exported).fingerprint != load_tokenizer(workdir / FOLDER).fingerprint:
            expected = f'the vocabulary that the run was trained with, as in {workdir / FOLDER}'
            raise UserError(
                str(path), 'other content', expected, f'copy the file from there, or export {workdir} again'
            )


def _check_files(directory: pathlib.Path, files: dict[str, dict[str, Any]]) -> None:
    for name in _FILES:
        path = directory / name
        if name not in files and path.exists():
            raise _changed_error(path, 'an unexpected file', 'no file of this name')
        if name in files and not path.is_file():
            raise _changed_error(path, 'no such file', f'the saved file of {files[name]["bytes"]:,} bytes')
        if name in files and checksum(path) != files[name]['sha256']:
            raise _changed_error(path, 'other content', f'the saved file (sha256 {files[name]["sha256"][:16]}…)')


def _changed_error(path: pathlib.Path, found: str, expected: str) -> UserError:
    remove = f'remove the folder {path.parent} and ' if path.parent.exists() else ''
    fix = f'undo the change, or {remove}repeat the training command, which makes the tokenizer again'
    return UserError(str(path), found, expected, fix)


def check_replaceable(workdir: pathlib.Path) -> None:
    """Raises a UserError if the tokenizer must not be replaced, because the workdir has checkpoints or trials."""
    saved = display_path(workdir / FOLDER)
    if (workdir / FOLDER).exists() and has_run(workdir):
        raise UserError(
            'the tokenizer',
            f'a tokenizer other than {saved} in config.tokenizer or config.init, or other settings of config.vocab',
            'the tokenizer of the checkpoints in this workdir',
            f'set --config.tokenizer={shlex.quote(saved)} to continue with it, or start anew in another --workdir',
        )


def set_workdir_tokenizer(tokenizer: Tokenizer, workdir: pathlib.Path, source: str = '') -> None:
    """Saves `tokenizer` to WORKDIR/tokenizer, unless it is there already. Prints `source` if another one is replaced.

    For errors, see `load_workdir_tokenizer` and `check_replaceable`.
    """
    directory = workdir / FOLDER
    # Without a run, the tokenizer may be incomplete after a kill, and is replaced. With a run, it must be complete.
    is_saved = directory.exists() and (_read_saved(directory) is not None or has_run(workdir))
    saved = load_workdir_tokenizer(workdir) if is_saved else None
    is_same = saved is not None and saved.fingerprint == tokenizer.fingerprint
    # A resumed run keeps its saved tokenizer, even if the number of separators differs.
    if is_same and (saved.separators == tokenizer.separators or has_run(workdir)):
        return
    check_replaceable(workdir)
    if saved is not None:
        print(printable(f'{source or "the tokenizer"} replaces another tokenizer in {directory}'))
    save_tokenizer(tokenizer, workdir)
