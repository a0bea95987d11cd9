"""The directory of a build: a finished store, or the partial work of an unfinished build (its plan and its shards).

A process may be killed between any two file operations. So the manifest is removed before any other file of a store,
the plan is written before the partial work, and the manifest is written after all other files. Partial work then
always matches its plan. In a finished store, the directory `partial` is a leftover, and so is each token or segment
file that the manifest does not list.
"""

import dataclasses
import json
import pathlib
import re
import shutil
from collections.abc import Sequence

from absl import logging

from bertjax.corpus import identity, store
from bertjax.corpus.identity import LogFunction, Shards
from bertjax.corpus.sources import TextPart, TextSource
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import SYSTEM_FILES
from bertjax.files.small_files import read_json_or_none
from bertjax.text.sentences import RULES_VERSION
from bertjax.text.splitters import UNKNOWN

# Patterns of the names in a store or in a folder of several stores, and in a store's folder `partial`.
_NAMES = re.compile(
    rf'(train|heldout).*\.(tokens|sentences|documents|segments)|manifest\.json|{re.escape(identity.RECORD)}'
    r'|partial|plans|\d+'
)
_PARTIAL_NAMES = re.compile(rf'(plan|refused)\.json|\d{{5,}}\.\w+|tokenizer|\..*\.tmp-\w+|{SYSTEM_FILES}')


@dataclasses.dataclass(frozen=True)
class BuildPlan:
    """The plan of a build, stored as partial/plan.json."""

    store_identity: dict  # the values that determine the store's bytes and are known before the text is read
    sources: Sequence[TextSource]
    shards: Shards  # the parts of the sources that each shard reads
    strict: bool
    readings: Sequence[str] = ()  # lines about how the sources are read; not part of plan.json

    def facts(self) -> dict:
        """Returns the content of plan.json."""
        return {
            'identity': self.store_identity,
            'rules': RULES_VERSION,  # also without a splitter, or with pysbd
            'inputs': [source.facts for source in self.sources],
            'units': [list(map(dataclasses.astuple, parts)) for parts in self.shards],
            'strict': self.strict,
        }


def check_directory(directory: pathlib.Path) -> None:
    """Checks that a directory is absent or empty, or contains a finished or unfinished store.

    Raises:
      UserError: The path is a file, the directory has other files but no store, or its `partial` has other files.
    """
    if directory.exists() and not directory.is_dir():
        raise UserError(str(directory), 'a file', 'a directory for the store', 'give another path')
    foreign = [path for path in directory.glob('partial/*') if not _PARTIAL_NAMES.fullmatch(path.name)]
    if not any((directory / name).exists() for name in ('manifest.json', 'partial')):
        foreign += [path for path in directory.glob('[!.]*') if not _NAMES.fullmatch(path.name)]
    if foreign:
        names = ', '.join(sorted(path.relative_to(directory).as_posix() for path in foreign)[:3])
        found, expected = f'files that do not belong to a store ({names})', 'an empty directory or a store'
        raise UserError(str(directory), found, expected, 'give another path')


def find_finished_store(
    directory: pathlib.Path,
    expected: dict,
    sources: Sequence[TextSource],
    *,
    replace: bool,
    other_fix: str,
    log: LogFunction,
    write: bool = True,
) -> dict | None:
    """Returns the manifest of a finished store of the same text, tokenizer and settings; None if there is none.

    `expected` is the identity of the store that is needed, and `sources` are its sources. For `replace`, `other_fix`
    and `log`, see `build.build_store`. If `write` is False, no file is changed.

    Raises:
      UserError: The manifest is invalid. Or the store has other text or settings, and `replace` is False.
    """
    if not (directory / 'manifest.json').exists():
        return None
    manifest = store.read_manifest(directory)
    changed = [key for key in ('tokenizer', 'settings') if manifest[key] != expected[key]]
    words = {'tokenizer': 'another tokenizer', 'settings': 'other settings'}
    reason = ' and '.join(words[key] for key in changed)
    reason = reason or _describe_other_text(directory, manifest['inputs']['content'], sources, log, write)
    if reason is None:
        splitter = manifest['splitter']
        if replace and expected['splitter'] not in (splitter, UNKNOWN):
            logging.warning(
                'Using the token store in %s, whose sentences were split by %s. A new store would use %s. Remove the '
                'store to build it again.', directory, splitter, expected['splitter'],
            )  # fmt: skip
        if write:
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
    directory: pathlib.Path, content: str, sources: Sequence[TextSource], log: LogFunction, write: bool
) -> str | None:
    """Describes how the text differs from the text of a finished store; returns None if the texts are equal.

    `content` is the content hash in the manifest. If only the dates or paths of the files have changed, and `write` is
    True, the record of the store is updated.
    """
    record = identity.read_record(directory, content)
    if record is None:
        return f'unknown text ({identity.RECORD} is missing or damaged)'
    if reason := identity.describe_difference(record['files'], sources, log):
        return f'other text ({reason})'
    known = identity.with_current_files(record['files'], sources)
    if write and known != record['files']:
        try:
            identity.write_record(directory, content, known, record['readings'])
        except OSError as error:  # the store is read-only: the next start reads the files again
            logging.info('Cannot write %s in %s: %s', identity.RECORD, directory, error)
    return None


