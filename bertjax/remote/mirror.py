"""Copies changes between a local folder and the objects below an address in a bucket, in both directions.

The record of a file has the size, the modification time and the object version at the last copy. A file or an object
that differs from its record has changed. A folder that is valid only when complete (a checkpoint, a token store, an
exported model) has a marker file. The marker is written after all other files and removed before them, so that a
partial folder is never valid.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Mapping

from bertjax.files.small_files import read_json_or_none
from bertjax.remote.cache import fetch_all
from bertjax.remote.object_store import RemoteFolder

RECORD = '.published.json'
LARGE = 8 << 20  # bytes; a larger file outside folders with markers is published only together with a marker
_SAVE_RECORD_EVERY = 5.0  # seconds
_HIDDEN = re.compile(r'(^|/)\.(?!unfinished/)')  # hidden names, except .unfinished/ (checkpoints of a sweep)

FileState = tuple[int, int]  # size, and modification time in ns


@dataclasses.dataclass(frozen=True)
class MirrorRules:
    """The rules that decide which files are mirrored, and which folders are valid only when complete."""

    markers: Mapping[str, str]  # {regular expression of a folder, with its final slash: name of its marker file}
    ignored: str  # a regular expression of names that are not mirrored
    growing: str = ''  # a regular expression of names of files to which a run appends

    def marker_of(self, name: str) -> str | None:
        """Returns the marker file of the folder that contains a file; None for a file outside folders with markers."""
        matches = ((re.match(pattern, name), marker) for pattern, marker in self.markers.items())
        return next((match[0] + marker for match, marker in matches if match), None)

    def unit_of(self, name: str) -> str:
        """Returns the folder with a marker that contains the file, or the file itself if there is no such folder."""
        marker = self.marker_of(name)
        return marker.rpartition('/')[0] if marker else name

    def split_complete(self, names: Collection[str]) -> tuple[list[str], list[str]]:
        """Returns the valid mirrored files, and the mirrored files in folders that lack their marker."""
        ignored = re.compile(self.ignored)
        mirrored = [name for name in names if not _HIDDEN.search(name) and not ignored.search(name)]
        incomplete = {name for name in mirrored if (marker := self.marker_of(name)) and marker not in names}
        return [name for name in mirrored if name not in incomplete], sorted(incomplete)


class Mirror:
    """The local mirror `folder` of a workdir `remote` in a bucket."""

    def __init__(self, folder: pathlib.Path, remote: RemoteFolder, rules: MirrorRules):
        self.folder, self.remote, self._rules = folder, remote, rules
        self._path, self._saved, self._saving = folder / RECORD, 0.0, threading.Lock()
        self._incomplete: list[str] = []  # objects in folders whose marker is missing after a kill
        self._published: dict[str, tuple[int, int, str]] = read_json_or_none(self._path, _parse_record) or {}

    def pull(self) -> None:
        """Copies the changes in the bucket to the folder. Nothing is written to the bucket.

        If a run has an unpublished checkpoint that is later than all its checkpoints in the bucket, local changes take
        precedence.

        Raises:
          UserError, OSError: See `cache.fetch`.
        """
        unit_of, published = self._rules.unit_of, self._published
        objects = self.remote.find()
        complete, self._incomplete = self._rules.split_complete(objects)
        objects = {name: objects[name] for name in complete}
        local = self._local_files()
        changed_locally = {unit_of(name) for name in local if published.get(name, ())[:2] != local[name]}
        # A folder without its marker whose files have changed is being written again, for example a token store.
        partial = {name: _file_state(self.folder / name) for name in published.keys() - local.keys()}
        changed_locally |= {unit_of(name) for name, state in partial.items() if state and state != published[name][:2]}
        versions = {name: source.version for name, source in objects.items()}
        # A file that is missing here, for example after a purge of a scratch disk, is fetched again. The files that a
        # changed folder lacks are not: `publish` removes them from the bucket.
        published_versions = {
            name: row[2] for name, row in published.items() if name in local or unit_of(name) in changed_locally
        }
        names = objects.keys() | published.keys()
        to_pull = {unit_of(name) for name in names if versions.get(name) != published_versions.get(name)}
        # A changed folder that is incomplete in the bucket is kept: `publish` writes all its files again.
        to_pull -= changed_locally & set(map(unit_of, self._incomplete))
        steps = _newest_steps(objects)
        changed_steps = _newest_steps(name for name in local if unit_of(name) in changed_locally)
        # A folder in .unfinished/ that the bucket lacks may belong to trials that another machine has finished, so the
        # bucket wins, also over the first checkpoint of new trials.
        later_runs = {
            _run_of(folder)
            for folder, step in changed_steps.items()
            if step > steps.get(folder, -1) and (folder in steps or '.unfinished/' not in folder)
        }
        if later_runs:
            # Local files that the bucket lacks are kept: `publish` writes them. The last checkpoints in the bucket are
            # pulled, because `publish` would remove their markers before the later checkpoint is complete.
            last = {f'{folder}/{step}' for folder, step in steps.items()}
            to_pull = (to_pull - (changed_locally - last)) & set(map(unit_of, objects))
            # The ledger of the later checkpoint may be published, and then replaced by another machine. The folder of
            # a run may contain the folders of others, whose ledgers are pulled.
            runs = sorted({_run_of(folder) for folder in steps | changed_steps}, key=len, reverse=True)
            growing = (name for name in local if re.fullmatch(self._rules.growing, name))
            to_pull -= {name for name in growing if next(filter(name.startswith, runs), None) in later_runs}
        self._remove_local(unit_of(name) for name in local if unit_of(name) in to_pull and name not in objects)
        targets = {
            source: self.folder / name
            for name, source in objects.items()
            if unit_of(name) in to_pull
            and published.get(name) != (*(_file_state(self.folder / name) or ()), source.version)
        }
        # The marker of a folder is removed before its files are replaced, and is fetched after them.
        replaced = {self._rules.marker_of(source.name) for source, path in targets.items() if path.exists()} - {None}
        targets |= {objects[marker]: self.folder / marker for marker in replaced}
        markers = {source: path for source, path in targets.items() if self._is_marker(source.name)}
        previous = {source.name: _file_state(path) for source, path in targets.items()}
        self._published = {
            name: row for name, row in published.items() if versions.get(name) == row[2] and name not in previous
        }
        for marker in replaced:
            (self.folder / marker).unlink(missing_ok=True)
        self._save_record()  # After a kill, a file that was fetched before its marker must not look changed.
        try:
            plain = {source: path for source, path in targets.items() if source not in markers}
            fetch_all(self.remote, plain, copies=False)
            fetch_all(self.remote, markers, copies=False)
        finally:
            for source, path in targets.items():
                if (state := _file_state(path)) and state != previous[source.name]:
                    self._published[source.name] = (*state, source.version)
            self._save_record()

    def publish(self, *, everything: bool = False) -> tuple[int, int]:
        """Copies the changes of the folder to the bucket.

        Markers of changed folders are removed first and written last. A large file outside folders with markers, such
        as a ledger, is published only together with a marker, for example of a checkpoint, or if `everything` is True.

        Returns:
          The number of published files, and their size in bytes.

        Raises:
          UserError: See `RemoteFolder`.
        """
        rules, local = self._rules, self._local_files()
        changed = [name for name, state in local.items() if self._published.get(name, ())[:2] != state]
        if not everything and not any(map(self._is_marker, changed)):
            changed = [name for name in changed if local[name][0] <= LARGE or rules.marker_of(name)]
        inside = [name for name in changed if rules.marker_of(name) and not self._is_marker(name)]
        # The bucket may have an older folder of the same name, with files that the new folder lacks.
        extra = [name for name in self._published if name not in local and rules.marker_of(name) in changed]
        outdated = {rules.marker_of(name) for name in (*inside, *extra)}
        for name in (*sorted(outdated), *extra):
            self.remote.remove(name)
            self._published.pop(name, None)
        markers = outdated.union(filter(self._is_marker, changed))
        try:
            broken = {rules.unit_of(name) for name in self._upload(inside, local)}
            # Other files precede the markers, so that a ledger is never older than the checkpoint that relies on it.
            self._upload([name for name in changed if not rules.marker_of(name)], local)
            # Meanwhile, the program may have replaced an export, or may have begun to remove a checkpoint.
            names = (name for name in local if rules.marker_of(name) in markers)
            broken |= {rules.unit_of(name) for name in names if _file_state(self.folder / name) != local[name]}
            broken |= {unit for unit in map(rules.unit_of, markers) if (self.folder / f'{unit}.unfinished').exists()}
            ready = [name for name in sorted(markers) if rules.unit_of(name) not in broken]
            self._upload(ready, local)
            self._remove_deleted(local)
        finally:
            if changed or markers or len(self._published) > len(local):
                self._save_record()
        return len(changed), sum(local[name][0] for name in changed)

    def _remove_deleted(self, local: Mapping[str, FileState]) -> None:
        """Removes from the bucket the files that the folder no longer has, and the folders without their marker.

        The last checkpoint in the bucket is kept, because the run may have saved a later one after it made `local`.
        """
        marker_of, names = self._rules.marker_of, self._published.keys() - local.keys()
        # If a folder lacks files but not its marker, the run is removing it, and the next pass finds no marker.
        lost = {name for name in names if marker_of(name) not in local and not (self.folder / name).exists()}
        complete = set(filter(self._is_marker, self._published))
        markers = {marker_of(name) for name in lost} & complete
        newest = _newest_steps(complete).items()
        kept = {f'{folder}/{step}' for folder, step in newest if (self.folder / folder).exists()}
        lost = {name for name in lost | markers if self._rules.unit_of(name) not in kept}
        for name in sorted(lost, key=lambda name: not self._is_marker(name)):
            self.remote.remove(name)
            del self._published[name]
        while self._incomplete:
            if (name := self._incomplete.pop()) not in self._published:
                self.remote.remove(name)

    def _upload(self, names: list[str], local: Mapping[str, FileState]) -> list[str]:
        """Writes files to the bucket, several at a time. Returns the names of files that no longer exist."""

        def upload(remote: RemoteFolder, name: str) -> str | None:
            try:
                grows = re.fullmatch(self._rules.growing, name) is not None
                written = remote.upload(name, self.folder / name, grows=grows)
            except FileNotFoundError:
                return name
            self._published[name] = (*local[name], written.version)
            if time.monotonic() - self._saved > _SAVE_RECORD_EVERY:  # after a kill, fewer files are sent again
                self._save_record()
            return None

        return [name for name in self.remote.run_parallel(upload, names) if name]

    def _local_files(self) -> dict[str, FileState]:
        """Returns the valid files of the folder."""
        paths = [pathlib.Path(top, name) for top, _, names in os.walk(self.folder) for name in names]
        states = {path.relative_to(self.folder).as_posix(): _file_state(path) for path in paths}
        files = {name: state for name, state in states.items() if state}
        return {name: files[name] for name in sorted(self._rules.split_complete(files)[0])}

    def _is_marker(self, name: str) -> bool:
        return self._rules.marker_of(name) == name

    def _remove_local(self, units: Iterable[str]) -> None:
        for unit in set(units):
            path = self.folder / unit
            if path.is_dir():
                for marker in self._rules.markers.values():
                    (path / marker).unlink(missing_ok=True)
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _save_record(self) -> None:
        with self._saving:
            self._saved = time.monotonic()
            # Not `write_atomic`, because processes with disabled writes have mirrors, too. A damaged record is ignored.
            fresh = self._path.with_name(f'{RECORD}.new')
            fresh.write_text(json.dumps(dict(self._published)) + '\n', encoding='utf-8')
            fresh.replace(self._path)


def _parse_record(record: dict) -> dict[str, tuple[int, int, str]]:
    return {name: (int(size), int(modified), str(version)) for name, (size, modified, version) in record.items()}


def _file_state(path: pathlib.Path) -> FileState | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_size, facts.st_mtime_ns) if path.is_file() else None


def _newest_steps(names: Iterable[str]) -> dict[str, int]:
    """Returns {folder with checkpoints: latest step}. `names` are the names of files."""
    steps: dict[str, int] = {}
    for name in names:
        if match := re.match(r'((?:.*/)?(?:checkpoints|\.unfinished/[^/]+))/(\d+)/', name):
            steps[match[1]] = max(int(match[2]), steps.get(match[1], -1))
    return steps


def _run_of(folder: str) -> str:
    """Returns the folder of a run, with its final slash, from a folder of its checkpoints."""
    return re.sub(r'(checkpoints|\.unfinished/[^/]+)$', '', folder)
