"""A local folder and the objects below an address, as one: what is newer on one side is brought to the other.

A record beside what was published says of each file how it was then on both sides; what differs from it has changed.
A folder that counts only as a whole (a checkpoint, a token store, an exported model) has a last file: it is written
after all others, and removed before them, so that a half of such a folder never counts.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

from bertjax.files.buckets.cache import fetch_all
from bertjax.files.buckets.objects import Bucket
from bertjax.files.buckets.patience import at_once
from bertjax.files.small_files import read_json_or_none

RECORD = '.published.json'
_KEEP_EVERY = 5.0  # seconds
_STEP = re.compile(r'(?:.*/)?checkpoints/(\d+)')
LARGE = 8 << 20  # bytes of a growing file above which it is published only with a checkpoint

Facts = tuple[int, int]  # size and modification time in ns of a local file


@dataclasses.dataclass(frozen=True)
class Wholes:
    """Which folders count only as a whole.

    Attributes:
      lasts: {pattern of the folder: name of its last file}.
      left_out: pattern of names that stay where they are.
    """

    lasts: Mapping[str, str]
    left_out: str

    def whole_of(self, name: str) -> tuple[str, str] | None:
        """The folder that a name lies in and its last file, as names; None where it counts by itself."""
        for pattern, last in self.lasts.items():
            if match := re.match(pattern, name):
                return match[0].rstrip('/'), match[0].rstrip('/') + '/' + last
        return None

    def counted(self, names: Collection[str]) -> list[str]:
        """Those that count: hidden ones do not (but what a sweep is at does), nor what is left out, nor folders that
        lack their last file."""
        return [name for name in self._carried(names) if (whole := self.whole_of(name)) is None or whole[1] in names]

    def halves(self, names: Collection[str]) -> list[str]:
        """Those in folders that lack their last file."""
        return [name for name in self._carried(names) if (whole := self.whole_of(name)) and whole[1] not in names]

    def _carried(self, names: Iterable[str]) -> Iterator[str]:
        hidden = re.compile(rf'(^|/)\.(?!unfinished/)|{self.left_out}')
        return (name for name in names if not hidden.search(name))


class Mirror:
    """The local folder of a workdir in a bucket.

    Args:
      folder: local.
      bucket: the workdir.
      wholes: which folders count only as a whole.
    """

    def __init__(self, folder: pathlib.Path, bucket: Bucket, wholes: Wholes):
        self.folder, self.bucket, self._wholes = folder, bucket, wholes
        self._path, self._kept, self._keeping = folder / RECORD, 0.0, threading.Lock()
        self._halves: list[str] = []  # in the bucket, of a process that was killed
        self._published: dict[str, tuple[int, int, str]] = read_json_or_none(self._path, _rows) or {}

    def reconcile(self) -> None:
        """Brings the folder to what the bucket has; where the folder has a later checkpoint that was never published,
        what it has wins. Nothing is written to the bucket.

        Raises:
          UserError, OSError: see `cache.fetch`.
        """
        there = self.bucket.objects()
        self._halves = self._wholes.halves(there)
        there = {name: there[name] for name in self._wholes.counted(there)}
        here = self._here()
        known = self._published
        changed_here = {self._group(name) for name in here if known.get(name, ())[:2] != here[name]}
        changed_there = {
            self._group(name)
            for name in there.keys() | known.keys()
            if (there[name].tag if name in there else None) != (known[name][2] if name in known else None)
        }
        ahead = _newest(name for name in here if self._group(name) in changed_here) > _newest(there)
        taken = changed_there - changed_here if ahead else changed_there
        if ahead:  # what the bucket lacks is published anew
            taken = {self._group(name) for name in there} & taken
        self._remove(name for name in here if self._group(name) in taken and name not in there)
        targets = {
            one: self.folder / name
            for name, one in there.items()
            if self._group(name) in taken and known.get(name) != (*(_facts(self.folder / name) or ()), one.tag)
        }
        self._published = {n: row for n, row in known.items() if n in there and there[n].tag == row[2]}
        lasts = {one: path for one, path in targets.items() if self._is_last(one.name)}
        before = {one.name: _facts(path) for one, path in targets.items()}
        try:
            for some in ({one: path for one, path in targets.items() if one not in lasts}, lasts):
                fetch_all(self.bucket, some, remember=False)
        finally:
            for one, path in targets.items():
                if (facts := _facts(path)) and facts != before[one.name]:
                    self._published[one.name] = (*facts, one.tag)
            self._keep()

    def publish(self, *, all_of_it: bool = False) -> tuple[int, int]:
        """Brings to the bucket what has changed in the folder.

        In this order: what is new, the last files of new folders, what was removed. What grows without end (metrics,
        ledgers) is published beside a checkpoint when it is large.

        Args:
          all_of_it: large ones in any case.

        Returns:
          How many objects were written, and their bytes.

        Raises:
          UserError: see `Bucket`.
        """
        here = self._here()
        changed = [name for name, facts in here.items() if self._published.get(name, ())[:2] != facts]
        lasts = [name for name in changed if self._is_last(name)]
        if not all_of_it and not lasts:
            changed = [name for name in changed if here[name][0] <= LARGE or self._wholes.whole_of(name)]
        # Of folders of which something else is about to be written: the bucket may have one of another run.
        broken_up = {whole[1] for name in changed if (whole := self._wholes.whole_of(name)) and name != whole[1]}
        for name in sorted(broken_up):
            self.bucket.remove(name)
            self._published.pop(name, None)
        lasts = broken_up.union(lasts)
        try:
            plain = [name for name in changed if not self._wholes.whole_of(name)]
            inside = [name for name in changed if self._wholes.whole_of(name) and name not in lasts]
            gone = self._write_all(inside, here)
            # After the steps: a ledger reaches at least as far as the checkpoint that counts on it.
            self._write_all(plain, here)
            unfinished = {self._group(name) for name in gone}
            self._write_all([name for name in sorted(lasts) if self._group(name) not in unfinished], here)
            self._remove_lost()
        finally:
            if changed or lasts or len(self._published) > len(here):
                self._keep()
        return len(changed), sum(here[name][0] for name in changed)

    def _remove_lost(self) -> None:
        """Removes from the bucket what is gone here, and what never counted there.

        A folder of which a part is gone counts no more.
        """
        lost = {name for name in self._published if not (self.folder / name).exists()}
        lost |= {whole[1] for name in lost if (whole := self._wholes.whole_of(name))} & self._published.keys()
        for name in sorted(lost, key=lambda name: not self._is_last(name)):
            self.bucket.remove(name)
            del self._published[name]
        while self._halves:
            if (name := self._halves.pop()) not in self._published:
                self.bucket.remove(name)

    def _write_all(self, names: list[str], here: Mapping[str, Facts]) -> list[str]:
        """Writes files to the bucket, several at a time; returns those that are gone meanwhile."""

        def write(bucket: Bucket, name: str) -> str | None:
            try:
                written = bucket.upload(name, self.folder / name)
            except FileNotFoundError:
                return name
            self._published[name] = (*here[name], written.tag)
            if time.monotonic() - self._kept > _KEEP_EVERY:  # what a kill would have sent again
                self._keep()
            return None

        return [name for name in at_once(self.bucket, write, names) if name]

    def _here(self) -> dict[str, Facts]:
        """What counts in the local folder."""
        found = {}
        for top, _, names in os.walk(self.folder):
            for name in names:
                path = pathlib.Path(top, name)
                if facts := _facts(path):
                    found[path.relative_to(self.folder).as_posix()] = facts
        return {name: found[name] for name in sorted(self._wholes.counted(found))}

    def _group(self, name: str) -> str:
        whole = self._wholes.whole_of(name)
        return whole[0] if whole else name

    def _is_last(self, name: str) -> bool:
        whole = self._wholes.whole_of(name)
        return whole is not None and whole[1] == name

    def _remove(self, names: Iterable[str]) -> None:
        """Removes local files; of a folder that counts as a whole, all of it."""
        for group in {self._group(name) for name in names}:
            path = self.folder / group
            if path.is_dir():
                for last in self._wholes.lasts.values():
                    (path / last).unlink(missing_ok=True)
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _keep(self) -> None:
        with self._keeping:
            self._kept = time.monotonic()
            # By each of several processes, also those that write nothing else; half of it is as good as none.
            fresh = self._path.with_name(f'{RECORD}.new')
            fresh.write_text(json.dumps(dict(self._published)) + '\n', encoding='utf-8')
            fresh.replace(self._path)


def _rows(record: dict) -> dict[str, tuple[int, int, str]]:
    return {name: (int(size), int(changed), str(tag)) for name, (size, changed, tag) in record.items()}


def _facts(path: pathlib.Path) -> Facts | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return (facts.st_size, facts.st_mtime_ns) if path.is_file() else None


def _newest(names: Iterable[str]) -> int:
    """The latest step among names of checkpoints; -1 where there is none."""
    return max((int(match[1]) for name in names if (match := _STEP.match(name))), default=-1)
