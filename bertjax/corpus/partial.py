"""The partial work of an unfinished build: its plan and its finished shards."""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Sequence

from absl import logging

from bertjax.corpus import identity
from bertjax.corpus.identity import LogFunction, Shards
from bertjax.corpus.sources import TextPart, TextSource
from bertjax.corpus.store import token_files
from bertjax.files.atomic import write_atomic
from bertjax.files.small_files import read_json_or_none

# The fields of the record of a shard, which `shard_writer` writes.
_FIELDS = ('files', 'train_checksum', 'runs', 'documents', 'characters', 'lines', 'dropped', 'problems', 'inputs')


@dataclasses.dataclass(frozen=True)
class BuildPlan:
    """The plan of a build, stored as partial/plan.json.

    Attributes:
      store_identity: The values that determine the store's bytes and are known before the text is read; from `build`.
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
        """Returns this plan with the source names of `old`, an older plan.json, because finished shards use them."""
        old_names = {path: name for parts in old['units'] for _, path, name, *_ in parts}
        names = {s.path: old_names.get(path, s.name) for s, (path, *_) in zip(self.sources, old['inputs'], strict=True)}
        return dataclasses.replace(
            self,
            store_identity=old['identity'],
            sources=[dataclasses.replace(source, name=names[source.path]) for source in self.sources],
            shards=[[dataclasses.replace(part, name=names[part.path]) for part in parts] for parts in self.shards],
        )


def prepare(directory: pathlib.Path, plan: BuildPlan, log: LogFunction = logging.info) -> tuple[BuildPlan, set[int]]:
    """Makes the directory of partial work. Removes the work of another plan, and shards whose text has changed.

    Args:
      directory: The directory of the unfinished store.
      plan: The plan of the build.
      log: A function that logs which files are compared with the finished shards.

    Returns:
      The plan, with the source names of the build that is continued, and the numbers of the finished shards.
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
        for path in token_files(directory):
            path.unlink(missing_ok=True)
    partial.mkdir(parents=True, exist_ok=True)
    for path in [*directory.glob('.*.tmp-*'), *partial.glob('.*.tmp-*')]:
        path.unlink(missing_ok=True)
    if plan.facts() != old:
        write_atomic(partial / 'plan.json', json.dumps(plan.facts(), indent=1))
    return plan, done


def _work(facts: dict) -> dict:
    """Returns the part of a plan that determines the content of its shards, without names, paths and dates of files."""
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
