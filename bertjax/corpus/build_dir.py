"""The directory of a build: a finished store, or the partial work of an unfinished build (its plan and its shards).

A process may be killed between any two file operations. So the manifest is removed before any other file of a store,
the plan is written before the partial work, and the manifest is written after all other files. Partial work then
always matches its plan. In a finished store, the directory `partial` is a leftover, and so is each token or segment
file that the manifest does not list.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Sequence

from absl import logging

from bertjax.corpus import identity, store
from bertjax.corpus.identity import LogFunction, Shards
from bertjax.corpus.sources import TextPart, TextSource
from bertjax.errors import UserError
from bertjax.files.atomic import write_atomic
from bertjax.files.paths import SYSTEM_FILES
from bertjax.files.small_files import read_json_or_none
from bertjax.text.splitters import UNKNOWN

_STORE_FILES = re.compile(rf'(train|heldout)[^/]*\.(tokens|sentences|documents|segments)|{re.escape(identity.RECORD)}')
# {folder in a store: a pattern of the names in it}
_FOLDERS = {
    'partial': r'(plan|refused)\.json|\d{5,}\.\w+|(repeats|distinct)-\d+|tokenizer|\..*\.tmp-\d+',
    'plans': r'\.?(plan|packing)-.*',
}
# The fields of the record that `shard_writer` writes for a shard.
_FIELDS = ('files', 'train_checksum', 'runs', 'documents', 'characters', 'lines', 'dropped', 'problems', 'inputs')


@dataclasses.dataclass(frozen=True)
class BuildPlan:
    """The plan of a build, stored as partial/plan.json.

    Attributes:
      store_identity: The values that determine the store's bytes and are known before the text is read.
      sources: The sources of the text.
      shards: The parts of the sources that each shard reads.
      strict: Whether broken input stops the build.
      readings: Lines that describe how the sources are read. They are not part of plan.json.
    """

    store_identity: dict
    sources: Sequence[TextSource]
    shards: Shards
    strict: bool
    readings: Sequence[str] = ()

    def facts(self) -> dict:
        """Returns the content of plan.json."""
        return {
            'identity': self.store_identity,
            'inputs': [[source.path, *identity.file_facts(source)] for source in self.sources],
            'units': [[list(dataclasses.astuple(part)) for part in parts] for parts in self.shards],
            'strict': self.strict,
        }

    def with_names_of(self, old: dict) -> 'BuildPlan':
        """Returns this plan with the identity and the source names of `old`, the plan.json of a killed build."""
        old_names = {path: name for parts in old['units'] for _, path, name, *_ in parts}
        names = {s.path: old_names.get(path, s.name) for s, (path, *_) in zip(self.sources, old['inputs'], strict=True)}
        return dataclasses.replace(
            self,
            store_identity=old['identity'],
            sources=[dataclasses.replace(source, name=names[source.path]) for source in self.sources],
            shards=[[dataclasses.replace(part, name=names[part.path]) for part in parts] for parts in self.shards],
        )


def check_directory(directory: pathlib.Path) -> None:
    """Checks that a directory is absent or empty, or contains a finished or unfinished store.

    Raises:
      UserError: The path is a file, the directory has other files but no store, or its `partial` has other files.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UserError(str(directory), 'a file', 'a directory for the store', 'give another path')
    paths = [path for path in directory.iterdir() if not path.name.startswith('.')]
    names = {path.name for path in paths} & {'manifest.json', 'partial'}
    foreign = sorted({path.name for path in paths if not _belongs_to_store(path)} - {'manifest.json'})
    if 'partial' in foreign or (foreign and not names):
        raise UserError(
            str(directory), f'files that do not belong to a store ({", ".join(foreign[:3])})',
            'an empty directory or a store', 'give another path',
        )  # fmt: skip


def _belongs_to_store(path: pathlib.Path) -> bool:
    """Returns whether a path belongs to a store or to a mixture of stores. The caller handles manifest.json."""
    if not path.is_dir():
        return _STORE_FILES.fullmatch(path.name) is not None
    if path.name in _FOLDERS:
        return all(re.fullmatch(rf'{_FOLDERS[path.name]}|{SYSTEM_FILES}', name) for name in os.listdir(path))
    return path.name.isdigit() and any((path / name).exists() for name in ('manifest.json', 'partial'))


