"""Robustness tests: attack bertjax in hundreds of attempts, and count how often it holds.

    python benchmarks/break_it.py --kills=4 --operations=4 --flips=40 --files=6 --corpora=20 --configs=20
    python benchmarks/break_it.py --only=overrides,api,tasks,end_to_end   # 2,000 attempts, about 12 minutes
    python benchmarks/break_it.py --keep                    # the counts of docs/troubleshooting.md; hours on 2 cores
    python benchmarks/break_it.py --keep --only=kills       # the counts of one kind; the other rows stay
    python benchmarks/break_it.py --only=corpora:17         # repeat one attempt

    kills       kill a pre-training or a fine-tuning (SIGKILL) up to three times at random moments, then let it finish
    operations  kill a pre-training at one of its file operations, while it builds the store, saves or exports;
                task_operations does the same with a fine-tuning
    flips       change, cut or remove a region of a checkpoint file
    files       damage another file of the workdir in the same way, and start the run again
    corpora     build a store from hostile text: invalid UTF-8, JSON or gzip, broken links, extreme sizes
    configs     set a key of a recipe to a senseless value
    overrides   edit words of a command line: keys, values, flags, verbs, arguments of recipes
    api         call `bertjax.load` and every method of a model with arguments of all types
    tasks       edit, cut, recode or remove files of a task; every twelfth attempt trains on them
    end_to_end  train on text like that of `corpora` for two steps, and export

An attempt is a function of --seed, its kind and its number. bertjax holds in an attempt if the run ends with the same
bits as an undisturbed run, or refuses in one line with exit status 2. It must not hang, raise an exception, or use
damaged bytes. The exit status of the script is 1 if bertjax did not hold in an attempt. Needs the extra `test`.
"""

import datetime
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import tempfile
import time
from typing import Any

os.environ['JAX_PLATFORMS'] = 'cpu'
os.environ['HF_HUB_OFFLINE'] = '1'
# The attempts run the program with the helpers of its tests.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'tests' / 'program'))

from absl import app, flags, logging
from breaking import api, configs, corpora, damage, end_to_end, kills, overrides, task_files
from breaking.world import World
from report import write_between

from bertjax.files.atomic import write_atomic

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# {kind: (function that makes an attempt, default number of attempts)}; 0 makes all attempts of the kind.
KINDS = {
    'kills': (kills.kill_at_moment, 200),
    'operations': (functools.partial(kills.kill_at_operation, kind='nsp'), 0),
    'task_operations': (functools.partial(kills.kill_at_operation, kind='rte'), 0),
    'flips': (damage.damage_checkpoint, 0),
    'files': (damage.damage_workdir, 100),
    'corpora': (corpora.attempt, 300),
    'configs': (configs.attempt, 400),
    'overrides': (overrides.attempt, 500),
    'api': (api.attempt, 960),
    'tasks': (task_files.attempt, 500),
    'end_to_end': (end_to_end.attempt, 40),
}
_COUNTS = {
    name: flags.DEFINE_integer(name, None, f'The number of attempts of the kind {name}; by default {count or "all"}.')
    for name, (_, count) in KINDS.items()
}
_SEED = flags.DEFINE_integer('seed', 0, 'The seed of all random choices.')
_ONLY = flags.DEFINE_list('only', [], 'Kinds, or KIND:NUMBER for one attempt.')
_OUT = flags.DEFINE_string('out', '', 'The folder of the runs; failed attempts stay there. Default: a new folder.')
_KEEP = flags.DEFINE_bool('keep', False, 'Write these counts to docs/reliability.json and docs/troubleshooting.md.')

BEGIN, END = '<!-- made by benchmarks/break_it.py --keep -->', '<!-- to here -->'


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    folder = pathlib.Path(_OUT.value or tempfile.mkdtemp(prefix='break_it-')).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    world = World(folder, REPOSITORY)
    has_counts = any(flag.value is not None for flag in _COUNTS.values())
    only = {}
    for item in _ONLY.value:
        kind, _, number = item.partition(':')
        if kind not in KINDS or (number and not number.isdigit()):
            raise app.UsageError(f'--only={item}: expected KIND or KIND:NUMBER, with a kind of {", ".join(KINDS)}')
        if number and _KEEP.value:
            raise app.UsageError('--keep: expected whole kinds, not --only=KIND:NUMBER')
        only[kind] = number
    tried: dict[str, dict[str, Any]] = {}
    for kind, (attempt, usual) in KINDS.items():
        if (only and kind not in only) or (has_counts and not only and not _COUNTS[kind].value):
            continue
        numbers = range(_COUNTS[kind].value or usual or sys.maxsize)
        if only.get(kind):
            numbers = [int(only[kind])]
        began, count, broken = time.monotonic(), 0, []
        for number in numbers:
            outcome = attempt(world, _SEED.value, number)
            if outcome is None:  # this kind has no more attempts
                break
            count += 1
            if not outcome.held:
                broken.append(f'{kind}:{number}  {outcome.what}')
                print(f'DID NOT HOLD  {broken[-1]}', flush=True)
        minutes = round((time.monotonic() - began) / 60, 1)
        tried[kind] = {'tried': count, 'held': count - len(broken), 'minutes': minutes, 'broken': broken}
        print(f'{kind:<16}{count:>6} tried {count - len(broken):>6} held {minutes:>7} min', flush=True)
        if _KEEP.value:
            keep(tried)
    if any(of_kind['broken'] for of_kind in tried.values()):
        print(f'the files of these attempts are in {folder}')
        sys.exit(1)


def keep(tried: dict[str, dict[str, Any]]) -> None:
    """Writes the counts to docs/reliability.json and docs/troubleshooting.md; other kinds keep their old counts."""
    path, page = (REPOSITORY / 'docs' / name for name in ('reliability.json', 'troubleshooting.md'))
    versions = {name: importlib.metadata.version(name) for name in ('jax', 'flax', 'orbax-checkpoint')}
    how = {
        'date': datetime.date.today().isoformat(),
        'with': ', '.join(
            f'{name} {version}' for name, version in {'Python': platform.python_version(), **versions}.items()
        ),
        'seed': _SEED.value,
    }
    known = json.loads(path.read_text(encoding='utf-8')) if path.exists() else {}
    known |= {kind: counts | how for kind, counts in tried.items()}
    known = {kind: known[kind] for kind in KINDS if kind in known}
    write_atomic(path, json.dumps(known, indent=2) + '\n')
    lines = ['| kind | tried | held | minutes | date |', '|---|---|---|---|---|']
    for kind, n in known.items():
        lines.append(f'| {kind} | {n["tried"]:,} | {n["held"]:,} | {n["minutes"]:g} | {n["date"]} |')
    write_between(page, BEGIN, END, lines)


if __name__ == '__main__':
    app.run(main)
