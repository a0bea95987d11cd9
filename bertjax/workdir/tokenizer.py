"""WORKDIR/tokenizer: the run's tokenizer, whole or not there, and at every start the one that was saved.

`saved.json` beside its files holds their checksums, and of a vocabulary that was trained, what text it was trained on.
It is written after them and removed before them.
"""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from bertjax.corpus import identity
from bertjax.corpus.identity import KnownText
from bertjax.errors import UserError, printable
from bertjax.files.atomic import checksum, write_atomic
from bertjax.files.small_files import read_json_or_none
from bertjax.text.tokenizer import Tokenizer, load_tokenizer
from bertjax.workdir.lock import has_run

FOLDER, SAVED, TRAINED = 'tokenizer', 'saved.json', 'vocabulary.json'
# Whatever `load_tokenizer` looks at.
_FILES = ('tokenizer.model', 'spiece.model', 'tokenizer.json', 'vocab.txt', 'vocab.json', 'merges.txt')
_FILES += ('tokenizer_config.json',)


def save_tokenizer(
    tokenizer: Tokenizer, workdir: pathlib.Path, *, key: str = '', text: Sequence[KnownText] | None = None
) -> None:
    """Replaces the workdir's tokenizer.

    Args:
      tokenizer: the new one.
      workdir: of the run.
      key: of a vocabulary that was trained, `PretrainingSettings.vocabulary_key`.
      text: that it was trained on.

    Raises:
      UserError: the workdir has a run with another tokenizer (and lost its folder).
    """
    own = workdir / FOLDER
    recorded = _recorded_fingerprint(workdir)
    if recorded not in (None, tokenizer.fingerprint):
        found, expected = f'the fingerprint {tokenizer.fingerprint[:16]}', f'{recorded[:16]}, as the run recorded'
        fix = 'give the text or the vocabulary that the run began with, or start anew in another --workdir'
        raise UserError('the tokenizer', found, expected, fix)
    for path in (own / SAVED, own / TRAINED, *own.glob('.*.tmp-*')):
        path.unlink(missing_ok=True)
    former = {path: path.stat().st_ino for path in _files(own)}
    tokenizer.save(own)
    for path in _files(own):  # Of a tokenizer of another family, whose files come first when one is loaded.
        if path.stat().st_ino == former.get(path):
            path.unlink()
    _write_saved(own, text)
    if key:
        # Last: its presence says that the vocabulary is whole, and what it was trained for.
        write_atomic(own / TRAINED, key)


def complete_tokenizer(tokenizer: Tokenizer, workdir: pathlib.Path) -> None:
    """Saves a tokenizer where a kill, or the first versions, left it without checksums and perhaps without a file."""
    tokenizer.save(workdir / FOLDER)
    _write_saved(workdir / FOLDER)


def _files(own: pathlib.Path) -> list[pathlib.Path]:
    return [own / name for name in _FILES if (own / name).is_file()]


def _write_saved(own: pathlib.Path, text: Sequence[KnownText] | None = None, files: dict | None = None) -> None:
    """Writes saved.json, for the files as they lie there now where none are given."""
    if files is None:
        files = {path.name: {'bytes': path.stat().st_size, 'sha256': checksum(path)} for path in _files(own)}
    facts = {'files': files, 'text': None if text is None else identity.to_json(text)}
    write_atomic(own / SAVED, json.dumps(facts, indent=None if text else 1) + '\n')


def _read_saved(own: pathlib.Path) -> dict[str, Any] | None:
    def parse(facts: dict) -> dict[str, Any]:
        files = {name: {key: one[key] for key in ('bytes', 'sha256')} for name, one in facts['files'].items()}
        return {'files': files, 'text': None if facts['text'] is None else identity.from_json(facts['text'])}

    return read_json_or_none(own / SAVED, parse)


def text_of_vocabulary(workdir: pathlib.Path) -> list[KnownText] | None:
    """What the workdir's vocabulary was trained on; None where the first versions trained it, or nobody."""
    saved = _read_saved(workdir / FOLDER)
    return saved and saved['text']


def remember_text(workdir: pathlib.Path, text: Sequence[KnownText]) -> None:
    """Keeps the present dates and places of the text that the workdir's vocabulary was trained on."""
    own = workdir / FOLDER
    # With the checksums that it has: whether the files are still those is not known yet.
    _write_saved(own, text, _read_saved(own)['files'])


def is_complete(workdir: pathlib.Path) -> bool:
    """Whether a tokenizer was saved to its end; those of the first versions count as not."""
    return _read_saved(workdir / FOLDER) is not None


