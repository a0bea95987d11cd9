"""Checks the directory of a store before a build, recognises a finished store, and removes leftovers afterwards.

A process may be killed between any two file operations. So the manifest is removed before any other file of a store,
the plan is written before the partial work (see `partial`), and the manifest is written after all other files. A
directory then always contains a complete store, partial work that matches its plan, or leftovers that no manifest or
plan lists.
"""

import pathlib
import re
import shutil
from collections.abc import Callable, Sequence

from absl import logging

from bertjax.corpus import identity, store
from bertjax.corpus.identity import LogFunction
from bertjax.corpus.partial import BuildPlan
from bertjax.corpus.sources import TextSource
from bertjax.errors import UserError
from bertjax.text.splitters import UNKNOWN

_STORE_FILES = re.compile(rf'(train|heldout)[^/]*\.(tokens|sentences|documents|segments)|{re.escape(identity.RECORD)}')
_PARTIAL_FILES = re.compile(r'(plan|refused)\.json|\d{5,}\.\w+|(repeats|distinct)-\d+|tokenizer|\..*\.tmp-\d+')


def check_directory(directory: pathlib.Path) -> None:
    """Checks that a directory is absent or empty, or contains a store or an unfinished store.

    Raises:
      UserError: The path is a file, or a directory with other files but no store.
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
    """Returns whether a path beside a manifest belongs to the store, a run's pairing plans, or a store of a mixture."""
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
    make_plan: Callable[[], BuildPlan],
    *,
    replace: bool,
    other_fix: str = '',
    log: LogFunction = logging.info,
) -> dict | None:
    """Returns the manifest of a finished store of the same text, tokenizer and settings; None if there is none.

    Args:
      directory: The directory of the store.
      expected: The values that determine the store's bytes, from `build`.
      sources: The sources of the text.
      make_plan: A function that returns the `BuildPlan` of the sources.
      replace: Whether a store of other text or settings may be replaced.
      other_fix: See `build.build_store`.
      log: A function that logs which files are read.

    Raises:
      UserError: The store has other text or settings and may not be replaced, or its manifest is invalid.
    """
    if not (directory / 'manifest.json').exists():
        return None
    manifest = store.read_manifest(directory)
    changed = [key for key in ('tokenizer', 'settings') if manifest[key] != expected[key]]
    words = {'tokenizer': 'another tokenizer', 'settings': 'other settings'}
    reason = ' and '.join(words[key] for key in changed)
    if not reason:
        reason = _describe_other_text(directory, manifest['inputs'], expected['inputs'], sources, make_plan, log)
    if reason is None:
        splitter = manifest['splitter']
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
    logging.warning('The token store in %s was built with %s. Building it again.', directory, reason)
    return None


def _describe_other_text(
    directory: pathlib.Path,
    old: dict,
    new: dict,
    sources: Sequence[TextSource],
    make_plan: Callable[[], BuildPlan],
    log: LogFunction,
) -> str | None:
    """Describes how the text differs from the text of a finished store; returns None if the texts are equal.

    If the text is the same but its files have changed (for example their dates), the record of the store is updated.

    Args:
      directory, sources, make_plan, log: See `find_finished_store`.
      old: The entry 'inputs' of the manifest.
      new: The same entry for the current sources, without the hash of their content.
    """
    record = identity.read_record(directory, old['content'])
    if record is None:
        if any(old[key] != value for key, value in new.items()):
            return 'other text (other files, by name or size)'
        plan = make_plan()
        known, content = identity.read_again(plan.sources, plan.shards, log)
        if content != old['content']:
            return 'other text (some of it has changed)'
        record = {'files': known, 'readings': plan.readings}
    elif reason := identity.describe_difference(record['files'], sources, log):
        return f'other text ({reason})'
    elif not identity.find_stale(record['files'], sources):
        return None
    known = identity.with_current_files(record['files'], sources)
    try:
        identity.write_record(directory, old['content'], known, record['readings'])
    except OSError as error:  # the store is read-only, so each start reads moved files again
        logging.info('Cannot write %s in %s: %s', identity.RECORD, directory, error)
    return None


def remove_partial_files(directory: pathlib.Path, manifest: dict) -> None:
    """Removes the partial work, and token, segment and temporary files that the manifest does not list."""
    shutil.rmtree(directory / 'partial', ignore_errors=True)
    manifest_names = {entry['file'] for entry in store.manifest_files(manifest)}
    for path in [*store.token_files(directory), *directory.glob('*.segments'), *directory.glob('.*.tmp-*')]:
        if path.name not in manifest_names:
            path.unlink(missing_ok=True)
