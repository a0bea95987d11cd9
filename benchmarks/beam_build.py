"""Building a store and counting words with Apache Beam's DirectRunner, compared with the local build.

    python benchmarks/beam_build.py --corpus='texts/*.txt' --tokenizer=vocab.txt

The script measures the CPU time of all processes of each build, because other work on the machine hardly affects it.
It also prints the wall time and the size of the files, and checks that all stores have the same bytes. The builds run
in turn, each in a new process. The times exclude imports. The script needs the extra `beam`, and also `fast` for the
figures in the documentation.
"""

import filecmp
import functools
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

from bertjax.corpus import build_dir, merge, workers
from bertjax.corpus.beam import check_beam
from bertjax.corpus.build import build_store
from bertjax.corpus.sources import CorpusOptions
from bertjax.corpus.texts import iter_texts
from bertjax.text.vocabulary import MAX_WORDS, count_words

_CORPUS = flags.DEFINE_string('corpus', None, 'A file or glob of plain text.', required=True)
_TOKENIZER = flags.DEFINE_string('tokenizer', None, 'A vocab.txt.', required=True)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'The number of rounds.')
_SIDE = flags.DEFINE_string('side', '', 'Internal: the side that this process runs.')
_FOLDER = flags.DEFINE_string('folder', '', 'Internal: the folder for the store.')

SIDES = {
    'local': '',
    'beam': '--runner=DirectRunner',
    'beam, 2 processes': '--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_processing',
}


def _cpu_seconds() -> float:
    """Returns the CPU seconds that this process and its finished children have used."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


@contextmanager
def _timed(results: dict[str, float], name: str) -> Iterator[None]:
    used, began = _cpu_seconds(), time.perf_counter()
    yield
    results[name] = _cpu_seconds() - used
    results[f'{name}, wall'] = time.perf_counter() - began


def _store(beam: str, folder: str) -> dict[str, float]:
    """Returns the seconds of each step of a build, and the bytes of its files before the partial files are removed."""
    results: dict[str, float] = {}
    encoding = workers
    if beam:
        from bertjax.corpus.beam import store as encoding

    def step(module, name: str):
        function = getattr(module, name)

        def timed(*arguments):
            with _timed(results, name):
                return function(*arguments)

        return mock.patch.object(module, name, timed)

    def measure_size(directory: pathlib.Path, manifest: dict) -> None:
        for path in directory.rglob('*'):
            if path.is_file():
                kind = path.suffix if path.parent.name == 'partial' else 'store'
                results[f'bytes of {kind}'] = results.get(f'bytes of {kind}', 0) + path.stat().st_size
        remove_partial_files(directory, manifest)

    remove_partial_files = build_dir.remove_partial_files
    with (
        step(encoding, 'encode_shards'), step(merge, 'find_repeats'), step(merge, 'merge_shards'),
        mock.patch.object(build_dir, 'remove_partial_files', measure_size), _timed(results, 'all'),
    ):  # fmt: skip
        build_store(_CORPUS.value, folder, _TOKENIZER.value, CorpusOptions(workers=1), progress=False, beam=beam)
    return results


def _words(beam: str, folder: str) -> dict[str, float]:
    results: dict[str, float] = {}
    if not beam:
        with _timed(results, 'words'):
            count_words(iter_texts(_CORPUS.value), True)
        return results
    check_beam(beam)
    from bertjax.corpus.beam.vocabulary import BeamTextStatistics

    with _timed(results, 'words'):
        corpora, count = [[_CORPUS.value]], functools.partial(count_words, lowercase=True)
        BeamTextStatistics(corpora, CorpusOptions(), beam, pathlib.Path(folder, 'counts')).counts(count, MAX_WORDS)
    return results


def main(argv: list[str]) -> None:
    if _SIDE.value:
        beam = SIDES[_SIDE.value]
        print(json.dumps({**_store(beam, f'{_FOLDER.value}/{_SIDE.value}'), **_words(beam, _FOLDER.value)}))
        return
    size = sum(map(os.path.getsize, glob.glob(_CORPUS.value)))
    results: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(_ROUNDS.value):
        with tempfile.TemporaryDirectory() as folder:
            for side in SIDES:
                command = [sys.executable, *argv, f'--corpus={_CORPUS.value}', f'--tokenizer={_TOKENIZER.value}']
                command += [f'--side={side}', f'--folder={folder}']
                out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
                results[side].append(json.loads(out.stdout.splitlines()[-1]))
                names = [path.name for path in pathlib.Path(folder, 'local').iterdir()]
                _, different, errors = filecmp.cmpfiles(f'{folder}/local', f'{folder}/{side}', names, shallow=False)
                assert not different and not errors, (different, errors)
    print(f'{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {_ROUNDS.value} rounds')
    print(f'{size / 1e6:.1f} MB; the stores have the same bytes')
    for side, runs in results.items():
        print(side)
        for name in runs[0]:
            values = [run[name] for run in runs]
            if name.startswith('bytes'):
                print(f'  {name:18} {values[0] / size:6.3f} per byte of text')
            elif not name.endswith('wall'):
                wall = statistics.median(run[f'{name}, wall'] for run in runs)
                print(
                    f'  {name:18} {statistics.median(values):6.2f} s of CPU time ({min(values):.2f} to '
                    f'{max(values):.2f}), {size / 1e6 / statistics.median(values):6.1f} MB/s; {wall:.2f} s of wall time'
                )


if __name__ == '__main__':
    app.run(main)