def remove_partial_files(directory: pathlib.Path, manifest: dict) -> None:
    """Removes the partial work, temporary files, and token or segment files that the manifest does not list."""
    shutil.rmtree(directory / 'partial', ignore_errors=True)
    manifest_names = {entry['file'] for entry in store.manifest_files(manifest)}
    for path in [*store.token_files(directory), *directory.glob('*.segments'), *directory.glob('.*.tmp-*')]:
        if path.name not in manifest_names:
            path.unlink(missing_ok=True)


def prepare_partial(directory: pathlib.Path, plan: BuildPlan) -> set[int]:
    """Makes the directory of partial work. Removes work of another plan, and the records of shards with changed text.

    Returns:
      The numbers of the finished shards.
    """
    partial, done = directory / 'partial', set()
    inputs, work = read_json_or_none(partial / 'plan.json', lambda facts: (facts['inputs'], _work(facts))) or ([], None)
    # The finished shards of a strict build have no broken input, so a build without `strict` would write the same.
    if work in (_work(plan.facts()), _work({**plan.facts(), 'strict': True})):
        facts = {source.path: source.facts for source in plan.sources}
        changed = {path for (path, now), old in zip(facts.items(), inputs, strict=True) if now != tuple(old)}
        for number, parts in enumerate(plan.shards):
            record = read_record(directory, number, parts)
            if record and all(
                identity.digest_range(part.path, facts[part.path], part.begin, part.end) == digest
                for part, digest in zip(parts, record['digests'], strict=True)
                if part.path in changed
            ):
                done.add(number)
            else:
                (partial / f'{number:05d}.json').unlink(missing_ok=True)
        logging.info('Continuing the build in %s: %d of %d shards are done.', directory, len(done), len(plan.shards))
    else:
        if (partial / 'plan.json').exists():
            logging.warning('Removing the unfinished build in %s, which has other text, settings or rules.', directory)
        if partial.exists():
            shutil.rmtree(partial)
        for path in store.token_files(directory):
            path.unlink(missing_ok=True)
    partial.mkdir(parents=True, exist_ok=True)
    for path in [*directory.glob('.*.tmp-*'), *partial.glob('.*.tmp-*')]:
        path.unlink(missing_ok=True)
    write_atomic(partial / 'plan.json', json.dumps(plan.facts(), indent=1))
    return done


def _work(facts: dict) -> tuple:
    """Returns the part of a plan.json that determines the content of shards: all but paths and dates."""
    units = [[[kind, *part] for kind, _, *part in parts] for parts in facts['units']]
    return facts['identity'], facts['rules'], units, facts['strict']


def read_record(directory: pathlib.Path, shard: int, parts: Sequence[TextPart]) -> dict | None:
    """Reads the record of shard number `shard`, which has `parts`. Returns None if the shard is not complete."""

    def parse(record: dict) -> dict | None:
        paths = {directory / ('' if name.endswith('.tokens') else 'partial') / name: name for name in record['files']}
        complete = all(path.stat().st_size == record['files'][name] for path, name in paths.items())
        return record if complete and len(record['digests']) == len(parts) else None

    return read_json_or_none(directory / 'partial' / f'{shard:05d}.json', parse)
