"""A store and the counts of a vocabulary by Apache Beam's DirectRunner, beside this machine alone; what a store weighs.

    python benchmarks/beam_build.py --corpus='texts/*.txt' --tokenizer=vocab.txt

Times are those of processors, of all processes of a side together, so that other work on the machine does not count;
wall time stands beside. Each side is a process of its own, in turn; its seconds are those after the imports. Whether
both stores have the same bytes is compared. Needs the extras `beam` and, for the figures of the docs, `fast`.
"""

import filecmp
import glob
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from absl import app, flags

from bertjax.corpus import backend, build, build_dir
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.texts import iter_texts
from bertjax.text.vocabulary import count_words

_CORPUS = flags.DEFINE_string('corpus', None, 'A file or glob of plain text.', required=True)
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'A vocab.txt.', required=True)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'Of each side.')
_SIDE = flags.DEFINE_string('side', '', 'Of a process that this program starts: what it does.')
_FOLDER = flags.DEFINE_string('folder', '', 'Of such a process: where the store goes.')

SIDES = {
    'here': '',
    'beam': '--runner=DirectRunner',
    'beam, 2 processes': '--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_processing',
}


def _used() -> float:
    """Seconds of processors so far, with those of children that have ended."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


@contextmanager
def _timed(found: dict[str, float], name: str) -> Iterator[None]:
    used, began = _used(), time.perf_counter()
    yield
    found[name] = _used() - used
    found[f'{name}, wall'] = time.perf_counter() - began


def _store(beam: str, folder: str) -> dict[str, float]:
    """What the steps of a build take, and the bytes of what lies there before it is tidied."""
    found: dict[str, float] = {}
    way = backend.make_backend(beam)

    def step(name: str):
        real = getattr(way, name)

        def timed(*arguments):
            with _timed(found, name):
                return real(*arguments)

        return mock.patch.object(way, name, timed)

    def weigh(directory: pathlib.Path, manifest: dict) -> None:
        for path in directory.rglob('*'):
            if path.is_file():
                kind = path.suffix if path.parent.name == 'partial' else 'store'
                found[f'bytes of {kind}'] = found.get(f'bytes of {kind}', 0) + path.stat().st_size
        real_tidy(directory, manifest)

    real_tidy = build_dir.remove_partial_files
    with (
        step('encode'), step('compare'), step('keep'),
        mock.patch.object(build, 'make_backend', lambda flags: way),
        mock.patch.object(build_dir, 'remove_partial_files', weigh), _timed(found, 'all'),
    ):  # fmt: skip
        build_store(_CORPUS.value, folder, _TOKENIZER.value, CorpusOptions(workers=1), progress=False, beam=beam)
    return found


def _words(beam: str, folder: str) -> dict[str, float]:
    found: dict[str, float] = {}
    if not beam:
        with _timed(found, 'words'):
            count_words(iter_texts(_CORPUS.value), True)
        return found
    backend.check_beam(beam)
    from bertjax.corpus.beam.vocabulary import BeamTextStatistics

    with _timed(found, 'words'):
        BeamTextStatistics([[_CORPUS.value]], CorpusOptions(), beam, pathlib.Path(folder, 'counts')).words(True)
    return found


def main(argv: list[str]) -> None:
    """Runs the sides in turn, and prints medians."""
    if _SIDE.value:
        beam = SIDES[_SIDE.value]
        print(json.dumps({**_store(beam, f'{_FOLDER.value}/{_SIDE.value}'), **_words(beam, _FOLDER.value)}))
        return
    size = sum(map(os.path.getsize, glob.glob(_CORPUS.value)))
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(_ROUNDS.value):
        with tempfile.TemporaryDirectory() as folder:
            for side in SIDES:
                command = [sys.executable, *argv, f'--corpus={_CORPUS.value}', f'--tokenizer={_TOKENIZER.value}']
                command += [f'--side={side}', f'--folder={folder}']
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                found[side].append(json.loads(out.stdout.splitlines()[-1]))
                names = [path.name for path in pathlib.Path(folder, 'here').iterdir()]
                same = filecmp.cmpfiles(f'{folder}/here', f'{folder}/{side}', names, shallow=False)
                assert same[1:] == ([], []), same
    print(f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {_ROUNDS.value} rounds')
    print(f'{size / 1e6:.1f} MB; the stores have the same bytes')
    for side, runs in found.items():
        print(side)
        for name in runs[0]:
            values = [run[name] for run in runs]
            if name.startswith('bytes'):
                print(f'  {name:18} {values[0] / size:6.3f} a byte of text')
            elif not name.endswith('wall'):
                wall = statistics.median(run[f'{name}, wall'] for run in runs)
                print(
                    f'  {name:18} {statistics.median(values):6.2f} s of processors ({min(values):.2f} to '
                    f'{max(values):.2f}), {size / 1e6 / statistics.median(values):6.1f} MB/s; {wall:.2f} s by the clock'
                )


if __name__ == '__main__':
    app.run(main)