def load_workdir_tokenizer(workdir: pathlib.Path) -> Tokenizer:
    """The workdir's tokenizer.

    Raises:
      UserError: a file of it is not the one that was saved.
    """
    own = workdir / FOLDER
    saved = _read_saved(own)
    if saved is not None:
        _check_files(own, saved['files'])
        return load_tokenizer(str(own))
    tokenizer = load_tokenizer(str(own))
    recorded = _recorded_fingerprint(workdir)
    if recorded not in (None, tokenizer.fingerprint):
        raise _changed(own, f'fingerprint {tokenizer.fingerprint[:16]}', f'{recorded[:16]}, as the run recorded')
    return tokenizer


def keep_checksums(workdir: pathlib.Path) -> None:
    """Writes the checksums of a tokenizer that has none; call it after `load_workdir_tokenizer`."""
    if not is_complete(workdir):
        _write_saved(workdir / FOLDER)


def check_export(workdir: pathlib.Path, exported: pathlib.Path) -> None:
    """Refuses the export of a run whose vocabulary is not the run's any more.

    Raises:
      UserError: a file of it is not the one in WORKDIR/tokenizer.
    """
    for name, facts in (_read_saved(workdir / FOLDER) or {'files': {}})['files'].items():
        path = exported / name
        if name != 'tokenizer_config.json' and path.is_file() and checksum(path) != facts['sha256']:
            expected = f'the vocabulary that it was trained with, as in {workdir / FOLDER}'
            raise UserError(
                str(path), 'other content', expected, f'copy the file from there, or export {workdir} again'
            )


def _check_files(own: pathlib.Path, files: dict[str, dict[str, Any]]) -> None:
    for name in _FILES:
        path = own / name
        if name not in files and path.exists():
            raise _changed(path, 'a file that was not saved there', 'none of that name')
        if name in files and not path.is_file():
            raise _changed(path, 'no such file', f'the one that was saved, of {files[name]["bytes"]:,} bytes')
        if name in files and checksum(path) != files[name]['sha256']:
            raise _changed(path, 'other content', f'what was saved (sha256 {files[name]["sha256"][:16]}…)')


def _changed(path: pathlib.Path, found: str, expected: str) -> UserError:
    folder = path if path.name == FOLDER else path.parent
    fix = f'restore it, or remove the folder {folder}: the same training command makes it again, and refuses another'
    return UserError(str(path), found, expected, fix)


def _recorded_fingerprint(workdir: pathlib.Path) -> str | None:
    """Of the tokenizer with which the workdir's run began, if there is a run that knows it."""
    if not has_run(workdir):
        return None
    return read_json_or_none(workdir / 'config.json', lambda facts: facts['fingerprints']['tokenizer'])


def check_replaceable(workdir: pathlib.Path) -> None:
    """Refuses to replace the tokenizer of a workdir that has checkpoints, or trials of a sweep."""
    own = workdir / FOLDER
    if own.exists() and has_run(workdir):
        raise UserError(
            'the tokenizer',
            f'another one in config.tokenizer or config.init, or other settings of config.vocab, than that of {own}',
            'the one that the checkpoints beside it were trained with',
            f'set --config.tokenizer={own} to continue with that, or start anew in another --workdir',
        )


def keep_tokenizer(tokenizer: Tokenizer, workdir: pathlib.Path, given: str = '') -> None:
    """Saves `tokenizer` to WORKDIR/tokenizer where it is not there already.

    Args:
      tokenizer: the run's.
      workdir: of the run.
      given: where it is from, to say when it replaces another one.

    Raises:
      UserError: see `load_workdir_tokenizer` and `check_replaceable`.
    """
    own = _load_if_any(workdir)
    if (
        own is not None
        and own.fingerprint == tokenizer.fingerprint
        and (
            own.separators == tokenizer.separators or has_run(workdir)  # which began with the one, and goes on with it
        )
    ):
        if not is_complete(workdir):
            complete_tokenizer(tokenizer, workdir)
        return
    check_replaceable(workdir)
    if own is not None:
        print(printable(f'{given or "the tokenizer"} replaces another one in {workdir / FOLDER}'))
    save_tokenizer(tokenizer, workdir)


def _load_if_any(workdir: pathlib.Path) -> Tokenizer | None:
    """The workdir's tokenizer; None where there is none, or only what a kill left of one."""
    if not (workdir / FOLDER).exists():
        return None
    try:
        return load_workdir_tokenizer(workdir)
    except UserError:
        if is_complete(workdir) or has_run(workdir):
            raise
        return None
