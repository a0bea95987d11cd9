"""Checks the directory of a store before a build, recognises a finished store, and removes leftovers afterwards.

A process may be killed between any two file operations. So the manifest is removed before any other file of a store,
the plan is written before the partial work (see `partial`), and the manifest is written after all other files. A
directory then always contains a complete store, partial work that matches its plan, or leftovers that no manifest or
plan lists.
"""

import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Sequence

from absl import logging

from bertjax.corpus import identity, store
from bertjax.corpus.identity import KnownText, LogFunction, Shards
from bertjax.corpus.sources import TextSource
from bertjax.errors import UserError
from bertjax.text.splitters import UNKNOWN

_STORE_FILES = re.compile(rf'(train|heldout)[^/]*\.(tokens|sentences|documents|segments)|{re.escape(identity.RECORD)}')
_PARTIAL_FILES = re.compile(r'(plan|refused)\.json|\d{5,}\.\w+|(repeats|distinct)-\d+|tokenizer|\..*\.tmp-\d+')

_OLD_DEFAULTS = {'sentences': 'rules'}  # the defaults of settings that the first versions did not have


def check_directory(directory: pathlib.Path) -> None:
    """Checks that a directory is absent, empty or a store.

    Raises:
      UserError: The path is a file, or the directory contains other files.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(str(directory), 'a file', 'a directory for the store', 'give another path')
    paths = [path for path in directory.iterdir() if not path.name.startswith('.')]
    foreign = sorted(path.name for path in paths if not _belongs_to_store(path))
    if 'partial' in foreign or (foreign and not {path.name for path in paths} & {'manifest.json', 'partial'}):
        raise UserError(
            str(directory), f'files that do not belong to a store ({", ".join(foreign[:3])})',
            'an empty directory or a store', 'give another path',
        )  # fmt: skip


def _belongs_to_store(path: pathlib.Path) -> bool:
    """Returns whether a path belongs to a store, its partial work, a run's pairing plans, or a store of a mixture."""
    if not path.is_dir():
        return _STORE_FILES.fullmatch(path.name) is not None
    if path.name == 'partial':
        return all(_PARTIAL_FILES.fullmatch(part.name) for part in path.iterdir())
    if path.name == 'plans':
        return all(plan.name.lstrip('.').startswith('plan-') for plan in path.iterdir())
    return path.name.isdigit() and any((path / name).exists() for name in ('manifest.json', 'partial'))


def find_finished_store(
    directory: pathlib.Path,
    expected: dict,
    sources: Sequence[TextSource],
    cuts: Callable[[], Iterable[Shards]],
    *,
    replace: bool,
    other_fix: str = '',
    log: LogFunction = logging.info,
) -> dict | None:
    """Returns the manifest of a finished store of the same text and settings; None if there is no such store.

    Args:
      directory: The directory of the store.
      expected: The values that determine the store's bytes, from `build`.
      sources: The sources of the text.
      cuts: A function that returns the ways in which the sources may have been cut into shards.
      replace: Whether a store of other text or settings may be replaced.
      other_fix: Another fix that the error suggests, besides restoring the text.
      log: A function that logs which files are read.

    Raises:
      UserError: The store has other text or settings and may not be replaced.
    """
    if not (directory / 'manifest.json').exists():
        return None
    manifest = store.read_manifest(directory)
    changed = [key for key in ('tokenizer', 'settings') if not _matches(manifest[key], expected[key])]
    words = {'tokenizer': 'another tokenizer', 'settings': 'other settings'}
    reason = ' and '.join(words[key] for key in changed) or _describe_other_text(
        directory, manifest, sources, cuts, log
    )
    if reason is None:
        splitter = manifest.get('splitter', 'rules 1')
        if replace and expected['splitter'] not in (splitter, UNKNOWN):
            logging.warning(
                'Using the token store in %s, whose sentences were split by %s. A new store would use %s. Remove the '
                'store to build it again.', directory, splitter, expected['splitter'],
            )  # fmt: skip
        remove_partial_files(directory, manifest)
        return manifest
    if not replace:
        keys = {'tokenizer': 'config.tokenizer', 'settings': 'config.corpus_options'}
        restored = ' and '.join(keys[key] for key in changed) or 'the files'
        raise UserError(
            str(directory),
            f'a token store of {reason}',
            'the text and the settings that the checkpoints beside it were trained on',
            f'restore {restored}{"" if "tokenizer" in changed else other_fix}, or start again in another --workdir',
        )
    logging.warning('The token store in %s was built from %s. Building it again.', directory, reason)
    return None


def _matches(manifest: dict, expected: dict) -> bool:
    """Returns whether a part of a manifest has the expected values. Missing settings have their old defaults."""
    return all(manifest.get(key, _OLD_DEFAULTS.get(key)) == value for key, value in expected.items())


def _describe_other_text(
    directory: pathlib.Path,
    manifest: dict,
    sources: Sequence[TextSource],
    cuts: Callable[[], Iterable[Shards]],
    log: LogFunction,
) -> str | None:
    """Describes how the text differs from that of a finished store; None if it does not differ.

    If the text is the same but its files have changed (for example their dates), the record of the store is updated.
    """
    content = manifest['inputs']['content']
    record = identity.read_record(directory, content)
    known = record['files'] if record else _infer_record(directory, manifest, sources)
    if known is None:
        return 'other text (other files, by name or size)'
    reason = identity.describe_other_files(known, sources)
    stale = [] if reason else identity.find_stale(known, sources)
    if any(known[i].digests is None for i in stale):
        known = identity.match_content(content, known, sources, cuts(), log)
        reason = None if known else 'some of it has changed'
    else:
        reason = reason or identity.describe_difference(known, sources, log)
    if reason:
        return f'other text ({reason})'
    if stale or record is None:
        _write_record(
            directory, content, identity.with_current_files(known, sources), record['readings'] if record else []
        )
    return None


def _write_record(directory: pathlib.Path, content: str, known: Sequence[KnownText], readings: Sequence[str]) -> None:
    try:
        identity.write_record(directory, content, known, readings)
    except OSError as error:  # the store is read-only, so each start reads moved files again
        logging.info('Cannot write %s in %s: %s', identity.RECORD, directory, error)


def _infer_record(directory: pathlib.Path, manifest: dict, sources: Sequence[TextSource]) -> list[KnownText] | None:
    """Makes the missing record of a store of the first versions. Files older than the manifest are assumed unchanged.

    Returns None if names or sizes differ.
    """
    names = identity.find_recorded_names(sources, manifest['inputs'])
    if names is None:
        return None
    built = (directory / 'manifest.json').stat().st_mtime_ns
    moved = not all(name in (source.name, source.old_name) for name, source in zip(names, sources, strict=True))
    newer = [moved or (source.stamp.isdigit() and int(source.stamp) > built) for source in sources]
    return [
        KnownText(name, None if source.kind == 'file' and new else identity.file_facts(source))
        for name, source, new in zip(names, sources, newer, strict=True)
    ]


def remove_partial_files(directory: pathlib.Path, manifest: dict) -> None:
    """Removes the files that only an unfinished store needs."""
    shutil.rmtree(directory / 'partial', ignore_errors=True)
    manifest_names = {entry['file'] for entry in store.manifest_files(manifest)}
    for path in [*store.token_files(directory), *directory.glob('*.segments'), *directory.glob('.*.tmp-*')]:
        if path.name not in manifest_names:
            path.unlink(missing_ok=True)
