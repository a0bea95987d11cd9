"""Damage to bytes of a checkpoint, which must then not be used, and to bytes of other files of a workdir."""

import itertools
import json
import os
import pathlib
import random
import shutil
from collections.abc import Iterator

from golden_runs import FIRST, rewind

from bertjax.checkpoint.checkpoints import Checkpoints
from bertjax.errors import UserError
from breaking.world import Outcome, World, differing

REGIONS = 32  # the number of regions of a file; an attempt damages one region


def damage_checkpoint(world: World, seed: int, number: int) -> Outcome | None:
    """Damages a region of a file of the newest checkpoint. The previous checkpoint must then be used."""
    workdir, _ = world.reference(FIRST)
    folder = workdir / 'checkpoints'
    steps = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    regions = itertools.islice(_regions(folder / str(steps[-1])), number, None)
    region = next(regions, None)
    if region is None:
        return None
    path, begin, end = region
    copy = world.make_folder(f'flip-{number}') / 'checkpoints'
    shutil.copytree(folder, copy)
    rng = random.Random(f'{seed} flips {number}')
    what = _damage(copy / path.relative_to(folder), begin, end, rng)
    try:
        checkpoints = Checkpoints(copy, keep=9, log=lambda line: None)
        try:
            saved = checkpoints.latest()
        finally:
            checkpoints.close()
    except UserError as error:
        return Outcome(False, f'{what}: refused, although an earlier checkpoint is undamaged: {error}')
    except Exception as error:
        return Outcome(False, f'{what}: {error!r}')
    if saved is None or saved.position.step != steps[-2]:
        return Outcome(False, f'{what}: {"nothing" if saved is None else saved.position} is used')
    shutil.rmtree(copy.parent)
    return Outcome(True, what)


def damage_workdir(world: World, seed: int, number: int) -> Outcome:
    """Damages another file of an interrupted run. The continued run must end with the same bits, or refuse."""
    rng = random.Random(f'{seed} files {number}')
    reference, expected = world.reference(FIRST)
    workdir = world.make_folder(f'file-{number}')
    shutil.copytree(reference, workdir, dirs_exist_ok=True)
    steps = sorted(int(path.name) for path in (workdir / 'checkpoints').iterdir() if path.name.isdigit())
    rewind(workdir, step=steps[-2])
    paths = [path for path in sorted(workdir.rglob('*')) if path.is_file() and path.stat().st_size]
    paths = [path for path in paths if 'checkpoints' not in path.parts and 'tensorboard' not in path.parts]
    path = rng.choice(paths)
    begin, end = rng.choice(list(_parts(path.stat().st_size)))
    name = path.relative_to(workdir).as_posix()
    what = f'{name}: {_damage(path, begin, end, rng)}'
    ended = world.finish(FIRST, workdir)
    if ended.fault or ended.wrong:
        return Outcome(False, f'{what}: {ended.wrong}')
    if ended.status == 0:
        # The run can repeat the training, but it cannot restore the rows of a damaged log.
        lost = not _all_rows(path) if name == 'metrics.jsonl' else name in differing(workdir, expected)
        path.unlink(missing_ok=True)
        differs = [file for file in differing(workdir, expected) if file != name]
        if differs:
            return Outcome(False, f'{what}: other {", ".join(differs)}')
        if lost and not any(line.startswith('warning: ') and name in line for line in ended.err.splitlines()):
            return Outcome(False, f'{what}: no warning names the damaged file')
    shutil.rmtree(workdir)
    workdir.with_suffix('.log').unlink(missing_ok=True)
    return Outcome(True, what)


def _all_rows(path: pathlib.Path) -> bool:
    """Returns whether each line is a JSON object. A changed digit in a row of metrics cannot be detected."""
    try:
        return all(isinstance(json.loads(line), dict) for line in path.read_text(encoding='utf-8').splitlines())
    except (OSError, ValueError):
        return False


def _regions(folder: pathlib.Path) -> Iterator[tuple[pathlib.Path, int, int]]:
    for path in sorted(path for path in folder.rglob('*') if path.is_file()):
        for begin, end in _parts(path.stat().st_size):
            yield path, begin, end


def _parts(size: int) -> Iterator[tuple[int, int]]:
    bounds = [size * k // REGIONS for k in range(REGIONS + 1)]
    return ((begin, end) for begin, end in itertools.pairwise(bounds) if end > begin)


def _damage(path: pathlib.Path, begin: int, end: int, rng: random.Random) -> str:
    """Damages a region of a file, or cuts or removes the file. Returns a description of the damage."""
    data = bytearray(path.read_bytes())
    way = rng.choice(('a bit', 'a bit', 'a bit', 'noise', 'cut', 'gone', 'doubled'))
    at = rng.randrange(begin, end)
    if way == 'a bit':
        data[at] ^= 1 << rng.randrange(8)
    elif way == 'noise':
        data[begin:end] = bytes(byte ^ 0x5A for byte in data[begin:end])
    elif way == 'cut':
        del data[at:]
    elif way == 'doubled':
        data[end:end] = data[begin:end]
    if way == 'gone':
        os.remove(path)
    else:
        path.write_bytes(data)
    return f'{path.name} at byte {at}: {way}'
