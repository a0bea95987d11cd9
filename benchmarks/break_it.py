"""Tries to break bertjax, from outside and by the hundred, and counts what held.

    python benchmarks/break_it.py --kills=4 --operations=4 --flips=40 --files=6 --corpora=20 --configs=20
    python benchmarks/break_it.py --only=overrides,api,tasks,end_to_end   # 2,000, about 12 minutes
    python benchmarks/break_it.py --keep                    # the counts of docs/troubleshooting.md; hours on 2 cores
    python benchmarks/break_it.py --keep --only=kills       # a part of them: the other rows stay
    python benchmarks/break_it.py --only=corpora:17         # one attempt again

    kills       a pre-training or a fine-tuning is killed (SIGKILL) at a random moment, and again, then left to finish
    operations  a pre-training is killed at one of its file operations: of building the store, of saving, of exporting;
                task_operations are those of a fine-tuning
    flips       a region of a checkpoint's file is changed, cut or lost
    files       so is one of the workdir's other files, and the run is started again
    corpora     text made to be hard to read: what is no UTF-8, no JSON, no gzip, no file, or too much of something
    configs     a key of a recipe has a value that makes no sense
    overrides   words of a command line are edited: keys, values, flags, verbs, arguments of recipes
    api         `bertjax.load` and every method of what it returns get arguments of all types
    tasks       the files of a task are edited, cut, recoded, lost; one in twelve is trained all the same
    end_to_end  such text as for `corpora` is trained on for two steps and exported

Every attempt follows from --seed, its kind and its number. It holds when the run ends with the same bits as one that
nobody touched, or refuses in one line with exit status 2; it must not hang, die of an exception, or use damaged bytes.
Exit status 1 where one did not hold. Needs the extra `test`.
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
# The program is run as its tests run it.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / 'tests' / 'program'))

from absl import app, flags, logging
from breaking import api, configs, corpora, damage, end_to_end, kills, overrides, task_files
from breaking.world import World
from report import write_between

from bertjax.files.atomic import write_atomic

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
KINDS = {
    'kills': (kills.at_a_moment, 200),
    'operations': (functools.partial(kills.at_an_operation, kind='nsp'), 0),
    'task_operations': (functools.partial(kills.at_an_operation, kind='rte'), 0),
    'flips': (damage.of_a_checkpoint, 0),
    'files': (damage.of_a_workdir, 100),
    'corpora': (corpora.attempt, 300),
    'configs': (configs.attempt, 400),
    'overrides': (overrides.attempt, 500),
    'api': (api.attempt, 960),
    'tasks': (task_files.attempt, 500),
    'end_to_end': (end_to_end.attempt, 40),
}
_COUNTS = {
    name: flags.DEFINE_integer(name, None, f'How many {name}; by default {count or "every one there is"}.')
    for name, (_, count) in KINDS.items()
}
_SEED = flags.DEFINE_integer('seed', 0, 'Of everything random.')
_ONLY = flags.DEFINE_list('only', [], 'Kinds, or KIND:NUMBER for one attempt.')
_OUT = flags.DEFINE_string('out', '', 'Where the runs work; what did not hold stays there. By default a new folder.')
_KEEP = flags.DEFINE_bool('keep', False, 'Write these counts to docs/reliability.json and docs/troubleshooting.md.')

BEGIN, END = '<!-- made by benchmarks/break_it.py --keep -->', '<!-- to here -->'


def main(argv: list[str]) -> None:
    """Tries, says what did not hold, counts."""
    del argv
    logging.set_verbosity(logging.WARNING)
    folder = pathlib.Path(_OUT.value or tempfile.mkdtemp(prefix='break_it-')).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    world = World(folder, REPOSITORY)
    given = any(flag.value is not None for flag in _COUNTS.values())
    only = {}
    for item in _ONLY.value:
        kind, _, number = item.partition(':')
        if kind not in KINDS or (number and not number.isdigit()):
            raise app.UsageError(f'--only={item}: there are {", ".join(KINDS)}, each alone or as KIND:NUMBER')
        if number and _KEEP.value:
            raise app.UsageError('--keep: counts whole kinds, not --only=KIND:NUMBER')
        only[kind] = number
    tried: dict[str, dict[str, Any]] = {}
    for kind, (attempt, usual) in KINDS.items():
        if (only and kind not in only) or (given and not only and not _COUNTS[kind].value):
            continue
        numbers = range(_COUNTS[kind].value or usual or sys.maxsize)
        if only.get(kind):
            numbers = [int(only[kind])]
        began, count, broken = time.monotonic(), 0, []
        for number in numbers:
            outcome = attempt(world, _SEED.value, number)
            if outcome is None:  # there are no more of this kind
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
        print(f'what they left is in {folder}')
        sys.exit(1)


def keep(tried: dict[str, dict[str, Any]]) -> None:
    """The counts, for docs/troubleshooting.md; those of kinds that were not tried now stay."""
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
    lines = ['| kind | tried | held | minutes | date | seed | with |', '|---|---|---|---|---|---|---|']
    for kind, n in known.items():
        counts = f'{n["tried"]:,} | {n["held"]:,} | {n["minutes"]:g}'
        lines.append(f'| {kind} | {counts} | {n["date"]} | {n["seed"]} | {n["with"]} |')
    write_between(page, BEGIN, END, lines)


if __name__ == '__main__':
    app.run(main)
