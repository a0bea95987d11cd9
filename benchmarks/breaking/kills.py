"""SIGKILL at random moments and at file operations. The same command must then end with the same bits."""

import functools
import pathlib
import random
import shutil
import time

from golden_runs import FIRST
from killing import KILLED

from breaking.world import Outcome, World, differing

RUNS = (FIRST, 'rte')  # a pre-training with its vocabulary and store, a fine-tuning


def kill_at_moment(world: World, seed: int, number: int) -> Outcome:
    """Kills a run up to three times, at random moments within the time of an undisturbed run."""
    rng, kind = random.Random(f'{seed} kills {number}'), RUNS[number % len(RUNS)]
    (_, expected), seconds = world.reference(kind), world.seconds(kind)
    workdir = world.make_folder(f'kill-{number}')
    moments = []
    for _ in range(rng.randint(1, 3)):
        process = world.start(kind, workdir)
        moment = rng.uniform(0.25, 1.0) * seconds  # before 0.25, Python is still importing
        time.sleep(moment)
        process.kill()
        process.wait()
        moments.append(f'{moment:.2f} s')
    return _continued(world, kind, workdir, expected, f'{kind}, killed after {", ".join(moments)}')


def kill_at_operation(world: World, seed: int, number: int, *, kind: str) -> Outcome | None:
    """Kills a run before file operation `number` of a shuffled list. Returns None if there are no more operations."""
    operations = _operations(world, kind)
    if number >= operations:
        return None
    at = random.Random(f'{seed} operations {kind}').sample(range(1, operations + 1), operations)[number]
    _, expected = world.reference(kind)
    workdir = world.make_folder(f'{kind}-operation-{at}')
    status = world.start(kind, workdir, [*_killing(world), str(at), str(workdir), '-m', 'bertjax.main']).wait()
    what = f'{kind}, killed at file operation {at} of {operations}'
    if status not in (KILLED, 0):  # 0: thread timing changed, and the run had fewer operations
        return Outcome(False, f'{what}: status {status}')
    return _continued(world, kind, workdir, expected, what)


@functools.cache
def _operations(world: World, kind: str) -> int:
    """Returns the number of file operations of a run in its workdir."""
    world.reference(kind)
    workdir = world.make_folder(f'{kind}-counted')
    process = world.start(kind, workdir, [*_killing(world), '0', str(workdir), '-m', 'bertjax.main'])
    assert process.wait() == 0
    return int(workdir.with_suffix('.log').read_text().splitlines()[-1].split()[0])


def _killing(world: World) -> list[str]:
    return [str(world.repository / 'tests' / 'program' / 'killing.py')]


def _continued(world: World, kind: str, workdir: pathlib.Path, expected: dict, what: str) -> Outcome:
    ended = world.finish(kind, workdir)
    if ended.status or ended.fault:
        return Outcome(False, f'{what}: {ended.fault or ended.err.strip()[-300:]}')
    differs = differing(workdir, expected)
    if differs:
        return Outcome(False, f'{what}: other {", ".join(differs)}')
    shutil.rmtree(workdir)
    workdir.with_suffix('.log').unlink(missing_ok=True)
    return Outcome(True, what)
