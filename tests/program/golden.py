"""Records the files that tiny runs of the program write, and compares the results of another checkout with the record.

    python tests/program/golden.py record FOLDER
    python tests/program/golden.py compare FOLDER             # runs everything again with this checkout
    python tests/program/golden.py compare FOLDER --resume    # continues and reads copies of the recorded workdirs
    python tests/program/golden.py portable                   # rewrites golden.json after an intended change

--tree=PATH runs the program of another checkout. --only=NAME,NAME selects runs. --jobs=N runs N of them at once.
--accept=PATTERN turns differences that match a regular expression into notes. Trained numbers have the same bits only
on the machine of the record; golden.json contains the part of the QUICK runs that is the same on every machine.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

os.environ['JAX_PLATFORMS'] = 'cpu'

from golden_files import Record, differences, observe, portable
from golden_runs import FIRST, RUNS, Run, write_data

TREE = pathlib.Path(__file__).resolve().parents[2]
PORTABLE = pathlib.Path(__file__).with_suffix('.json')
QUICK = (FIRST, 'doc_sentences', 'mixture', 'rte_options', 'sweep_together')


class FailedRunError(Exception):
    """A command ended with an unexpected exit status."""


def record(folder: pathlib.Path, tree: pathlib.Path = TREE, names: Sequence[str] = (), jobs: int = 2) -> Record:
    """Runs RUNS, or only `names`, in `folder` with the code of `tree`; returns the record and keeps all files."""
    if (folder / 'golden.json').exists():
        raise SystemExit(f'{folder} already has a record')
    write_data(folder / 'data')
    needed = {FIRST, *(names or RUNS), *(RUNS[name].source for name in names)}
    names = [name for name in RUNS if name in needed]
    found: dict[str, Any] = {FIRST: perform(folder, FIRST, tree)}
    shutil.copytree(folder / 'runs' / FIRST / 'export', folder / 'data' / 'encoder' / 'export')
    for sourced in (False, True):
        found |= _perform_all(folder, [n for n in names if n != FIRST and bool(RUNS[n].source) == sourced], tree, jobs)
    failures = [message for message in found.values() if isinstance(message, str)]
    if failures:
        raise FailedRunError('\n'.join(failures))
    _write(folder / 'golden.json', found)
    return found


def _write(path: pathlib.Path, found: Record) -> None:
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + '\n', encoding='utf-8')


def compare(
    folder: pathlib.Path, tree: pathlib.Path = TREE, names: Sequence[str] = (), jobs: int = 2, *, resume: bool = False
) -> tuple[list[str], int]:
    """Compares runs with the record in `folder`; returns a line per difference and the number of runs.

    Args:
      folder: The folder of the record; only its compilation cache changes.
      tree: The checkout whose code runs.
      names: Names of runs; empty means all.
      jobs: The number of runs at once.
      resume: Whether to do the runs that start from recorded workdirs instead of the others.
    """
    recorded = json.loads((folder / 'golden.json').read_text(encoding='utf-8'))
    names = [
        name for name in recorded
        if (not names or name in names) and bool(RUNS[name].source) == resume and not RUNS[name].kill_at
    ]  # fmt: skip
    work = pathlib.Path(tempfile.mkdtemp(prefix='golden-'))
    shutil.copytree(folder / 'data', work / 'data')
    (work / 'cache').symlink_to((folder / 'cache').resolve())
    found = _perform_all(work, names, tree, jobs, olds=folder / 'runs')
    lines = list(differences({name: recorded[name] for name in names}, found))
    if any(not line.startswith('note: ') for line in lines):
        print(f'the files of this checkout are in {work}')
    else:
        shutil.rmtree(work)
    return lines, len(names)


def _perform_all(
    folder: pathlib.Path, names: Sequence[str], tree: pathlib.Path, jobs: int, olds: pathlib.Path | None = None
) -> dict[str, Any]:
    """Returns {name: result of `perform`, or the message of its failure}."""

    def perform_or_message(name: str) -> Any:
        try:
            return perform(folder, name, tree, olds)
        except FailedRunError as error:
            return str(error)
        except Exception as error:  # an unreadable workdir is a difference; the other runs continue
            return f'{name}: {error!r}'

    if jobs == 1:
        return {name: perform_or_message(name) for name in names}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(perform_or_message, names), strict=True))


def perform(
    folder: pathlib.Path, name: str, tree: pathlib.Path, olds: pathlib.Path | None = None
) -> dict[str, dict[str, Any]]:
    """Does RUNS[name] in FOLDER/runs/NAME; returns {step: {file: facts}} of the files that each command changed.

    The program gets only paths relative to `folder`, so no result depends on the location of `folder`.
    """
    run, workdir, began = RUNS[name], folder / 'runs' / name, time.monotonic()
    workdir.parent.mkdir(exist_ok=True)
    (folder / 'logs').mkdir(exist_ok=True)
    if run.source:
        shutil.copytree((olds or folder / 'runs') / run.source, workdir)
        if run.change:
            run.change(workdir)
    before, steps = observe(workdir) if run.source and not RUNS[run.source].kill_at else {}, {}
    for number, command in enumerate(run.commands):
        last = command is run.commands[-1]
        _start(folder, name, number, tree, expected=run.status if last else 0)
        if run.kill_at:
            return {}
        after = observe(workdir)
        verb = next((word.partition('=')[2] for word in command if word.startswith('--config.run=')), 'train')
        changed = {file: facts for file, facts in after.items() if before.get(file) != facts}
        if last and run.status:
            changed['the error'] = {'': _log(folder, name, number).read_text().splitlines()[-1]}
        steps[f'{number} {verb}'] = changed | dict.fromkeys(before.keys() - after.keys())
        before = after
    print(f'{name}: {time.monotonic() - began:.0f} s', flush=True)
    return steps


def _start(folder: pathlib.Path, name: str, number: int, tree: pathlib.Path, expected: int) -> None:
    """Runs one process of the program in `folder`; its output goes to FOLDER/logs."""
    run: Run = RUNS[name]
    environment = os.environ | {
        'PYTHONPATH': str(tree.resolve()),
        # One device. Small models spend most of their time in the compiler, so expensive passes are disabled.
        'XLA_FLAGS': '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true',
        'JAX_PLATFORMS': 'cpu',
        'JAX_COMPILATION_CACHE_DIR': str((folder / 'cache').resolve()),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
    }
    log, words = _log(folder, name, number), command_of(name, number, tree)
    with log.open('w') as output:
        process = subprocess.Popen(
            [sys.executable, '-m', 'bertjax.main', *words], cwd=folder, env=environment,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while run.kill_at and process.poll() is None:
            if (folder / 'runs' / name / run.kill_at).exists():
                process.kill()
            time.sleep(0.002)
        status = process.wait(timeout=600)
    if status != (-9 if run.kill_at else expected):
        tail = ''.join(log.read_text().splitlines(keepends=True)[-15:])
        raise FailedRunError(f'{name}: command {number} has exit status {status}, not {expected}\n{tail}')


def command_of(name: str, number: int, tree: pathlib.Path = TREE) -> list[str]:
    """Returns the arguments of a command, with the recipes of `tree`."""
    recipes = f'--config={tree.resolve()}/configs/'
    words = [word.replace('--config=configs/', recipes) for word in RUNS[name].commands[number]]
    return [*words, f'--workdir=runs/{name}']


def _log(folder: pathlib.Path, name: str, number: int) -> pathlib.Path:
    return folder / 'logs' / f'{name}.{number}.txt'


def report(lines: Sequence[str], count: int) -> bool:
    """Prints the differences and the number of runs without any; returns whether no run differs."""
    print('\n'.join(lines))
    differing = {re.match(r'\w+', line)[0] for line in lines if not line.startswith('note: ')}
    print(f'{count - len(differing)} of {count} runs identical')
    return not differing


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('action', choices=('record', 'compare', 'portable'))
    parser.add_argument('folder', type=pathlib.Path, nargs='?')
    parser.add_argument('--tree', type=pathlib.Path, default=TREE, help='the checkout whose code runs')
    parser.add_argument('--only', default='', help='names of runs, separated by commas')
    parser.add_argument('--jobs', type=int, default=2, help='runs at once')
    parser.add_argument(
        '--accept', action='append', default=[], metavar='PATTERN', help='a regular expression of intended differences'
    )
    parser.add_argument('--resume', action='store_true', help='continue and read copies of the recorded workdirs')
    options = parser.parse_args()
    names = [name for name in options.only.split(',') if name]
    unknown = set(names) - set(RUNS)
    if unknown:
        parser.error(f'--only: found {", ".join(sorted(unknown))}, expected some of {", ".join(RUNS)}')
    if options.action == 'portable':
        with tempfile.TemporaryDirectory() as temporary:
            _write(PORTABLE, portable(record(pathlib.Path(temporary) / 'golden', options.tree, QUICK, options.jobs)))
    elif options.folder is None:
        parser.error('FOLDER: found nothing, expected the folder of the record')
    elif options.action == 'record':
        print(f'{len(record(options.folder, options.tree, names, options.jobs))} runs recorded in {options.folder}')
    else:
        lines, count = compare(options.folder, options.tree, names, options.jobs, resume=options.resume)
        intended = [any(re.search(pattern, line) for pattern in options.accept) for line in lines]
        lines = [f'note: {line}' if accepted else line for line, accepted in zip(lines, intended, strict=True)]
        if not report(lines, count):
            raise SystemExit(1)


if __name__ == '__main__':
    main()