def find_finished_store(
    directory: pathlib.Path,
    expected: dict,
    sources: Sequence[TextSource],
    make_plan: Callable[[], BuildPlan],
    *,
    replace: bool,
    other_fix: str,
    log: LogFunction,
) -> dict | None:
    """Returns the manifest of a finished store of the same text, tokenizer and settings; None if there is none.

    `expected` is the identity of the store that is needed, `sources` are its sources, and `make_plan` returns its plan.
    For `replace`, `other_fix` and `log`, see `build.build_store`.

    Raises:
      UserError: `replace` is False and the store has other text or settings, or its manifest is invalid.
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

    `old` is the entry 'inputs' of the store's manifest. `new` is this entry for `sources`, without the content hash.
    If only the dates or paths of the files have changed, the record of the store is updated.
    """
    record = identity.read_record(directory, old['content'])
    if record is None:
        if any(old[key] != value for key, value in new.items()):
            return 'other text (other files, by name or size)'
        plan = make_plan()
        known, content = identity.read_again(plan.sources, plan.shards, log)
        if content != old['content']:
            return 'other text (some of it has changed)'
        readings = plan.readings
    else:
        if reason := identity.describe_difference(record['files'], sources, log):
            return f'other text ({reason})'
        known, readings = identity.with_current_files(record['files'], sources), record['readings']
        if known == record['files']:
            return None
    try:
        identity.write_record(directory, old['content'], known, readings)
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


def prepare_partial(directory: pathlib.Path, plan: BuildPlan, log: LogFunction) -> tuple[BuildPlan, set[int]]:
    """Makes the directory of partial work. Removes work of another plan, and the records of shards with changed text.

    Returns:
      The plan and the numbers of the finished shards. A continued build keeps its identity and source names.
    """
    partial, done = directory / 'partial', set()
    old, work = read_json_or_none(partial / 'plan.json', lambda facts: (facts, _work(facts))) or (None, None)
    if work == _work(plan.facts()):
        plan = plan.with_names_of(old)
        done = _find_finished_shards(directory, plan, old['inputs'], log)
        logging.info('Continuing the build in %s: %d of %d shards are done.', directory, len(done), len(plan.shards))
    else:
        if (partial / 'plan.json').exists():
            logging.warning('Removing the unfinished build in %s, which has other text or settings.', directory)
        if partial.exists():
            shutil.rmtree(partial)
        for path in store.token_files(directory):
            path.unlink(missing_ok=True)
    partial.mkdir(parents=True, exist_ok=True)
    for path in [*directory.glob('.*.tmp-*'), *partial.glob('.*.tmp-*')]:
        path.unlink(missing_ok=True)
    if plan.facts() != old:
        write_atomic(partial / 'plan.json', json.dumps(plan.facts(), indent=1))
    return plan, done


def _work(facts: dict) -> dict:
    """Returns the part of a plan.json that determines the content of shards. It omits file names, paths and dates."""
    numbers = {path: number for number, (path, *_) in enumerate(facts['inputs'])}
    kinds = {part[1]: part[0] for parts in facts['units'] for part in parts}
    inputs = [[size] if kinds.get(path) == 'file' else [size, stamp] for path, size, stamp, *_ in facts['inputs']]
    units = [[[kind, numbers[path], *cut] for kind, path, _, *cut in parts] for parts in facts['units']]
    settings = dict(facts['identity'])
    del settings['inputs']
    return {'settings': settings, 'inputs': inputs, 'units': units, 'strict': facts['strict']}


def _find_finished_shards(
    directory: pathlib.Path, plan: BuildPlan, old_inputs: list[list], log: LogFunction
) -> set[int]:
    """Returns the numbers of complete shards with unchanged text. Removes the records of shards with changed text."""
    changed = {
        source.path
        for source, (_, *facts) in zip(plan.sources, old_inputs, strict=True)
        if tuple(facts) != identity.file_facts(source)
    }
    sources = {source.path: source for source in plan.sources}
    done, compared = set(), []
    for number, parts in enumerate(plan.shards):
        record = read_record(directory, number, parts)
        if record is not None:
            done.add(number)
            for part, (*_, digest) in zip(parts, record['inputs'], strict=True):
                if part.path in changed:
                    compared.append((number, part, digest))
    ranges = [(sources[part.path], (part.begin, part.end)) for _, part, _ in compared]
    for (number, _, digest), current in zip(compared, identity.hash_ranges(ranges, log), strict=True):
        if current != digest:
            done.discard(number)
            (directory / 'partial' / f'{number:05d}.json').unlink(missing_ok=True)
    return done


def read_record(directory: pathlib.Path, shard: int, parts: Sequence[TextPart]) -> dict | None:
    """Reads the record of shard number `shard`, which has `parts`. Returns None if the shard is not complete."""

    def parse(record: dict) -> dict | None:
        known = {key: record[key] for key in _FIELDS}
        sizes = known['files']
        paths = {name: directory / ('' if name.endswith('.tokens') else 'partial') / name for name in sizes}
        complete = all(path.stat().st_size == sizes[name] for name, path in paths.items())
        return known if complete and len(known['inputs']) == len(parts) else None

    return read_json_or_none(directory / 'partial' / f'{shard:05d}.json', parse)
